"""Answers of a Docker engine that are none, lost words, and people who stop jobs by hand: no job is lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from docker_engine import PYTHON, Engine
from docker_proxy import EngineProxy, Reply, Seen
from opened_platforms import docker_at

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.following import follow
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms import doubt
from prefect_tao.platforms.docker import helper, submit
from prefect_tao.platforms.docker.driver import DockerPlatform

pytestmark = pytest.mark.xdist_group("docker")
SECRET = "nobody-may-keep-this"
LONG = "echo begun; sleep 300"
STEPS = {"create": ("POST", "/containers/create"), "fill": ("PUT", "/archive"), "start": ("POST", "/start")}


@pytest.fixture
def platform(docker_platform: DockerPlatform) -> DockerPlatform:
    return docker_platform


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return job_key("answers", request.node.name)


def job(command: str = 'test "$TOKEN" && mktemp "$TAO_RESULTS_DIR/run-XXXXXX"') -> JobRequest:
    return JobRequest.build(command=command, image=PYTHON, secrets=["TOKEN"])


class Once:
    """Replaces the reply to the first request of one kind."""

    def __init__(self, step: str, reply: Reply) -> None:
        self.method, self.path = STEPS[step]
        self.reply: Reply | None = reply

    def __call__(self, seen: Seen) -> Reply | None:
        if seen.method != self.method or self.path not in seen.path:
            return None
        reply, self.reply = self.reply, None
        return reply


async def end_of(platform: DockerPlatform, handle: JobHandle) -> Observation:
    while True:
        seen = (await platform.observe([handle])).get(handle)
        if seen and seen.state.terminal:
            return seen
        await asyncio.sleep(0.1)


async def begun(platform: DockerPlatform, key: str) -> JobHandle:
    """A job that runs until it is stopped."""
    handle = (await launch(platform, job(LONG), key, {"TOKEN": SECRET})).handle
    while True:
        if "begun" in (await platform.logs(handle)).text:
            return handle
        await asyncio.sleep(0.1)


# -- answers that are none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [True, False], ids=["done", "not done"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("status", [502, 429])
async def test_an_answer_that_is_no_refusal_is_looked_into_and_repeated(
    platform: DockerPlatform,
    proxy: EngineProxy,
    engine: Engine,
    tmp_path: Path,
    key: str,
    status: int,
    step: str,
    done: bool,
) -> None:
    proxy.replace = Once(step, Reply(status, done))
    launched = await launch(platform, job(), key, {"TOKEN": SECRET})
    assert (await end_of(platform, launched.handle)).state is JobState.COMPLETE
    assert len(engine.of_key(key)) == 1
    assert len(list((tmp_path / key).glob("results_dir/run-*"))) == 1


async def test_a_launch_that_gives_up_leaves_no_container(
    platform: DockerPlatform, proxy: EngineProxy, engine: Engine, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "DOUBT_SECONDS", 1.0)
    create = Reply(500, done=True, body=b'{"message": "failed to create task: OCI runtime create failed"}')
    proxy.replace = lambda seen: create if "/containers/create" in seen.path else None
    with pytest.raises(SubmitFailed, match="OCI runtime"):
        await platform.submit(platform.render(job(), key, 1), {"TOKEN": SECRET})
    assert engine.of_key(key) == []


async def test_a_container_that_is_removed_before_its_start_is_no_refusal(
    platform: DockerPlatform, proxy: EngineProxy, engine: Engine, key: str
) -> None:
    removal = Once("start", Reply(409, body=b'{"message": "container is marked for removal and cannot be started"}'))

    def remove(seen: Seen) -> Reply | None:
        if reply := removal(seen):
            engine.client.remove_container(seen.path.split("/")[2])
        return reply

    proxy.replace = remove
    launched = await launch(platform, job(), key, {"TOKEN": SECRET})
    assert (await end_of(platform, launched.handle)).state is JobState.COMPLETE


PULL, LOOK_UP = ("POST", "/images/create"), ("GET", "/distribution/")
PULLED = Reply(200, body=b'{"status": "Image is up to date"}')
FOUND = Reply(200, body=b'{"Platforms": []}')


def in_turn(step: tuple[str, str], *replies: Reply) -> Callable[[Seen], Reply | None]:
    """One of the replies to each request of a kind, and the last one for good."""
    left = list(replies)

    def replace(seen: Seen) -> Reply | None:
        if seen.method != step[0] or not seen.path.startswith(step[1]):
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return replace


@pytest.mark.parametrize("lost", [Reply(503), Reply(429), Reply(200, body=b'{"error": "unexpected EOF"}')])
async def test_a_pull_that_gets_no_definite_answer_is_repeated(
    engine: Engine, proxy: EngineProxy, tmp_path: Path, key: str, lost: Reply
) -> None:
    platform = docker_at(
        "local-docker/test", host=proxy.host, network="none", results_root=str(tmp_path), pull_policy="always"
    )
    proxy.replace = in_turn(PULL, lost, PULLED)
    handle = await platform.submit(platform.render(job("true"), key, 1), {"TOKEN": SECRET})
    assert (await end_of(platform, handle)).state is JobState.COMPLETE
    assert len(proxy.matching(*PULL)) == 2
    await platform.close()
    engine.clear()


async def test_a_pull_that_is_refused_is_not_repeated(proxy: EngineProxy, key: str) -> None:
    platform = docker_at("local-docker/test", host=proxy.host, network="none", pull_policy="always")
    proxy.replace = in_turn(PULL, Reply(500, body=b'{"message": "unauthorized: authentication required"}'))
    with pytest.raises(SubmitFailed, match="authentication required"):
        await platform.submit(platform.render(job("true"), key, 1), {"TOKEN": SECRET})
    assert len(proxy.matching(*PULL)) == 1
    await platform.close()


@pytest.mark.parametrize(
    ("replies", "level"),
    [
        ([Reply(502), FOUND], Level.OK),
        ([Reply(503)], Level.UNKNOWN),
        ([Reply(500, body=b'{"message": "manifest unknown"}')], Level.FAIL),
        ([Reply(403)], Level.FAIL),
    ],
)
async def test_a_check_that_gets_no_definite_answer_is_repeated_and_then_unknown(
    platform: DockerPlatform, proxy: EngineProxy, monkeypatch: pytest.MonkeyPatch, replies: list[Reply], level: Level
) -> None:
    monkeypatch.setattr(doubt, "CHECK_SECONDS", 0.5)
    proxy.replace = in_turn(LOOK_UP, *replies)
    found = await platform.probe(JobRequest.build(command="true", image="nowhere.example/not/there:1"))
    assert [one.level for one in found if one.subject == "image"] == [level]
    assert any(one.subject == "reachable" and one.level is Level.OK for one in found)


async def test_an_engine_that_answers_a_check_later_has_passed_it(platform: DockerPlatform, proxy: EngineProxy) -> None:
    proxy.replace = in_turn(("GET", "/info"), Reply(503), Reply(429), Reply(0))
    with pytest.raises(Unreachable):
        await platform.probe()
    seen: list[Seen] = []

    def replace(one: Seen) -> Reply | None:
        seen.append(one)
        return Reply(503) if len(seen) < 3 else None

    proxy.replace = replace
    assert any(one.subject == "reachable" for one in await platform.probe())


async def test_a_look_whose_container_was_made_without_an_answer_leaves_nothing(
    platform: DockerPlatform, proxy: EngineProxy, engine: Engine
) -> None:
    proxy.replace = Once("create", Reply(502, done=True))
    assert helper.run(platform.engine, PYTHON, ["echo", "seen"]).text == "seen\n"
    assert engine.client.containers(all=True, filters={"label": "tao-probe"}) == []


# -- silence -----------------------------------------------------------------------------------------------------------


async def test_a_launch_in_doubt_ends_with_a_job_that_runs(
    platform: DockerPlatform, proxy: EngineProxy, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "DOUBT_SECONDS", 0.0)
    monkeypatch.setattr(submit, "RIVAL_SECONDS", 0.3)
    cut: list[Seen] = []
    lists: list[Seen] = []

    def replace(seen: Seen) -> Reply | None:
        if seen.path.endswith("/start") and not cut:
            cut.append(seen)
            return Reply(0)  # the engine never hears of it
        if cut and seen.path.startswith("/containers/json"):
            lists.append(seen)
            if len(lists) == 2:  # the first one finds the container
                return Reply(200, body=b"[]")
        return None

    proxy.replace = replace
    launched = await launch(platform, job(), key, {"TOKEN": SECRET})
    assert len(lists) >= 2
    async with asyncio.timeout(10):
        assert (await end_of(platform, launched.handle)).state is JobState.COMPLETE


async def test_a_job_whose_launcher_died_half_way_is_completed_by_the_process_that_watches_it(
    platform: DockerPlatform, proxy: EngineProxy, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubt, "DOUBT_SECONDS", 0.0)
    monkeypatch.setattr(submit, "RIVAL_SECONDS", 0.3)
    proxy.replace = lambda seen: Reply(0) if seen.path.endswith("/start") else None
    with pytest.raises(Unreachable):
        await platform.submit(platform.render(job(), key, 1), {"TOKEN": SECRET})
    proxy.replace = lambda seen: None
    (handle,) = (await platform.find([key]))[key]
    async with asyncio.timeout(10):
        outcome = await follow(Watcher(platform), job(), handle, {"TOKEN": SECRET})
    assert outcome.state is JobState.COMPLETE


# -- ended by a person -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["/archive", "/kill", "/containers/json"])
async def test_a_cancel_outlives_a_lost_reply(
    platform: DockerPlatform, proxy: EngineProxy, key: str, lost: str
) -> None:
    handle = await begun(platform, key)
    proxy.lose = lambda seen: not proxy.lost and lost in seen.path and seen.method != "HEAD"
    seen = await platform.cancel([handle], timeout=30)
    assert proxy.lost == 1
    assert seen[handle].state is JobState.CANCELED


@pytest.mark.parametrize("how", ["stop", "kill", "stop and remove"])
async def test_a_container_that_a_person_stops_is_canceled_and_not_started_again(
    platform: DockerPlatform, engine: Engine, key: str, how: str
) -> None:
    handle = await begun(platform, key)
    for word in how.split(" and "):
        getattr(engine.client, {"remove": "remove_container"}.get(word, word))(handle.native_id)
    seen = await end_of(platform, handle)
    assert (seen.state, seen.ended_by) == (JobState.CANCELED, EndedBy.CANCEL)
    assert not (await platform.diagnose(handle)).retryable
