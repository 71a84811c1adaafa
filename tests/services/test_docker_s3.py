"""Jobs in containers that keep their results in S3: seen, listed and remembered from here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from docker_engine import PYTHON, Engine
from http_faults import Fault, Faults
from opened_platforms import docker_at
from runner_tools import Bucket
from s3_server import S3Server

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import collect
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.verdict import Category
from prefect_tao.platforms.docker import observe
from prefect_tao.platforms.docker.driver import DockerPlatform

pytestmark = pytest.mark.xdist_group("docker")
KEYS = {"ACCESS_KEY": "test", "SECRET_KEY": "test"}
# The image of the tests has no boto3; it takes that of this machine.
PACKAGES = str(Path(boto3.__file__).parents[1])


@pytest.fixture
def bucket(s3_server: S3Server, faults: Faults) -> Bucket:
    return Bucket(s3_server.endpoint, faults.endpoint)


@pytest.fixture
async def platform(engine: Engine, bucket: Bucket, faults: Faults) -> AsyncIterator[DockerPlatform]:
    opened = docker_at(
        "local-docker/test",
        host=engine.host,
        network="host",
        s3_bucket_name=bucket.name,
        s3_endpoint_url=faults.endpoint,
        mounts=[f"{PACKAGES}:{PACKAGES}:ro"],
        env={"PYTHONPATH": PACKAGES},
    )
    opened.take_credentials(KEYS)
    yield opened
    await opened.close()
    engine.clear()


async def run(platform: DockerPlatform, command: str, **fields: Any) -> tuple[JobHandle, Observation]:
    """A job with the keys of S3, and how it ended."""
    request = JobRequest.build(command=command, image=PYTHON, secrets=list(KEYS), **fields)
    handle = await platform.submit(platform.render(request, token_hex(8), 1), KEYS)
    async with asyncio.timeout(60):
        while True:
            seen = (await platform.observe([handle])).get(handle)
            if seen and seen.state.terminal:
                return handle, seen
            await asyncio.sleep(0.1)


async def test_inputs_and_results_of_a_container_go_through_s3(platform: DockerPlatform, bucket: Bucket) -> None:
    uri = bucket.put("set/a b.txt", b"from the bucket")
    status = '{"status": "RUNNING", "epoch": 3, "max_epoch": 10}'
    command = f"""cat "/in/a b.txt" > "$TAO_RESULTS_DIR/model.pth"; mkdir "$TAO_RESULTS_DIR/train"
        echo '{status}' > "$TAO_RESULTS_DIR/train/status.json\""""
    handle, seen = await run(platform, command, inputs={"/in/a b.txt": uri})
    assert seen.state is JobState.COMPLETE, (await platform.logs(handle)).text
    assert (seen.progress.epoch if seen.progress else None) == 3
    assert handle.results == bucket.uri(f"results/{handle.key}")
    outcome = await collect(platform, handle, seen)
    names = ("results_dir/model.pth", "results_dir/train/status.json")
    assert (outcome.files, outcome.all_listed) == (tuple(f"{handle.results}/{name}" for name in names), True)
    assert await platform.read_path(outcome.files[0], 4) == b"from"
    assert bucket.get(f"results/{handle.key}/results_dir/model.pth") == b"from the bucket"


async def test_a_driver_answers_for_locations_in_s3(platform: DockerPlatform, bucket: Bucket) -> None:
    for key in ("set/a", "set/ü/b"):
        bucket.put(key, b"1")
    assert await platform.check_path(bucket.uri("set"))
    assert not await platform.check_path(bucket.uri("none"))
    assert not await platform.check_path(f"s3://no-{bucket.name}/set")
    assert await platform.list_path(bucket.uri("set")) == [bucket.uri("set/a"), bucket.uri("set/ü/")]
    with pytest.raises(InvalidInput, match="there is nothing"):
        await platform.list_path(bucket.uri("none"))
    with pytest.raises(InvalidInput, match="is not a file there"):
        await platform.read_path(bucket.uri("set"), 1)


async def test_a_removed_container_is_remembered_by_its_bucket(
    platform: DockerPlatform, bucket: Bucket, engine: Engine
) -> None:
    handle, _ = await run(platform, "exit 4")
    engine.client.remove_container(handle.native_id)
    fresh = docker_at(
        "local-docker/test",
        host=engine.host,
        s3_bucket_name=bucket.name,
        s3_endpoint_url=bucket.env["AWS_ENDPOINT_URL"],
    )
    fresh.take_credentials(KEYS)
    assert (await fresh.find([handle.key]))[handle.key] == [handle]
    seen = (await fresh.observe([handle]))[handle]
    assert (seen.state, seen.exit_code, seen.evidence) == (JobState.ERROR, 4, "exit marker")
    await fresh.close()


async def test_a_bucket_that_does_not_answer_or_refuses_is_no_evidence(
    platform: DockerPlatform, faults: Faults, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, _ = await run(platform, "exit 4")
    engine.client.remove_container(handle.native_id)
    faults.rules.append(lambda request: Fault(status=503, code="SlowDown"))
    fresh = docker_at("local-docker/test", host=engine.host, s3_bucket_name="x", s3_endpoint_url=faults.endpoint)
    fresh.take_credentials(KEYS)
    assert await fresh.observe([handle]) == {}
    with pytest.raises(Unreachable, match="SlowDown"):
        await fresh.find([handle.key])
    faults.rules[:] = [lambda request: Fault(status=403, code="AccessDenied")]
    monkeypatch.setattr(observe, "GONE_SECONDS", 0.0)
    assert await fresh.observe([handle]) == {}
    with pytest.raises(InvalidInput, match="AccessDenied"):
        await fresh.find([handle.key])
    await fresh.close()


async def test_a_job_that_works_elsewhere_in_its_container_ended_as_its_bucket_tells(platform: DockerPlatform) -> None:
    shape = {"time_limit": 1}
    handle, seen = await run(platform, "sleep 300", env={"TAO_WORK_DIR": "/tmp/own"}, resources=shape)
    assert (seen.ended_by, seen.evidence) == (EndedBy.TIME_LIMIT, "exit marker")
    assert (await platform.diagnose(handle)).category is Category.TIME_LIMIT
