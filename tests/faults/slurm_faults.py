"""What the fault tests of SLURM share: a platform on the loopback cluster, small jobs, and what is left of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import slurm_tools
from opened_platforms import slurm_at
from slurm_cluster import Cluster
from slurm_tools import start

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms.slurm.driver import SlurmPlatform

T = TypeVar("T")
__all__ = ["start"]

LONG = "echo begun; sleep 300"
# Each run leaves a file of its own, so that two runs of one job cannot be taken for one.
COUNTED = 'mktemp "$TAO_RESULTS_DIR/run-XXXXXX"'


def new_key() -> str:
    """The key of a launch that nobody else has."""
    return token_hex(8)


def settings(cluster: Cluster, **more: Any) -> dict[str, Any]:
    """What a platform on this cluster is made of; it looks often."""
    return slurm_tools.settings(cluster, **{"poll_seconds": 0.3, **more})


def open_platform(cluster: Cluster, **more: Any) -> SlurmPlatform:
    """A platform that is sure of a denial soon."""
    platform = slurm_at("slurm/loopback", **settings(cluster, **more))
    platform.denial_seconds = 1.0
    return platform


def again(platform: SlurmPlatform, **more: Any) -> SlurmPlatform:
    """Another object for the same jobs, as another process would make it."""
    other = SlurmPlatform(platform.target, platform.options.model_copy(update=more))
    other.denial_seconds, other.gone_seconds = platform.denial_seconds, platform.gone_seconds
    return other


def job(command: str, **fields: Any) -> JobRequest:
    """A request that runs `command`."""
    return JobRequest.build(command=command, **fields)


async def until(ask: Callable[[], Awaitable[T]], seconds: float = 30.0) -> T:
    """The first true answer; fails when there is none in time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (answer := await ask()):
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds:g} s; the last answer was {answer!r}"
        await asyncio.sleep(0.1)
    return answer


async def seen(platform: SlurmPlatform, handle: JobHandle) -> Observation:
    """The job as it is now; Unreachable when it was left out or nobody answered."""
    with suppress(Unreachable):
        if found := (await platform.observe([handle])).get(handle):
            return found
    return Observation(state=JobState.UNREACHABLE)


async def reaches(platform: SlurmPlatform, handle: JobHandle, *states: JobState, seconds: float = 30.0) -> Observation:
    """The job as soon as it is in one of these states; fails when it ends otherwise."""

    async def there() -> Observation | None:
        now = await seen(platform, handle)
        assert now.state in states or not now.state.terminal, now
        return now if now.state in states else None

    found = await until(there, seconds)
    assert found
    return found


async def end_of(platform: SlurmPlatform, handle: JobHandle, seconds: float = 60.0) -> Observation:
    """The job's end."""
    return await reaches(platform, handle, JobState.COMPLETE, JobState.ERROR, JobState.CANCELED, seconds=seconds)


async def says(platform: SlurmPlatform, handle: JobHandle, text: str) -> str:
    """The job's log, as soon as it holds `text`."""

    async def said() -> str:
        log = (await platform.logs(handle)).text
        return log if text in log else ""

    return await until(said)


def folder_of(platform: SlurmPlatform, handle: JobHandle) -> Path:
    return Path(platform.place.job(handle.key, handle.attempt))


def runs(platform: SlurmPlatform, key: str) -> int:
    """How often a COUNTED command has run under this key."""
    return len(list(Path(platform.place.results_of(key)).glob("results_dir/run-*")))


def queued(cluster: Cluster) -> list[str]:
    """The names of all jobs of the user that are not over."""
    return cluster.run("squeue -h -o %j", check=True).stdout.split()


def known_ids(cluster: Cluster, name: str) -> list[str]:
    """The ids of all jobs that bear a name, finished ones too."""
    return cluster.run(f"squeue -h -t all --name={name} -o %A", check=True).stdout.split()


def left_over(platform: SlurmPlatform) -> list[str]:
    """What lies among the jobs and is neither a job nor wanted."""
    folder = Path(platform.place.jobs)
    return sorted(path.name for path in folder.glob("*") if not path.name.startswith("tao-")) if folder.exists() else []


def holds(folder: Path, text: str) -> list[str]:
    """The files below a folder that hold a text."""
    return [str(path) for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


class Launcher:
    """A process of its own that launches a job and waits for its end. It has connected when this returns."""

    def __init__(self, given: Mapping[str, Any], key: str, command: str) -> None:
        # From a server that has imported everything already, and that has no threads.
        context = get_context("forkserver")
        context.set_forkserver_preload(["paramiko", __name__, "prefect_tao.jobs.launching", "prefect_tao.jobs.watcher"])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_launch_and_wait, args=(dict(given), key, command, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def go(self) -> None:
        """Launch now."""
        self._pipe.send("go")

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()

    def end(self) -> str:
        """The state in which the job ended, as the launcher tells it."""
        try:
            assert self._pipe.poll(60), "the launcher does not come to an end"
            return str(self._pipe.recv())
        finally:
            self.kill()


def _launch_and_wait(given: dict[str, Any], key: str, command: str, pipe: Connection) -> None:
    async def main() -> None:
        platform = slurm_at("slurm/loopback", **given)
        platform.denial_seconds = 1.0
        await platform.login.connect()
        pipe.send("ready")
        pipe.recv()
        launched = await launch(platform, job(command), key, {"TOKEN": "t"})
        pipe.send((await Watcher(platform).wait(launched.handle)).state.value)

    asyncio.run(main())
