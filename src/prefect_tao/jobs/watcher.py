"""The watcher: one per target and event loop, asking about all its jobs in one call per interval.

It waits longer while nothing changes, costs no thread per job, and takes silence for silence: a job that cannot be
seen is shown as Unreachable and kept. It knows nothing of Prefect; a caller may give a `should_cancel` to be asked.
Looking, asking and reporting are separate: neither a platform that hangs nor a slow listener delays the others, and
nothing that a listener does can end a wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from prefect_tao.jobs.errors import CancelUnconfirmed, Unreachable
from prefect_tao.jobs.events import LogWritten, Progressed, StateChanged
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.listening import Audience, Listener, audience, is_own_cancellation
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.waiting import saying

logger = logging.getLogger("prefect_tao.watcher")

ASK_SECONDS = 5.0
ANSWER_SECONDS = 120.0
# How long a look may take before it is said that there is no answer.
LOOK_SECONDS = 4.5
SLOWDOWN = 1.5

ShouldCancel = Callable[[], Awaitable[bool]]
Complete = Callable[[], Awaitable[object]]


@dataclass(eq=False)
class _Watch:
    handle: JobHandle
    audience: Audience
    should_cancel: ShouldCancel | None
    over: asyncio.Future[Observation]
    complete: Complete | None = None
    completing: bool = False
    seen: Observation | None = None
    unreachable: bool = False
    canceling: bool = False
    # What is still to be sent: every change of state, and of the progress and the log only the newest.
    end: Observation | None = None
    states: deque[Observation] = field(default_factory=deque)
    progress: Progress | None = None
    cursor: str | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def see(self, seen: Observation) -> bool:
        """Take in what was seen; whether anything about it is new."""
        before, back = self.seen, self.unreachable
        self.seen, self.unreachable = seen, False
        if seen.progress and (before is None or before.progress != seen.progress):
            self.progress = seen.progress
        if back or before is None or (before.state, before.reason) != (seen.state, seen.reason):
            self.states.append(seen)
        if seen.state.terminal:
            self.end = seen
        self.news.set()
        return back or not seen.same_as(before)

    def miss(self, silence: str) -> bool:
        """Take in that nothing was seen; whether that is new."""
        if self.unreachable:
            return False
        self.unreachable = True
        self.note(Observation(state=JobState.UNREACHABLE, reason=silence))
        return True

    def note(self, state: Observation) -> None:
        """Send a state that is about the job without being its own."""
        self.states.append(state)
        self.news.set()

    def settle(self, end: Observation | Exception) -> None:
        """Let the one who waits go."""
        if self.over.done():
            return
        if isinstance(end, Exception):
            self.over.set_exception(end)
        else:
            self.over.set_result(end)


class Watcher:
    """Watches the jobs of one platform for as long as anyone waits for one."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._watches: list[_Watch] = []
        self._looking: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._errands: set[asyncio.Task[None]] = set()
        self._asked: set[ShouldCancel] = set()
        self._speechless: set[ShouldCancel] = set()
        self._news = asyncio.Event()

    async def wait(
        self,
        handle: JobHandle,
        listener: Listener | None = None,
        should_cancel: ShouldCancel | None = None,
        complete: Complete | None = None,
    ) -> Observation:
        """The job's terminal observation. Cancelling this call detaches from the job and leaves it running.

        `complete` starts a job that was made and never started, because its launcher died in between.
        """
        loop = asyncio.get_running_loop()
        watch = _Watch(handle, audience(listener), should_cancel, loop.create_future(), complete)
        self._watches.append(watch)
        self._news.set()
        if self._looking is None or self._looking.done():
            self._looking = loop.create_task(self._look_on())
        if self._asking is None or self._asking.done():
            self._asking = loop.create_task(self._ask_on())
        reporting = loop.create_task(self._report_on(watch))
        try:
            return await watch.over
        finally:
            self._watches.remove(watch)
            reporting.cancel()

    # -- looking -------------------------------------------------------------------------------------------------------

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        shortest, longest = self.platform.poll_seconds
        interval, next_look, soonest = shortest, loop.time(), loop.time()
        while self._watches:
            self._news.clear()
            if loop.time() >= next_look:
                changed = await self._look()
                interval = shortest if changed else min(interval * SLOWDOWN, longest)
                next_look, soonest = loop.time() + interval, loop.time() + shortest
            # Never a long sleep, because the last caller may be gone by then.
            if await self._pause(min(next_look - loop.time(), ASK_SECONDS)):
                interval, next_look = shortest, min(next_look, soonest)  # many that come at once share one look

    async def _pause(self, seconds: float) -> bool:
        """Sleep; True when a new job came meanwhile and wants to be looked at now."""
        try:
            await asyncio.wait_for(self._news.wait(), max(seconds, 0.0))
        except TimeoutError:
            return False
        return True

    async def _look(self) -> bool:
        watches = [watch for watch in self._watches if watch.end is None and not watch.over.done()]
        if not watches:
            return False
        try:
            async with saying(lambda: f"{self.platform.target} does not answer; its jobs go on", LOOK_SECONDS):
                seen = await asyncio.wait_for(
                    self.platform.observe(list({watch.handle: None for watch in watches})), ANSWER_SECONDS
                )
            silence = "the platform's answer left this job out"
        except (Unreachable, OSError, TimeoutError) as error:
            seen, silence = {}, str(error) or "the platform did not answer in time"
        except Exception as error:
            for watch in watches:  # a fault of the driver; better loud than a silent wait for ever
                watch.settle(error)
            return True
        changed = False
        for watch in watches:
            now = seen.get(watch.handle)
            changed |= watch.miss(silence) if now is None else watch.see(now)
            if now and now.unstarted and watch.complete and not watch.completing and not watch.canceling:
                watch.completing = True
                self._start(self._complete(watch, watch.complete))
        return changed

    async def _complete(self, watch: _Watch, complete: Complete) -> None:
        """Start what was left half-way; the next look tries again where that got no answer."""
        try:
            await complete()
        except (Unreachable, OSError):
            pass
        except Exception as error:
            watch.settle(error)
        watch.completing = False
        self._news.set()

    # -- reporting -----------------------------------------------------------------------------------------------------

    async def _report_on(self, watch: _Watch) -> None:
        """Send one audience all its events, in order and at its own pace, and let its caller go at the end."""
        try:
            while not watch.over.done():
                await watch.news.wait()
                watch.news.clear()
                end = watch.end
                await self._report(watch)
                if end:
                    watch.settle(end)
        except Exception as error:  # a fault of ours; better loud than a silent wait for ever
            watch.settle(error)

    async def _report(self, watch: _Watch) -> None:
        if watch.audience.wants_logs:
            await self._report_log(watch, to_the_end=watch.end is not None)
        if progress := watch.progress:
            watch.progress = None
            await watch.audience.hear(Progressed(watch.handle, progress))
        while watch.states:
            await watch.audience.hear(StateChanged(watch.handle, watch.states.popleft()))

    async def _report_log(self, watch: _Watch, to_the_end: bool) -> None:
        """One piece of the log per look; all the rest of it once the job is over."""
        while watch.audience.wants_logs:
            try:
                chunk = await asyncio.wait_for(self.platform.logs(watch.handle, since=watch.cursor), ANSWER_SECONDS)
            except (Unreachable, OSError):
                return
            watch.cursor, text = chunk.cursor, chunk.text
            if text:
                await watch.audience.hear(LogWritten(watch.handle, text))
            if not (to_the_end and text):
                return

    # -- asking --------------------------------------------------------------------------------------------------------

    async def _ask_on(self) -> None:
        await asyncio.sleep(min(ASK_SECONDS, self.platform.poll_seconds[1]))
        while self._watches:
            self._ask()
            await asyncio.sleep(ASK_SECONDS)

    def _ask(self) -> None:
        """Ask each caller, once however many of its jobs we watch, whether its jobs are to be cancelled.

        The answers are not awaited here: a caller that is slow to answer must not keep the others from being asked.
        """
        callers = {watch.should_cancel for watch in self._watches if watch.should_cancel and not watch.canceling}
        for caller in callers - self._asked:
            self._asked.add(caller)
            self._start(self._ask_one(caller))

    async def _ask_one(self, caller: ShouldCancel) -> None:
        try:
            if not await self.wants_cancel(caller):
                return
        finally:
            self._asked.discard(caller)
        watches = [watch for watch in self._watches if watch.should_cancel == caller and not watch.over.done()]
        for watch in watches:
            watch.canceling = True
        if watches:
            self._start(self._cancel(watches))

    async def wants_cancel(self, caller: ShouldCancel) -> bool:
        """The caller's answer; one that cannot answer has not asked for a cancellation."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await caller()
        except (Exception, asyncio.CancelledError) as error:
            if is_own_cancellation(error):
                raise
            if caller not in self._speechless:  # logged once, not with every question
                self._speechless.add(caller)
                logger.warning("could not find out whether to cancel; asking again: %r", error)
            return False
        self._speechless.discard(caller)
        return answer

    async def _cancel(self, watches: list[_Watch]) -> None:
        """End these jobs, verified; the next round tries again what could not be confirmed."""
        try:
            handles = list({watch.handle: None for watch in watches})
            await asyncio.wait_for(self.platform.cancel(handles), ANSWER_SECONDS)
        except (CancelUnconfirmed, Unreachable, OSError) as error:
            unconfirmed = Observation(state=JobState.CANCELING, reason=f"not confirmed yet: {error}")
            for watch in watches:
                watch.canceling = False
                if watch.end is None:
                    watch.note(unconfirmed)
        except Exception as error:
            for watch in watches:
                watch.settle(error)
        self._news.set()

    def _start(self, errand: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)  # the event loop alone would let go of it
        task.add_done_callback(self._errands.discard)
