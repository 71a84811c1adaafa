"""The core API on a cluster that the environment alone sets up; plain commands need no image where that is allowed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import pytest
from slurm_cluster import Cluster

from prefect_tao import InvalidInput, Job, Sdk, connect

pytestmark = pytest.mark.xdist_group("slurm")


@pytest.fixture
def base(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What a person has exported, and a base folder that has no job yet."""
    folder = Path(f"{cluster.shared}/base-{token_hex(4)}")
    given = {name: str(value) for name, value in cluster.env.items()}
    for name, value in {**given, "SLURM_BASE_RESULTS_DIR": str(folder), "SLURM_GPUS_PER_NODE": "0"}.items():
        monkeypatch.setenv(name, value)
    yield folder
    cluster.run(f"scancel -u {cluster.user}")


def state_of(sdk: Sdk, job: Job, *wanted: str) -> str:
    deadline = time.monotonic() + 60
    while (status := sdk.get_job_status(job.id)).status not in wanted:
        assert time.monotonic() < deadline, status
        time.sleep(0.2)
    return status.status


def test_a_script_runs_explains_and_ends_jobs_on_a_cluster(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ALLOW_BARE", "1")
    with connect("slurm") as sdk:
        job = sdk.create_job(command='echo on $(hostname); echo kept > "$TAO_RESULTS_DIR/x"', gpu_count=0, key="first")
        assert state_of(sdk, job, "Complete", "Error") == "Complete", sdk.get_job_logs(job.id)
        assert "on " in sdk.get_job_logs(job.id, tail=10)
        assert sdk.get_job_results_dir(job.id).startswith(str(base))
        assert any(name.endswith("results_dir/") for name in sdk.list_path(sdk.get_job_results_dir(job.id)))
        assert sdk.check_path(f"{sdk.get_job_results_dir(job.id)}/results_dir/x")
        again = sdk.create_job(
            command='echo on $(hostname); echo kept > "$TAO_RESULTS_DIR/x"', gpu_count=0, key="first"
        )
        assert (again.id, again.attached) == (job.id, True)
        assert sdk.get_failure_analysis(job.id) is None
        failed = sdk.create_job(command="echo broken; exit 3", gpu_count=0, key="second")
        long = sdk.create_job(command="echo begun; sleep 300", gpu_count=0, key="third")
        assert state_of(sdk, failed, "Complete", "Error") == "Error"
        analysis = sdk.get_failure_analysis(failed.id)
        assert analysis
        assert (analysis["err_class"], bool(analysis["suggestion"])) == ("ERR_PROGRAM", True)
        state_of(sdk, long, "Running")
        assert [replica["status"]["state"] for replica in sdk.get_job_replicas(long.id)]
        assert sdk.cancel_job(long.id)
        assert state_of(sdk, long, "Canceled", "Error", "Complete") == "Canceled"
        assert {one.id for one in sdk.list_jobs()} == {job.id, failed.id, long.id}


def test_without_leave_from_the_set_up_a_command_needs_an_image(base: Path) -> None:
    with connect("slurm") as sdk, pytest.raises(InvalidInput, match="image: none is resolved"):
        sdk.create_job(command="true", gpu_count=0)
    assert not base.exists()
