"""What every driver repeats, over small hooks: a new driver says how its platform is asked, not what that means.

Beside the questions of the contract a driver writes `look`, `ask_to_end` and, where the platform does not end stubborn
jobs by itself, `insist`. `observe` and `cancel` are built of them and keep the contract's promises.
"""

from __future__ import annotations

import asyncio
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ParamSpec, TypeVar

from prefect_tao.jobs.control import without_control
from prefect_tao.jobs.errors import CancelUnconfirmed, InvalidInput, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.waiting import saying
from prefect_tao.platforms.files import Files

P = ParamSpec("P")
T = TypeVar("T")
# How long a command that was asked to end has for its last checkpoint before its runner kills it.
GRACE_SECONDS = 20.0
MOST_NAMES = 5


def job_variables(
    key: str, attempt: int, given: Mapping[str, str], results_root: str | None, **own: str
) -> dict[str, str]:
    """The variables of a job: what was given, without those that steer launchers, and those that its runner reads."""
    root = {"TAO_RESULTS_ROOT": results_root} if results_root else {}
    name = str(JobName(key, attempt))
    ours = {"TAO_JOB_ID": key, "TAO_JOB_NAME": name, "TAO_ATTEMPT": str(attempt), **root, **own}
    return {**without_control(given), **ours}


def kill_after(timeout: float) -> float:
    """When a job that was asked to end is made to: after the grace of its runner, and well before the timeout."""
    return min(GRACE_SECONDS + 5, 0.6 * timeout)


class Denials:
    """Since when the platform has positively denied each job: it may be gone only when that has lasted long enough."""

    def __init__(self) -> None:
        self._since: dict[JobHandle, float] = {}

    def seconds(self, handle: JobHandle, is_listed: bool = False) -> float:
        """How long the job has been denied, as of this look; a job that is listed is not denied any more."""
        if is_listed:
            self._since.pop(handle, None)
            return 0.0
        return time.monotonic() - self._since.setdefault(handle, time.monotonic())


class Driver(Platform):
    """One platform. Ends that were seen once are kept: they never change, and are not asked for again."""

    # How long `cancel` waits between two looks at first; the longest wait is ten times that.
    cancel_pause = 0.3
    # Whether `ask_to_end` itself leaves jobs alone that are over, so that no look is needed before it.
    asks_with_care = False

    def __init__(self, target: str) -> None:
        self.target = target
        # By the platform's own id too: a name whose job was forgotten may come to stand for another one.
        self._ends: dict[tuple[JobHandle, str], Observation] = {}

    # -- look ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """What is known of jobs whose end was not seen yet, in as few calls as the platform allows.

        A job of which nothing could be learned is left out. Raises Unreachable when that is so of all of them.
        """

    async def observe(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """One look at all jobs of ours that are not known to be over. Raises Unreachable."""
        far = await self.elsewhere(handles)
        handles = [handle for handle in handles if handle not in far] if far else handles
        seen = {handle: end for handle in handles if (end := self._ends.get((handle, handle.native_id)))}
        if unknown := [handle for handle in handles if handle not in seen]:
            found = await self.look(unknown)
            ids = {handle: handle.native_id for handle in unknown}
            self._ends |= {(handle, ids[handle]): one for handle, one in found.items() if one.state.terminal}
            seen |= found
        return seen

    async def seen(self, handle: JobHandle) -> Observation:
        """What is known of one job. Raises Unreachable when that is nothing."""
        found = (await self.observe([handle])).get(handle)
        if found is None:
            raise Unreachable(f"nothing is known of {handle.name} now", "the job, if there is one, goes on; look later")
        return found

    # -- paths ---------------------------------------------------------------------------------------------------------

    def reach(self, uri: str) -> tuple[Files, str]:
        """What holds the files at `uri`, and the path of it there. Raises InvalidInput for what cannot be reached."""
        raise InvalidInput(f"{uri} cannot be looked at on {self.target}", "give an s3:// location")

    async def in_thread(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask something that blocks, in a thread. Raises Unreachable where there is no answer."""
        return await asyncio.to_thread(question, *args, **kwargs)

    async def check_path(self, uri: str) -> bool:
        """Whether `uri` exists as jobs see it. Raises InvalidInput, Unreachable."""
        files, path = await self.in_thread(self.reach, uri)
        return await self.in_thread(files.exists, path)

    async def list_path(self, uri: str) -> list[str]:
        """The entries of a folder as jobs see it. Raises InvalidInput, Unreachable."""
        files, path = await self.in_thread(self.reach, uri)
        return await self.in_thread(files.entries, path)

    async def read_path(self, uri: str, limit: int) -> bytes:
        """The first bytes of a file as jobs see it. Raises InvalidInput, Unreachable."""
        files, path = await self.in_thread(self.reach, uri)
        data = await self.in_thread(files.read, path, limit)
        if data is None:
            raise InvalidInput(f"{uri} is not a file there", "name the file itself")
        return data

    async def within(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that are below `folder` wherever links lead. Raises InvalidInput, Unreachable."""
        files, path = await self.in_thread(self.reach, folder)
        return await self.in_thread(files.within, path, paths)

    # -- end -----------------------------------------------------------------------------------------------------------

    @abstractmethod
    async def ask_to_end(self, handles: Sequence[JobHandle]) -> None:
        """Leave word that this is a cancellation, and ask the jobs to end. It may be called twice for a job."""

    async def insist(
        self, left: Sequence[JobHandle], seen: Mapping[JobHandle, Observation], spent: float, timeout: float
    ) -> None:
        """End jobs that were asked and go on, called after every look; for platforms that do not do it by themselves.

        `spent` seconds have passed of `timeout`; `kill_after` says from when on a job is killed.
        """

    async def is_cleared(self, seen: Collection[JobHandle], asked: Collection[JobHandle]) -> bool:
        """Whether nothing is left of jobs that are over; `asked` are those that were not when cancel began."""
        return True

    async def out_of_reach(self, unseen: Sequence[JobHandle]) -> dict[JobHandle, str]:
        """Those of which nothing is seen because they positively run where we cannot end them, and where that is."""
        return {handle: handle.site for handle in await self.elsewhere(unseen)}

    async def cancel(self, handles: Sequence[JobHandle], timeout: float = 60.0) -> dict[JobHandle, Observation]:
        """Ask all jobs to end, make those that do not, and return when the platform says that they are over.

        A lost reply is doubt: asking and looking go on until the timeout. Raises CancelUnconfirmed, and Unreachable
        when the platform has not answered at all.
        """
        async with saying(lambda: f"waiting until {self.target} says that it is over: {_names(handles)}"):
            return await self._cancel(handles, timeout)

    async def _cancel(self, handles: Sequence[JobHandle], timeout: float) -> dict[JobHandle, Observation]:
        loop, pause = asyncio.get_running_loop(), self.cancel_pause
        start = loop.time()
        seen: dict[JobHandle, Observation] = {}
        asked: set[JobHandle] = set()
        while True:
            silence, spent = None, loop.time() - start
            left = list(handles)
            try:
                if self.asks_with_care and not asked:
                    foreign = await self.elsewhere(handles)
                    ours = [handle for handle in handles if handle not in foreign]
                    await self.ask_to_end(ours)
                    asked.update(ours)
                seen |= await self.observe(handles)
                far = await self.out_of_reach([handle for handle in handles if handle not in seen])
                left = [one for one in handles if one not in far and (one not in seen or not seen[one].state.terminal)]
                if not left and await self.is_cleared(seen, asked):
                    return _all_here(seen, far)
                if fresh := [handle for handle in left if handle not in asked]:
                    await self.ask_to_end(fresh)
                    asked.update(fresh)
                else:
                    await self.insist(left, seen, spent, timeout)
            except Unreachable as error:
                silence = error
            if spent > timeout:
                if silence and not seen and not asked:
                    raise silence
                raise _unconfirmed(left or handles, timeout, silence)
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, 10 * self.cancel_pause)


def _all_here(seen: dict[JobHandle, Observation], far: Mapping[JobHandle, str]) -> dict[JobHandle, Observation]:
    if not far:
        return seen
    where = ", ".join(f"{handle.name} on {host}" for handle, host in far.items())
    raise CancelUnconfirmed(
        f"cannot be ended from here: {where} (this is {os.uname().nodename})",
        f"cancel it from there: {', '.join(sorted(set(far.values())))}",
    )


def _unconfirmed(left: Sequence[JobHandle], timeout: float, silence: Unreachable | None) -> CancelUnconfirmed:
    why = f"; the last answer was lost: {silence.cause}" if silence else ""
    return CancelUnconfirmed(
        f"not over after {timeout:g} s: {_names(left)}{why}", "it was asked to end; look again, or cancel again"
    )


def _names(handles: Sequence[JobHandle]) -> str:
    more = f" and {len(handles) - MOST_NAMES} more" if len(handles) > MOST_NAMES else ""
    return ", ".join(handle.name for handle in handles[:MOST_NAMES]) + more
