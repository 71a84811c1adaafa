"""What the tests of launching, watching and losing jobs share: small jobs on this machine, and waiting for them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import Observation
from prefect_tao.platforms.process import client, job_folder

T = TypeVar("T")

LONG = "echo begun; sleep 300"
# Each run leaves a file of its own, so that two runs of one job cannot be taken for one.
COUNTED = 'mktemp "$TAO_RESULTS_DIR/run-XXXXXX"'


def new_key() -> str:
    """The key of a launch that nobody else has."""
    return token_hex(8)


def waits_for(go: Path) -> str:
    """A command that goes on when the file is there: after some time, a busy machine would not have looked yet."""
    return f"echo begun; until [ -e {go} ]; do sleep 0.02; done"


def job(command: str, **fields: Any) -> JobRequest:
    """A request that runs `command`."""
    return JobRequest.build(command=command, **fields)


async def start(platform: Platform, command: str, key: str | None = None, **fields: Any) -> JobHandle:
    """Submit the first attempt of a job."""
    return await platform.submit(platform.render(job(command, **fields), key or new_key(), 1), {})


async def until(ask: Callable[[], Awaitable[T]], seconds: float = 20.0) -> T:
    """The first true answer; fails when there is none in time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (answer := await ask()):
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds:g} s; the last answer was {answer!r}"
        await asyncio.sleep(0.02)
    return answer


async def seen(platform: Platform, handle: JobHandle) -> Observation:
    """The job as it is now."""
    return (await platform.observe([handle]))[handle]


async def end_of(platform: Platform, handle: JobHandle) -> Observation:
    """The job's end."""

    async def over() -> Observation | None:
        now = await seen(platform, handle)
        return now if now.state.terminal else None

    end = await until(over)
    assert end
    return end


async def says(platform: Platform, handle: JobHandle, text: str) -> str:
    """The job's log, as soon as it holds `text`."""

    async def said() -> str:
        log = (await platform.logs(handle)).text
        return log if text in log else ""

    return await until(said)


def runs(handle: JobHandle) -> int:
    """How often a COUNTED command has run under this handle's key."""
    return len(list(Path(handle.results).glob("results_dir/run-*")))


def runner(handle: JobHandle) -> client.Ident:
    """The process that the handle names."""
    ident = client.Ident.parse(handle.native_id)
    assert ident
    return ident


def changed(ident: client.Ident, **facts: Any) -> client.Ident:
    """Another process, alike but for `facts`."""
    return client.Ident(**{**{name: getattr(ident, name) for name in client.Ident.__slots__}, **facts})


def kill(*idents: client.Ident) -> None:
    """Kill these processes the hard way; returns when they are gone."""
    for ident in idents:
        client.send(ident, signal.SIGKILL)
    while any(client.life(ident) for ident in idents):
        time.sleep(0.005)


@contextmanager
def swept(folder: Path) -> Iterator[Path]:
    """Whatever jobs below `folder` still run at the end is killed."""
    try:
        yield folder
    finally:
        while left := [*client.carriers(f"{folder.resolve()}/").values(), *_sessions(folder)]:
            for idents in left:
                kill(*idents)


def _sessions(folder: Path) -> list[list[client.Ident]]:
    """What runs in the sessions of the jobs below `folder`, whatever it made of its environment."""
    texts = [path.read_text() for path in folder.rglob(job_folder.CLAIM)]
    leaders = [client.Ident.parse(str(json.loads(text).get("ident"))) for text in texts if text]
    return list(client.sessions(leader for leader in leaders if leader).values())
