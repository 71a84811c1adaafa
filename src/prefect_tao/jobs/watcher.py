"""The watcher: one per target and event loop, asking about all its jobs in one call per interval.

It waits longer while nothing changes, costs no thread per job, and takes silence for silence: a job that cannot be
seen is shown as Unreachable and kept. It knows nothing of Prefect; who waits may give a `should_cancel` to be asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from prefect_tao.jobs.errors import CancelUnconfirmed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress

logger = logging.getLogger(__name__)

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
        soonest = next_look
        while self._watches:
            self._news.clear()
            if loop.time() >= next_look:
                changed = await self._look()
                interval = shortest if changed else min(interval * SLOWDOWN, longest)
                next_look, soonest = loop.time() + interval, loop.time() + shortest
            if loop.time() >= next_ask:
                await self._ask()
                next_ask = loop.time() + ASK_SECONDS
            if await self._pause(min(next_look, next_ask) - loop.time()):
                interval, next_look = shortest, min(next_look, soonest)  # many that come at once share one look

    async def _pause(self, seconds: float) -> bool:
        """Sleep; True when a new job came meanwhile and wants to be looked at now."""
        try:
            await asyncio.wait_for(self._news.wait(), max(seconds, 0.0))
        except TimeoutError:
            return False
        return True

    async def _look(self) -> bool:
        watches = [watch for watch in self._watches if not watch.over.done()]
        if not watches:
            return False
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
        changed = False
        for watch in watches:
            try:
                changed |= await self._tell(watch, seen.get(watch.handle), silence)
            except Exception as error:  # a listener's fault is for the one who waits, and for nobody else
                _settle(watch, error)
                changed = True
        return changed

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
            await self._tell_log(watch, to_the_end=seen.state.terminal)
        if seen.progress and (before is None or before.progress != seen.progress):
            await watch.listener.on_progress(watch.handle, seen.progress)
        if back or before is None or (before.state, before.reason) != (seen.state, seen.reason):
            await watch.listener.on_state(watch.handle, seen)
        if seen.state.terminal:
            _settle(watch, seen)
        return back or not seen.same_as(before)

    async def _tell_log(self, watch: _Watch, to_the_end: bool) -> None:
        """One piece of the log per look; all the rest of it once the job is over."""
        while True:
            try:
                chunk = await self.platform.logs(watch.handle, since=watch.cursor)
            except (Unreachable, OSError):
                return
            watch.cursor = chunk.cursor
            if chunk.text:
                await watch.listener.on_log(watch.handle, chunk.text)
            if not (to_the_end and chunk.text):
                return

    async def _ask(self) -> None:
        """Ask each caller, once however many of its jobs we watch, whether its jobs are to be cancelled."""
        callers = list({watch.should_cancel for watch in self._watches if watch.should_cancel and not watch.canceling})
        answers = await asyncio.gather(*map(wants_cancel, callers))
        for caller in (caller for caller, answer in zip(callers, answers, strict=True) if answer):
            watches = [watch for watch in self._watches if watch.should_cancel == caller and not watch.over.done()]
            for watch in watches:
                watch.canceling = True
            task = asyncio.get_running_loop().create_task(self._cancel(watches))
            self._cancels.add(task)
            task.add_done_callback(self._cancels.discard)

    async def _cancel(self, watches: list[_Watch]) -> None:
        """End these jobs, verified; the next round tries again what could not be confirmed."""
        try:
            await self.platform.cancel(list({watch.handle: None for watch in watches}))
        except (CancelUnconfirmed, Unreachable, OSError) as error:
            unconfirmed = Observation(state=JobState.CANCELING, reason=f"not confirmed yet: {error}")
            for watch in watches:
                watch.canceling = False
                with suppress(Exception):
                    await watch.listener.on_state(watch.handle, unconfirmed)
        except Exception as error:
            for watch in watches:
                _settle(watch, error)
        self._news.set()


async def wants_cancel(caller: ShouldCancel) -> bool:
    """The caller's answer; one that cannot answer has not asked for a cancellation."""
    try:
        return await asyncio.wait_for(caller(), ANSWER_SECONDS)
    except Exception as error:
        logger.warning("whether to cancel could not be found out, it is asked again: %s", error)
        return False


def _settle(watch: _Watch, end: Observation | Exception) -> None:
    if watch.over.done():
        return
    if isinstance(end, Exception):
        watch.over.set_exception(end)
    else:
        watch.over.set_result(end)
