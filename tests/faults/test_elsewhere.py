"""One results root, several targets: a record there is evidence only for the platform and the site that wrote it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from docker_engine import PYTHON, Engine
from opened_platforms import docker_at, process_at
from prefect_tools import wait_for

from prefect_tao.jobs.errors import TaoError
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.docker import observe
from prefect_tao.platforms.docker.driver import DockerPlatform

pytestmark = pytest.mark.xdist_group("docker")
HERE = "local-docker/here"
ELSEWHERE = ("process", "another engine")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
async def job(engine: Engine, results: Path, request: pytest.FixtureRequest) -> AsyncIterator[JobHandle]:
    """A job that runs in a container and keeps its record among the results."""
    platform = docker_at(HERE, host=engine.host, network="none", results_root=str(results))
    asked = JobRequest.build(command="sleep 300", image=PYTHON)
    handle = (await launch(platform, asked, job_key("elsewhere", request.node.name), {})).handle
    await asyncio.to_thread(wait_for, (results / handle.key / "attempts" / "1.json").exists)
    yield handle
    platform.engine.close()
    engine.clear()


@pytest.fixture
async def other(
    request: pytest.FixtureRequest, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Platform]:
    """Another target with the same results root."""
    monkeypatch.setattr(observe, "GONE_SECONDS", 0.5)
    platform: Platform
    if request.param == "process":
        platform = process_at(tmp_path / "home", results_root=results)
    else:
        host = request.getfixturevalue("another_engine").host
        platform = docker_at("local-docker/there", host=host, network="none", results_root=str(results))
    yield platform
    with suppress(TaoError):
        await platform.cancel(await platform.jobs(), timeout=30)
    await platform.close()


def is_running(engine: Engine, handle: JobHandle) -> bool:
    return engine.client.inspect_container(handle.native_id)["State"]["Status"] == "running"


@pytest.mark.parametrize("other", ELSEWHERE, indirect=True)
async def test_a_key_that_lives_elsewhere_is_refused_with_where_it_is(
    engine: Engine, job: JobHandle, other: Platform, results: Path
) -> None:
    asked = JobRequest.build(command="sleep 300", image=PYTHON if isinstance(other, DockerPlatform) else None)
    for _ in range(3):  # because a job is called gone only after a while
        with pytest.raises(TaoError, match=r"(?i)docker"):
            await launch(other, asked, job.key, {})
        await asyncio.sleep(0.4)
    assert is_running(engine, job)
    assert [path.name for path in (results / job.key / "attempts").iterdir()] == ["1.json"]


@pytest.mark.parametrize("other", ELSEWHERE, indirect=True)
async def test_a_job_that_lives_elsewhere_is_never_called_over(engine: Engine, job: JobHandle, other: Platform) -> None:
    ends = []
    for _ in range(3):
        with suppress(TaoError):
            found = (await other.find([job.key]))[job.key]
            ends += [seen for seen in (await other.observe(found)).values() if seen.state.terminal]
        await asyncio.sleep(0.4)
    assert is_running(engine, job)
    assert ends == []


def command(*words: str, results: Path, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """What a person sees who has exported the results root, and has saved no block."""
    program = Path(sys.executable).with_name("prefect-tao")
    around = {**os.environ, "TAO_RESULTS_ROOT": str(results), "PREFECT_HOME": str(home), **env}
    return subprocess.run([program, *words], env=around, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("word", ["logs", "watch", "cancel", "results"])
async def test_without_a_target_a_job_that_cannot_be_reached_is_said_to_be_elsewhere(
    engine: Engine, job: JobHandle, results: Path, tmp_path: Path, word: str
) -> None:
    nowhere = f"unix://{tmp_path}/no.sock"
    done = await asyncio.to_thread(command, word, job.name, results=results, home=tmp_path, DOCKER_HOST=nowhere)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"is elsewhere, on {job.site} (target {HERE})" in done.stderr
    assert "--target" in done.stderr
    assert is_running(engine, job)


async def test_without_a_target_the_engine_that_has_the_job_is_found_in_the_environment(
    engine: Engine, job: JobHandle, results: Path, tmp_path: Path
) -> None:
    there = {"results": results, "home": tmp_path, "DOCKER_HOST": engine.host}
    listed = await asyncio.to_thread(command, "results", job.name, "--json", **there)
    assert (listed.returncode, json.loads(listed.stdout)["results"]) == (0, job.results), listed.stderr
    # Its record names the engine's platform, so that no other is asked first.
    assert listed.stderr.startswith(f"looking for {job.name} on local-docker\n"), listed.stderr
    done = await asyncio.to_thread(command, "cancel", job.name, **there)
    assert (done.returncode, done.stdout.split()) == (0, [job.name, "Canceled"]), done.stderr
    assert not is_running(engine, job)
