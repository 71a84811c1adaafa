"""The core API on a Docker engine that only the environment names."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_engine import PYTHON
from docker_proxy import EngineProxy, Reply

from prefect_tao import InvalidInput, Sdk, Unreachable, connect
from prefect_tao.platforms import doubt
from prefect_tao.platforms.docker import submit

pytestmark = pytest.mark.xdist_group("docker")


@pytest.fixture
def sdk(proxy: EngineProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sdk]:
    monkeypatch.setenv("DOCKER_HOST", proxy.host)
    monkeypatch.setenv("DOCKER_NETWORK", "none")
    monkeypatch.setenv("TAO_RESULTS_ROOT", str(tmp_path / "results"))
    with connect("docker") as opened:
        yield opened


def ended(sdk: Sdk, job_id: str) -> str:
    deadline = time.monotonic() + 30
    while (status := sdk.get_job_status(job_id)).status not in ("Complete", "Error", "Canceled"):
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
    return status.status


def test_a_job_runs_in_its_image_and_is_looked_at_and_attached_to(sdk: Sdk) -> None:
    job = sdk.create_job(PYTHON, "echo hello; echo 1 > $TAO_RESULTS_DIR/a", gpu_count=0, key="docker-once")
    assert ended(sdk, job.id) == "Complete"
    assert sdk.get_job_logs(job.id, tail=5) == "hello\n"
    assert f"{job.results_dir}/results_dir/a" in sdk.list_path(f"{job.results_dir}/results_dir")
    assert sdk.create_job(PYTHON, "echo other", gpu_count=0, key="docker-once").id == job.id
    [replica] = sdk.get_job_replicas(job.id)
    assert replica["name"]
    with pytest.raises(InvalidInput, match="no-such-image"):
        sdk.create_job("no-such-image:1", "true", gpu_count=0)


def test_a_job_that_was_made_and_never_started_is_started_by_a_look_at_it(
    sdk: Sdk, proxy: EngineProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "DOUBT_SECONDS", 0.0)
    monkeypatch.setattr(submit, "RIVAL_SECONDS", 0.3)
    monkeypatch.setattr("prefect_tao.jobs.launching.PATIENCE_SECONDS", 0.0)
    proxy.replace = lambda seen: Reply(0) if seen.path.endswith("/start") else None
    try:
        name = sdk.create_job(PYTHON, "echo late", gpu_count=0, key="docker-late").id
    except Unreachable:
        [found] = sdk.list_jobs()
        name = found.id
    assert sdk.get_job_status(name).status == "Pending"
    proxy.replace = lambda seen: None
    assert ended(sdk, name) == "Complete"
    assert sdk.get_job_logs(name) == "late\n"
