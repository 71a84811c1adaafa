"""The watcher: one per target and event loop, asking about all its jobs in one call per interval.

It waits longer while nothing changes, costs no thread per job, and takes silence for silence: a job that cannot be
seen is shown as Unreachable and kept. It knows nothing of Prefect; who waits may give a `should_cancel` to be asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from prefect_tao.jobs.errors import CancelUnconfirmed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress

ASK_SECONDS = 5.0
ANSWER_SECONDS = 120.0
SLOWDOWN = 1.5

ShouldCancel = Callable[[], Awaitable[bool]]


class Listener:
    """What a waiting caller may hear; override what you want. Log lines are fetched only for `wants_logs`."""

    wants_logs = False

    async def on_state(self, handle: JobHandle, seen: Observation) -> None:
        """The job's state, or what is known of it, changed."""

    async def on_progress(self, handle: JobHandle, progress: Progress) -> None:
        """Training went on."""

    async def on_log(self, handle: JobHandle, text: str) -> None:
        """New output of the job."""


@dataclass(eq=False)
class _Watch:
    handle: JobHandle
    listener: Listener
    should_cancel: ShouldCancel | None
    over: asyncio.Future[Observation]
    seen: Observation | None = None
    unreachable: bool = False
    cursor: str | None = None
    canceling: bool = field(default=False)


class Watcher:
    """Watches the jobs of one platform for as long as somebody waits for one."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._watches: list[_Watch] = []
        self._task: asyncio.Task[None] | None = None
        self._cancels: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    async def wait(
        self, handle: JobHandle, listener: Listener | None = None, should_cancel: ShouldCancel | None = None
    ) -> Observation:
        """The job's terminal observation. Cancelling this call detaches from the job and leaves it running."""
        loop = asyncio.get_running_loop()
        watch = _Watch(handle, listener or Listener(), should_cancel, loop.create_future())
        self._watches.append(watch)
        self._news.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())
        try:
            return await watch.over
        finally:
            self._watches.remove(watch)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        shortest, longest = self.platform.poll_seconds
        interval, next_look, next_ask = shortest, loop.time(), loop.time() + min(ASK_SECONDS, longest)
        while self._watches:
            self._news.clear()
            if loop.time() >= next_look:
                changed = await self._look()
                interval = shortest if changed else min(interval * SLOWDOWN, longest)
                next_look = loop.time() + interval
            if loop.time() >= next_ask:
                await self._ask()
                next_ask = loop.time() + ASK_SECONDS
            if await self._pause(min(next_look, next_ask) - loop.time()):
                interval, next_look = shortest, loop.time()

    async def _pause(self, seconds: float) -> bool:
        """Sleep; True when a new job came meanwhile and wants to be looked at now."""
        try:
            await asyncio.wait_for(self._news.wait(), max(seconds, 0.0))
        except TimeoutError:
            return False
        return True

    async def _look(self) -> bool:
        watches = [watch for watch in self._watches if not watch.over.done()]
        try:
            seen = await asyncio.wait_for(
                self.platform.observe(list({watch.handle: None for watch in watches})), ANSWER_SECONDS
            )
            silence = "the platform's answer left this job out"
        except (Unreachable, OSError, TimeoutError) as error:
            seen, silence = {}, str(error) or "the platform did not answer in time"
        except Exception as error:
            for watch in watches:  # a fault of the driver; better loud than a silent wait for ever
                _settle(watch, error)
            return True
        changes = [await self._tell(watch, seen.get(watch.handle), silence) for watch in watches]
        return any(changes)

    async def _tell(self, watch: _Watch, seen: Observation | None, silence: str) -> bool:
        if seen is None:
            if watch.unreachable:
                return False
            watch.unreachable = True
            await watch.listener.on_state(watch.handle, Observation(state=JobState.UNREACHABLE, reason=silence))
            return True
        before, back = watch.seen, watch.unreachable
        watch.seen, watch.unreachable = seen, False
        if watch.listener.wants_logs:
            await self._tell_log(watch)
        if seen.progress and (before is None or before.progress != seen.progress):
            await watch.listener.on_progress(watch.handle, seen.progress)
        if back or before is None or (before.state, before.reason) != (seen.state, seen.reason):
            await watch.listener.on_state(watch.handle, seen)
        if seen.state.terminal:
            _settle(watch, seen)
        return back or not seen.same_as(before)

    async def _tell_log(self, watch: _Watch) -> None:
        try:
            chunk = await self.platform.logs(watch.handle, since=watch.cursor)
        except (Unreachable, OSError):
            return
        watch.cursor = chunk.cursor
        if chunk.text:
            await watch.listener.on_log(watch.handle, chunk.text)

    async def _ask(self) -> None:
        """Ask each caller, once however many of its jobs we watch, whether its jobs are to be cancelled."""
        callers = {watch.should_cancel for watch in self._watches if watch.should_cancel and not watch.canceling}
        for caller in callers:
            if await caller():
                watches = [watch for watch in self._watches if watch.should_cancel == caller]
                for watch in watches:
                    watch.canceling = True
                task = asyncio.get_running_loop().create_task(self._cancel(watches))
                self._cancels.add(task)
                task.add_done_callback(self._cancels.discard)

    async def _cancel(self, watches: list[_Watch]) -> None:
        """End these jobs, verified; the next round tries again what could not be confirmed."""
        handles = [watch.handle for watch in watches if not watch.over.done()]
        try:
            seen = await self.platform.cancel(handles)
        except (CancelUnconfirmed, Unreachable, OSError) as error:
            for watch in watches:
                watch.canceling = False
                await watch.listener.on_state(
                    watch.handle, Observation(state=JobState.CANCELING, reason=f"not confirmed yet: {error}")
                )
            return
        for watch in watches:
            if watch.handle in seen:
                await self._tell(watch, seen[watch.handle], "")


def _settle(watch: _Watch, end: Observation | Exception) -> None:
    if watch.over.done():
        return
    if isinstance(end, Exception):
        watch.over.set_exception(end)
    else:
        watch.over.set_result(end)
