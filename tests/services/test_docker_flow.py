"""From a saved block to a job in a container: the flow, the command line, its gates, its outcome."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from docker_engine import PYTHON, Engine
from prefect_tools import Api, call, wait_for
from runner_tools import Bucket
from s3_server import S3Server

from prefect_tao.blocks import TaoDocker
from prefect_tao.jobs.errors import InvalidInput, JobFailed
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms import doubt
from prefect_tao.preflight.gates import GATES

# Those who share the one server run one after the other.
pytestmark = pytest.mark.xdist_group("prefect-server")
BLOCK = "bench"
TARGET = f"local-docker/{BLOCK}"


@pytest.fixture
def block(server: Any, engine: Engine, tmp_path: Path) -> Iterator[Path]:
    """The saved block; yields its results folder."""
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    results = tmp_path / "results"
    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        saved = TaoDocker(host=engine.host, network="none", results_root=str(results))
        asyncio.run(saved.asave(BLOCK, overwrite=True))
    yield results
    engine.clear()


def test_a_flow_runs_a_container_through_its_gates(server: Any, api: Api, block: Path) -> None:
    outcome = call(
        server,
        "run",
        command="echo $COLOR; echo kept > $TAO_RESULTS_DIR/model.pth",
        image=PYTHON,
        target=TARGET,
        env={"COLOR": "green"},
    )
    assert outcome.state is JobState.COMPLETE
    assert outcome.checkpoints == [f"{block}/{outcome.handle.key}/results_dir/model.pth"]
    run = api.newest_run("run")["id"]

    def gates() -> dict[str, str]:
        states = {task["name"]: task["state"]["type"] for task in api.task_runs(run)}
        found = {name: states.get(f"gate: {name}", "") for name in GATES}
        return found if set(found.values()) <= {"COMPLETED", "FAILED"} else {}

    assert wait_for(gates, 30) == dict.fromkeys(GATES, "COMPLETED")
    assert "docker run --detach" in api.page("review", outcome.handle.key)["data"]


def test_the_keys_of_a_block_reach_a_job_whose_data_is_in_s3_and_no_other(
    server: Any, engine: Engine, block: Path, tmp_path: Path
) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    packages = str(Path(boto3.__file__).parents[1])  # the image of the tests has none of its own
    with S3Server() as s3, temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        bucket = Bucket(s3.endpoint, s3.endpoint)
        uri = bucket.put("set/a.txt", b"from the bucket")
        saved = TaoDocker(
            host=engine.host,
            network="host",
            mounts=[f"{packages}:{packages}:ro"],
            env={"PYTHONPATH": packages},
            s3_endpoint_url=s3.endpoint,
            s3_bucket_name=bucket.name,
            access_key="test-key-id",
            secret_key="test-secret-key",
        )
        asyncio.run(saved.asave("stored", overwrite=True))
        command = 'printf %s "$(<in/a.txt)" > "$TAO_RESULTS_DIR/model.pth"'
        there = {"image": PYTHON, "target": "local-docker/stored"}
        outcome = call(server, "run", command=command, inputs={"in": uri.removesuffix("/a.txt")}, **there)
        assert outcome.state is JobState.COMPLETE
        assert bucket.get(f"results/{outcome.handle.key}/results_dir/model.pth") == b"from the bucket"
        # Where nothing is in S3, nobody gets the keys.
        saved.s3_bucket_name, saved.results_root = None, str(tmp_path / "kept")
        asyncio.run(saved.asave("stored", overwrite=True))
        outcome = call(server, "run", command='test -z "$SECRET_KEY$ACCESS_KEY$AWS_SECRET_ACCESS_KEY"', **there)
        assert outcome.state is JobState.COMPLETE


def test_a_failed_container_fails_the_run_with_its_log(server: Any, block: Path) -> None:
    with pytest.raises(JobFailed) as failure:
        call(server, "run", command="echo 'ValueError: no class 7' >&2; exit 4", image=PYTHON, target=TARGET)
    assert failure.value.verdict
    assert "no class 7" in failure.value.verdict.log_excerpt


def test_a_missing_image_and_a_missing_path_are_told_together(
    server: Any, engine: Engine, block: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "CHECK_SECONDS", 0.0)
    with pytest.raises(InvalidInput) as refused:
        call(server, "run", command="true", image="127.0.0.1:1/no/such:1", target=TARGET, inputs={"/in": "/no/such"})
    told = str(refused.value)
    assert "127.0.0.1:1/no/such:1" in told
    assert "/no/such: does not exist on local-docker/bench" in told
    assert engine.client.containers(all=True) == []
    assert not block.exists()


@pytest.mark.timeout(400)
def test_the_commands_of_the_page_work(server: Any, engine: Engine, tmp_path: Path, home: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "docker.md").read_text()
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    results = tmp_path / "results"
    env = {**server.env, "PREFECT_TAO_HOME": str(home), "DOCKER_HOST": engine.host, "DOCKER_NETWORK": "none"}
    told = {}
    for line in map(str.strip, block.strip().splitlines()):
        words = [PYTHON if word == "python:3.12" else word for word in shlex.split(line)]
        if words[0] == "export":
            name, _, _ = words[1].partition("=")
            env[name] = str(results)
            continue
        assert words[0] == "prefect-tao"
        done = subprocess.run(
            [sys.executable, "-m", "prefect_tao.cli", *words[1:]], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        told[words[1] if "--dry-run" not in words else "dry run"] = done.stdout + done.stderr
    assert "docker run --detach" in told["dry run"]
    (job,) = engine.client.containers(all=True)
    assert (job["State"], job["Labels"]["prefect-tao.results"].rpartition("/")[0]) == ("exited", str(results))
    name = job["Labels"]["prefect-tao.job"]
    assert name in told["jobs"]
    (folder,) = results.glob("*/results_dir")
    (folder / "model.pth").write_text("weights")
    words = ["results", name, "--target", "local-docker/workstation", "--download", str(tmp_path / "kept")]
    done = subprocess.run([sys.executable, "-m", "prefect_tao.cli", *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in (tmp_path / "kept").rglob("model.pth")] == ["weights"]
    engine.clear()
