"""SLURM as a person uses it: a saved block, the command line, the page about it, and Prefect in between."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from prefect_tools import Api, call, wait_for
from slurm_cluster import Cluster

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.state import JobState

# It needs both; a cluster is quicker to start than a second server.
pytestmark = pytest.mark.xdist_group("prefect-server")
PAGE = Path(__file__).parents[3] / "docs" / "slurm.md"
IMAGE = "nvcr.io/nvidia/tao/tao-toolkit:7.0.0-pyt"


@pytest.fixture
def variables(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What a person has exported; a base folder that nobody has used yet."""
    found = {name: str(value) for name, value in cluster.env.items()}
    found["SLURM_BASE_RESULTS_DIR"] = f"{cluster.shared}/base-{token_hex(4)}"
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    yield found
    cluster.run(f"scancel -u {cluster.user}")


@pytest.fixture
def target(server: Any, variables: dict[str, str]) -> str:
    """A saved block for the cluster."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from prefect_tao.blocks import TaoSlurm

    name = f"loopback-{token_hex(4)}"
    with temporary_settings({PREFECT_API_URL: server.api}):
        TaoSlurm.from_env().save(name)
    return f"slurm/{name}"


def test_the_commands_of_the_page_work(server: Any, variables: dict[str, str], tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines() if line.strip()]
    assert len(lines) >= 4
    said = []
    for line in lines:
        words = [sys.executable, "-m", "prefect_tao.cli", *shlex.split(line)[1:]]
        env = {**server.env, **variables, "HOME": str(tmp_path)}
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout + done.stderr)
    assert "#SBATCH --gpus-per-node=1" in said[1]
    assert "Complete" in said[2]
    assert "Complete" in said[3]


def test_a_run_shows_its_gates_its_start_and_its_end(server: Any, api: Api, target: str) -> None:
    outcome = call(server, "run", command="echo seen", target=target, image=IMAGE, gpus=2)
    assert outcome.state is JobState.COMPLETE
    run = api.newest_run("run")
    assert run["state"]["type"] == "COMPLETED"
    wait_for(lambda: len(api.task_runs(run["id"])) == 8, 30)
    review = api.page("review", outcome.handle.key)["data"]
    assert "estimated start" in review
    assert "#SBATCH --gpus-per-node=2" in review


def test_a_failed_gate_leaves_the_cluster_untouched(
    server: Any, cluster: Cluster, target: str, variables: dict[str, str]
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        call(
            server,
            "run",
            command="true",
            target=target,
            image=IMAGE,
            gpus=16,
            nodes=1,
            time_limit="12h",
            inputs={"/data": "/lustre/no/such/data"},
        )
    said = str(refusal.value)
    assert "16 per node were asked for, and a node has 8" in said
    assert "the partition polar allows 4 h" in said
    assert "/lustre/no/such/data" in said
    assert not os.path.exists(variables["SLURM_BASE_RESULTS_DIR"])
    assert cluster.run(f"squeue -h -u {cluster.user}").stdout == ""


def test_a_detached_job_is_watched_and_cancelled_by_its_name(server: Any, cluster: Cluster, target: str) -> None:
    handle = call(server, "run", command="sleep 300", target=target, image=IMAGE, gpus=1, long_running_enabled=False)
    wait_for(lambda: handle.name in cluster.run(f"squeue -h -t R -u {cluster.user} -o %j").stdout)
    words = [sys.executable, "-m", "prefect_tao.cli", "cancel", handle.name, "--target", target]
    done = subprocess.run(words, env=server.env, capture_output=True, text=True, timeout=100)
    assert "Canceled" in done.stdout, done.stderr
    assert cluster.run(f"squeue -h -u {cluster.user}").stdout == ""


def test_an_unreachable_login_node_fails_the_gate_with_the_steps_to_take(
    server: Any, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("SLURM_SSH_PORT", "1")
    with pytest.raises(Unreachable) as refusal:
        call(server, "run", command="true", target=request.getfixturevalue("target"), image=IMAGE, gpus=1)
    assert "SSH_KEY_PATH" in str(refusal.value)


def test_a_search_over_the_tiny_trainer_runs_on_the_cluster(server: Any, cluster: Cluster, target: str) -> None:
    # The nodes have a Python of their own, and no package of ours.
    library = Path(cluster.shared) / f"library-{token_hex(4)}"
    shutil.copytree(
        PAGE.parents[1] / "examples" / "tiny_trainer", library / "prefect_tao" / "examples" / "tiny_trainer"
    )
    found = call(
        server,
        "automl",
        command=f"PYTHONPATH={library} python3 -m prefect_tao.examples.tiny_trainer train -e {{config_path}}",
        target=target,
        image=IMAGE,
        gpus=1,
        config_format="json",
        specs={"train": {"num_epochs": 2, "optim": {"lr": 0.1}}, "dataset": {"samples": 100}},
        outputs={"results_dir": {"type": "folder"}},
        custom_param_ranges={"train.optim.lr": {"valid_min": 0.001, "valid_max": 1.0}},
        metric="val_loss",
        direction="minimize",
        max_trials=4,
        max_concurrent=2,
        time_limit="5m",
    )
    assert [point.number for point in found.points] == [0, 1, 2, 3]
    assert found.best is not None
    assert found.best.metrics["val_loss"] == min(point.metrics["val_loss"] for point in found.points)
    assert found.winner is not None
    assert found.winner.checkpoints
