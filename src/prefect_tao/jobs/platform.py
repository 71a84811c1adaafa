"""The driver contract: what every platform does, and the promises that one test suite proves on each of them.

1. Silence is not evidence: a call that fails raises Unreachable; it never makes a job Error or Canceled.
2. `observe` asks about all jobs in one call; its cost per interval does not grow with the jobs at rest.
3. `submit` under a name that exists adopts that job; it never starts a second one.
4. `cancel` returns when the platform says that the job is over. A finished job keeps its own end.
5. Every remote call has a timeout. Every error is one of `prefect_tao.jobs.errors`.
6. What another site has left, another engine, cluster or machine, is never evidence, and its jobs are left alone.
7. Secrets reach the command's environment and nothing else: no argv, log, label or rendered text.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.verdict import Verdict


@dataclass(frozen=True)
class Rendered:
    """What a driver will really send. Pure: `repr` is the exact text, so a dry run shows the truth."""

    request: JobRequest
    key: str
    attempt: int
    text: str
    files: Mapping[str, bytes]

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class LogChunk:
    """Log text and the cursor from which to go on."""

    text: str
    cursor: str


@dataclass(frozen=True)
class Replica:
    """One process group, container or pod of a job, and what keeps it from running."""

    name: str
    state: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Listing:
    """Files below a folder; `whole` says whether every folder was read to its end."""

    files: tuple[str, ...] = ()
    whole: bool = True


class Platform(ABC):
    """One driver. `target` is what handles carry; `poll_seconds` bound how often `observe` may be called.

    Where a platform lets two jobs bear one name, `denial_seconds` is how long it must have denied a name after a
    submission in doubt before the submission may be repeated. `runs_here`: jobs are processes of this machine, so all
    their paths are paths here. `ends_idle_jobs`: jobs that let their GPUs wait for a download may be ended there, and
    no person has accepted that. `runs_bare`: commands without an image are welcome where containers run. `jobs_at_once`
    is how many make sense at a time where no limit is given. `jobs_own_requests`: a job can write what is kept of its
    request, so that what it names there is read with the job's own rights alone.
    """

    target: str
    poll_seconds: tuple[float, float] = (5.0, 60.0)
    denial_seconds: float = 0.0
    runs_here: bool = False
    ends_idle_jobs: bool = False
    runs_bare: bool = False
    jobs_at_once: int | None = None
    jobs_own_requests: bool = False

    @abstractmethod
    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """What would be sent. Raises InvalidInput for what this platform cannot run."""

    @abstractmethod
    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Start the job, or adopt the one that has its name. Raises SubmitFailed, Unreachable."""

    @abstractmethod
    async def observe(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """What is known of each job. A handle may be left out when nothing could be learned of it."""

    @abstractmethod
    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """The last `tail` lines, or all text after the cursor `since`."""

    @abstractmethod
    async def cancel(self, handles: Sequence[JobHandle], timeout: float = 60.0) -> dict[JobHandle, Observation]:
        """End the jobs, verified. Raises CancelUnconfirmed when the platform does not confirm in time."""

    @abstractmethod
    async def diagnose(self, handle: JobHandle) -> Verdict:
        """Why the job ended."""

    @abstractmethod
    async def site(self) -> str:
        """The very place of our jobs, in words that stay the same as long as it is the same one.

        Such as "Docker engine 4f1c..." or "SLURM cluster polar, user me". Raises Unreachable when it cannot be told.
        """

    async def elsewhere(self, handles: Sequence[JobHandle]) -> list[JobHandle]:
        """Those that belong to another site. Raises Unreachable when it cannot be told which is ours."""
        sited = [handle for handle in handles if handle.site]
        own = await self.site() if sited else ""
        return [handle for handle in sited if handle.site != own]

    @abstractmethod
    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """Every attempt of each key that the platform or the results folder knows, oldest first.

        What the platform lists is ours; of what only the results tell, the record says which site it belongs to.
        """

    @abstractmethod
    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """The jobs of our site that carry all of `labels`, newest first; secrets that they need no more are removed."""

    @abstractmethod
    async def check_path(self, uri: str) -> bool:
        """Whether `uri` exists as the platform sees it."""

    @abstractmethod
    async def list_path(self, uri: str) -> list[str]:
        """What is under `uri` as the platform sees it, one level, folders with a slash at the end."""

    @abstractmethod
    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """Checks that leave nothing behind: reachable, usable, and fit for `request` where one is given."""

    async def replicas(self, handle: JobHandle) -> list[Replica]:
        """The parts of the job, for a closer look at one that does not start."""
        seen = (await self.observe([handle])).get(handle)
        return [Replica(handle.name, seen.native_state, seen.reason)] if seen else []

    async def request_of(self, handle: JobHandle) -> JobRequest | None:
        """What the job was asked to do, where the platform keeps that; None where it does not."""
        return None

    async def own_login(self) -> str:
        """What opens the login by this machine's own configuration, without a credential; empty if nothing does."""
        return ""

    async def all_gpus(self, image: str | None = None) -> int | None:
        """How many GPUs all of a node are, for a job in `image`; None where that is not known. Raises Unreachable."""
        return None

    async def gpu_hour_price(self, request: JobRequest) -> float | None:
        """What one GPU of such a job costs in an hour; None where the platform names no price. Raises Unreachable."""
        return None

    async def in_flight(self) -> int:
        """How many of our jobs there are not over. Raises Unreachable."""
        handles = await self.jobs()
        seen = await self.observe(handles)
        return sum(handle not in seen or not seen[handle].state.terminal for handle in handles)

    async def list_files(self, uri: str, depth: int, limit: int, skip: Collection[str]) -> Listing:
        """The files below `uri`, at most `depth` levels down, without the folders named in `skip`.

        Level by level, so that one huge folder does not hide what lies beside it. A job may have left links to what
        only the person who looks can read: those that lead out are left out. Raises Unreachable, InvalidInput.
        """
        files: list[str] = []
        level, entries, whole = [uri], 0, True
        if not await self.check_path(uri):
            return Listing()
        for _ in range(depth):
            below: list[str] = []
            for folder in level:
                found = await self.list_path(folder) if entries < limit else []
                whole &= entries + len(found) <= limit and entries < limit
                found = found[: limit - entries]
                entries += len(found)
                files += [entry for entry in found if not entry.endswith("/")]
                below += [entry.rstrip("/") for entry in found if entry.endswith("/")]
            wanted = [path for path in below if path.rpartition("/")[2] not in skip]
            level = await self.within(uri, wanted) if wanted else []
        return Listing(tuple(await self.within(uri, files) if files else ()), whole and not level)

    async def within(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that are below `folder` wherever links lead. Raises Unreachable, InvalidInput."""
        return list(paths)

    async def read_path(self, uri: str, limit: int) -> bytes:
        """The first `limit` bytes of a file there. Raises InvalidInput, Unreachable."""
        raise Unreachable(
            f"files of {self.target} cannot be read from here", f"copy it with scp or rsync from {self.target}: {uri}"
        )

    async def host_versions(self) -> dict[str, str] | None:
        """Versions by the names of the catalog's host minimum (driver, cuda, container_toolkit); None if not known."""
        return None

    async def disk_free(self) -> dict[str, int]:
        """Free bytes for results, by the place they are at; empty where the platform cannot say. Raises Unreachable."""
        return {}

    async def submit_many(self, jobs: Iterable[tuple[Rendered, Mapping[str, str]]]) -> list[JobHandle]:
        """Start many jobs at once.

        Flows launch each job by itself, because each has its own retries and its own end; a driver whose trips are
        expensive gathers the calls of `submit` that come at the same moment into one. This is for callers that have
        all jobs at hand.
        """
        return list(await asyncio.gather(*(self.submit(rendered, secrets) for rendered, secrets in jobs)))

    async def follow(self, handle: JobHandle, since: str | None = None) -> AsyncIterator[str]:
        """Log text as it comes, until the job is over."""
        cursor, pause = since, self.poll_seconds[0]
        while True:
            over = (await self.observe([handle])).get(handle)
            chunk = await self.logs(handle, since=cursor)
            cursor = chunk.cursor
            if chunk.text:
                yield chunk.text
            elif over and over.state.terminal:
                return
            await asyncio.sleep(0 if over and over.state.terminal else pause)

    async def release(self, handles: Sequence[JobHandle]) -> None:  # noqa: B027 - most platforms rent nothing
        """Give back what was rented for jobs that are over and whose results were collected. Raises Unreachable."""

    async def list_instances(self) -> list[dict[str, Any]]:
        """The machines that a person rents there, where jobs need such. Raises InvalidInput elsewhere, Unreachable."""
        raise InvalidInput(f"{self.target} has no instances to list or delete", "they are for platforms that rent them")

    async def delete_instance(self, instance_id: str) -> bool:
        """Give one back; true when it is gone. Raises as `list_instances` does."""
        raise InvalidInput(f"{self.target} has no instance {instance_id}", "they are for platforms that rent them")

    def take_credentials(self, credentials: Mapping[str, str]) -> None:  # noqa: B027 - most drivers need none
        """What the driver itself logs in with, here and at registries. It stays in memory and reaches no job."""

    async def close(self) -> None:  # noqa: B027 - most drivers hold nothing
        """Let go of connections; jobs go on."""

    def settings(self) -> dict[str, Any]:
        """What a person may see of this platform's set-up; never a secret."""
        return {"target": self.target}
