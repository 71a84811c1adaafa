"""However replies get lost and launchers die, a job is one container, and its secrets stay nowhere."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from uuid import uuid4

import docker
import pytest
from docker_engine import PYTHON, Engine
from docker_proxy import EngineProxy, Seen
from opened_platforms import docker_at
from prefect.client.schemas.objects import FlowRun

from prefect_tao.deployments.recovery import sweep_targets
from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.verdict import Category
from prefect_tao.platforms import doubt
from prefect_tao.platforms.docker import container_starter, observe, submit
from prefect_tao.platforms.docker.driver import DockerPlatform
from prefect_tao.tasks.cancellation import LABEL

pytestmark = pytest.mark.xdist_group("docker")
SECRET = "nobody-may-keep-this"
STEPS = ("/containers/create", "/archive", "/start")
numbers = itertools.count()


@pytest.fixture
def platform(docker_platform: DockerPlatform) -> DockerPlatform:
    return docker_platform


def request(command: str = 'test "$TOKEN" && mktemp "$TAO_RESULTS_DIR/run-XXXXXX"', **fields: object) -> JobRequest:
    return JobRequest.build(command=command, image=PYTHON, secrets=["TOKEN"], **fields)


def new_key() -> str:
    return job_key("faults", str(next(numbers)))


def loses_once(step: str, method: str) -> LosesOnce:
    return LosesOnce(step, method)


class LosesOnce:
    """Loses the reply to the first request of one kind."""

    def __init__(self, step: str, method: str) -> None:
        self.step, self.method, self.done = step, method, False

    def __call__(self, seen: Seen) -> bool:
        loses = not self.done and seen.method == self.method and self.step in seen.path
        self.done |= loses
        return loses


async def end(platform: DockerPlatform, handle: JobHandle) -> JobState:
    while True:
        seen = (await platform.observe([handle])).get(handle)
        if seen and seen.state.terminal:
            return seen.state


def kept_secrets(engine: Engine) -> list[str]:
    """The files of all containers that hold the secret."""
    found = []
    for one in engine.client.containers(all=True):
        facts = engine.client.inspect_container(one["Id"])
        assert SECRET not in repr(facts)
        layer = Path(facts["GraphDriver"]["Data"]["UpperDir"])
        found += [str(path) for path in layer.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    return found


async def launch_with_lost_reply(
    platform: DockerPlatform, proxy: EngineProxy, engine: Engine, step: str, tmp_path: Path
) -> None:
    key = new_key()
    proxy.lose = LosesOnce(step, "PUT" if step == "/archive" else "POST")
    launched = await launch(platform, request(), key, {"TOKEN": SECRET})
    proxy.lose = lambda seen: False
    assert await end(platform, launched.handle) is JobState.COMPLETE
    assert len(engine.of_key(key)) == 1
    assert len(list((tmp_path / key).glob("results_dir/run-*"))) == 1
    assert kept_secrets(engine) == []


@pytest.mark.parametrize("step", STEPS)
async def test_a_lost_reply_makes_no_second_container(
    platform: DockerPlatform, proxy: EngineProxy, engine: Engine, tmp_path: Path, step: str
) -> None:
    for _ in range(2):
        await launch_with_lost_reply(platform, proxy, engine, step, tmp_path)
    assert proxy.lost == 2


async def test_a_lost_reply_to_the_start_of_a_job_that_removes_itself_is_no_failure(
    proxy: EngineProxy, engine: Engine, tmp_path: Path
) -> None:
    platform = docker_at(
        "local-docker/test", host=proxy.host, network="none", results_root=str(tmp_path), auto_remove=True
    )

    def run_to_its_end(seen: Seen) -> bool:
        if not seen.path.endswith("/start") or proxy.lost:
            return False
        container = seen.path.split("/")[2]
        engine.client.start(container)
        with contextlib.suppress(docker.errors.NotFound):
            engine.client.wait(container, condition="removed")
        return True

    proxy.lose = run_to_its_end
    launched = await launch(platform, request(), key := new_key(), {"TOKEN": SECRET})
    assert proxy.lost == 1
    assert await end(platform, launched.handle) is JobState.COMPLETE
    assert len(list((tmp_path / key).glob("results_dir/run-*"))) == 1
    platform.engine.close()


async def test_a_name_that_is_taken_by_what_cannot_be_seen_is_not_waited_for_forever(
    platform: DockerPlatform, proxy: EngineProxy, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "DOUBT_SECONDS", 0.3)
    name, asked = f"tao-job-{(key := new_key())}-1", itertools.count()

    def come_and_go(seen: Seen) -> bool:
        if "/containers/create" in seen.path and next(asked) < 20:
            engine.client.create_container(PYTHON, "true", name=name)
        elif seen.path == f"/containers/{name}/json":
            engine.client.remove_container(name)
        return False

    proxy.lose = come_and_go
    with pytest.raises(Unreachable, match="cannot be seen"):
        await platform.submit(platform.render(request(), key, 1), {"TOKEN": SECRET})
    assert engine.of_key(key) == []


async def test_a_start_that_comes_after_the_end_of_the_job_runs_nothing_again(
    platform: DockerPlatform, proxy: EngineProxy, engine: Engine, tmp_path: Path
) -> None:
    """The first call for the start was slow: it is done, and the job over, just before the second one arrives."""
    key = new_key()

    def run_before(seen: Seen) -> bool:
        if seen.path.endswith("/start"):
            container = seen.path.split("/")[2]
            engine.client.start(container)
            assert engine.client.wait(container)["StatusCode"] == 0
        return False

    proxy.lose = run_before
    launched = await launch(platform, request(), key, {"TOKEN": SECRET})
    proxy.lose = lambda seen: False
    assert engine.client.wait(launched.handle.native_id)["StatusCode"] == container_starter.AGAIN, (
        "the engine did start it again"
    )
    seen = (await platform.observe([launched.handle]))[launched.handle]
    assert (seen.state, seen.exit_code) == (JobState.COMPLETE, 0)
    assert len(list((tmp_path / key).glob("results_dir/run-*"))) == 1
    assert "has run its job already" in (await platform.logs(launched.handle)).text
    assert kept_secrets(engine) == []


@pytest.mark.long
async def test_a_hundred_lost_replies_make_a_hundred_containers(
    platform: DockerPlatform, proxy: EngineProxy, engine: Engine, tmp_path: Path
) -> None:
    for number in range(100):
        await launch_with_lost_reply(platform, proxy, engine, STEPS[number % 3], tmp_path)
        engine.clear()
    assert proxy.lost == 100


async def test_a_launcher_that_dies_between_create_and_start_is_completed_by_the_next_one(
    platform: DockerPlatform, proxy: EngineProxy, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "DOUBT_SECONDS", 0.0)
    monkeypatch.setattr(submit, "RIVAL_SECONDS", 0.3)
    key = new_key()
    proxy.lose = lambda seen: "/archive" in seen.path or "/start" in seen.path
    with pytest.raises(Unreachable):
        await platform.submit(platform.render(request(), key, 1), {"TOKEN": SECRET})
    proxy.lose = lambda seen: False
    (handle,) = (await platform.find([key]))[key]
    assert (await platform.observe([handle]))[handle].state is JobState.PENDING
    launched = await launch(platform, request(), key, {"TOKEN": SECRET})
    assert launched.handle == handle
    assert await end(platform, handle) is JobState.COMPLETE
    assert len(engine.of_key(key)) == 1
    assert kept_secrets(engine) == []


async def test_a_created_container_that_is_cancelled_never_runs_and_keeps_no_secret(
    platform: DockerPlatform, engine: Engine, tmp_path: Path
) -> None:
    key = new_key()
    rendered = platform.render(request(), key, 1)
    body = json.loads(rendered.files["container.json"])
    made = engine.client.create_container_from_config(body, f"tao-job-{key}-1")["Id"]
    job = {"id": made, "site": await platform.site(), "target": platform.target}
    platform.engine.put(made, submit.delivery(job, body["Labels"], rendered.files, {"TOKEN": SECRET}))
    assert kept_secrets(engine) != []
    (handle,) = (await platform.find([key]))[key]
    seen = await platform.cancel([handle], timeout=10)
    assert seen[handle].state is JobState.CANCELED
    assert kept_secrets(engine) == []
    await platform.submit(rendered, {"TOKEN": SECRET})
    assert (await platform.observe([handle]))[handle].state is JobState.CANCELED
    assert engine.client.inspect_container(made)["State"]["Status"] == "created"
    assert not (tmp_path / key).exists()


async def test_a_foreign_container_with_the_name_is_left_alone(platform: DockerPlatform, engine: Engine) -> None:
    key = new_key()
    foreign = engine.client.create_container(PYTHON, "true", name=f"tao-job-{key}-1")["Id"]
    with pytest.raises(SubmitFailed, match="not a job of prefect-tao"):
        await platform.submit(platform.render(request(), key, 1), {})
    assert engine.client.inspect_container(foreign)["State"]["Status"] == "created"
    assert await platform.find([key]) == {key: []}


async def test_a_job_that_cannot_be_started_leaves_no_container(platform: DockerPlatform, engine: Engine) -> None:
    key = new_key()
    refused = request(resources={"memory": 1})
    with pytest.raises(SubmitFailed, match="memory") as told:
        await platform.submit(platform.render(refused, key, 1), {"TOKEN": SECRET})
    assert told.value.remedy == "ask for more memory"
    assert engine.of_key(key) == []


async def test_an_engine_that_crashes_and_comes_back_ends_the_attempt_with_a_verdict(
    platform: DockerPlatform, engine: Engine
) -> None:
    handle = await platform.submit(platform.render(request("echo begun; sleep 300"), new_key(), 1), {})
    while "begun" not in (await platform.logs(handle)).text:
        pass
    engine.kill()
    with pytest.raises(Unreachable):
        await platform.observe([handle])
    engine.start()
    assert await end(platform, handle) is JobState.ERROR
    verdict = await platform.diagnose(handle)
    assert (verdict.category, verdict.retryable) == (Category.PREEMPTED, True)


@pytest.mark.parametrize("sweep", ["jobs", "the next launch", "recover"])
async def test_a_created_container_whose_launcher_is_gone_keeps_no_secret_and_can_still_be_launched(
    platform: DockerPlatform, engine: Engine, monkeypatch: pytest.MonkeyPatch, sweep: str
) -> None:
    key = new_key()
    rendered = platform.render(request(), key, 1)
    body = json.loads(rendered.files["container.json"])
    made = engine.client.create_container_from_config(body, f"tao-job-{key}-1")["Id"]
    job = {"id": made, "site": await platform.site(), "target": platform.target}
    platform.engine.put(made, submit.delivery(job, body["Labels"], rendered.files, {"TOKEN": SECRET}))
    assert [handle.key for handle in await platform.jobs()] == [key]
    assert kept_secrets(engine) != [], "its launcher may be about to start it"
    monkeypatch.setattr(observe, "ABANDONED_SECONDS", -1.0)
    if sweep == "the next launch":
        await end(platform, (await launch(platform, request(), new_key(), {"TOKEN": SECRET})).handle)
    elif sweep == "recover":
        monkeypatch.setenv("DOCKER_HOST", engine.host)
        await sweep_targets([FlowRun(flow_id=uuid4(), labels={f"{LABEL}local-docker": True})])
    else:
        await platform.jobs()
    assert kept_secrets(engine) == []
    launched = await launch(platform, request(), key, {"TOKEN": SECRET})
    assert await end(platform, launched.handle) is JobState.COMPLETE
    assert kept_secrets(engine) == []
