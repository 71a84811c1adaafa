"""How many jobs a target takes at once, and how fast it is given new ones, over all runs and workers.

Jobs in flight are counted on the platform itself: a lease dies with its process, jobs do not. Only the short moment of
counting and submitting is taken in turns, by one global limit of Prefect per target.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from prefect import get_client
from prefect.concurrency.asyncio import concurrency
from prefect.concurrency.context import ConcurrencyContext

from prefect_tao.jobs.errors import JobCanceled, Unreachable
from prefect_tao.jobs.following import Submit
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import submit_once
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.retrying import PATIENCE_SECONDS, retry
from prefect_tao.jobs.watcher import ASK_SECONDS

TURN_SECONDS = 600.0
# A paced turn ends long before those who wait for theirs give up, and begins anew.
PACED_SECONDS = 60.0
# Why a job that waits is not to begin any more, or nothing; asked once for all that wait with the same question.
WhyNot = Callable[[], Awaitable[str]]


class _Waiting(NamedTuple):
    turn: asyncio.Future[None]
    why_not: WhyNot | None


class Room:
    """The room of one target in this process; tasks that wait to submit are let in as jobs end."""

    def __init__(self, platform: Platform, most: int | None = None, per_second: float | None = None) -> None:
        self._platform = platform
        self.most = most
        self._per_second = per_second
        self._waiting: deque[_Waiting] = deque()
        self._submitting = 0
        self._submitted = asyncio.Event()
        self._letting_in: asyncio.Task[None] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether a job may have to wait."""
        return self.most is not None or self._per_second is not None

    @contextlib.asynccontextmanager
    async def place(self, why_not: WhyNot | None = None) -> AsyncIterator[None]:
        """Wait for room for one more job on the target, and submit it in the block. Raises JobCanceled, Unreachable."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(_Waiting(turn, why_not))
        if self._letting_in is None or self._letting_in.done():
            self._letting_in = loop.create_task(self._let_in())
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # let in, even if cancelled just then
                self._submitting -= 1
                if self._submitting == 0:
                    self._submitted.set()

    def submit(self, why_not: WhyNot | None = None) -> Submit:
        """`submit_once`, when there is room. An attempt that was started elsewhere already takes none."""

        async def submit(
            platform: Platform, request: JobRequest, key: str, attempt: int, secrets: Mapping[str, str]
        ) -> JobHandle:
            new = self.is_limited and not await self._has(key, attempt)
            async with self.place(why_not) if new else contextlib.nullcontext():
                return await submit_once(platform, request, key, attempt, secrets)

        return submit

    async def _has(self, key: str, attempt: int) -> bool:
        found = (await retry(lambda: self._platform.find([key]))).get(key, [])
        return any(handle.attempt == attempt for handle in found)

    async def _let_in(self) -> None:
        loop = asyncio.get_running_loop()
        asking = loop.create_task(self._ask_on())
        give_up = loop.time() + PATIENCE_SECONDS
        try:
            while self._waiting:
                try:
                    async with _turn(f"tao-submit-{self._platform.target.replace('/', '-')}"):
                        await self._let_in_some()
                    give_up = loop.time() + PATIENCE_SECONDS
                except Unreachable as error:
                    # Silence is not a reason to give up at once, nor to keep the turn from others; a refused login is.
                    if not error.retryable or loop.time() > give_up:
                        self._refuse(error)
                if self._waiting:
                    await asyncio.sleep(self._platform.poll_seconds[0])
        except Exception as error:  # without a count nothing may be submitted; those that wait get the error
            self._refuse(error)
        finally:
            asking.cancel()

    async def _let_in_some(self) -> None:
        free = len(self._waiting)
        if self.most is not None:
            free = min(free, self.most - self._submitting - await self._platform.in_flight())
        if self._per_second is not None:
            free = min(free, max(1, int(PACED_SECONDS * self._per_second)))
        await self._dismiss()
        while free > 0 and self._waiting:
            if self._per_second:
                await self._keep_distance(1 / self._per_second)
                await self._dismiss()
            turn = self._next()
            if turn is None:
                break
            free -= 1
            self._submitting += 1
            self._submitted.clear()
            turn.set_result(None)
        if self._submitting:  # the next one who counts must see these jobs; a submission in doubt is counted by us
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._submitted.wait(), TURN_SECONDS)

    def _next(self) -> asyncio.Future[None] | None:
        while self._waiting:
            turn = self._waiting.popleft().turn
            if not turn.done():
                return turn
        return None

    async def _ask_on(self) -> None:
        """Let those go that are not wanted any more, even while no place becomes free for hours."""
        while True:
            await asyncio.sleep(ASK_SECONDS)
            await self._dismiss()

    async def _dismiss(self) -> None:
        for why_not in {one.why_not for one in self._waiting if one.why_not}:
            if why := await why_not():
                for one in self._waiting:
                    if one.why_not == why_not and not one.turn.done():
                        one.turn.set_exception(JobCanceled(f"not begun, because {why}", begun=False))
        self._waiting = deque(one for one in self._waiting if not one.turn.done())

    async def _keep_distance(self, seconds: float) -> None:
        """Wait before the next one; the distance counts from the submission, unless that takes even longer.

        Before and not after, because the one that submitted last may have ended since, and its turn with it.
        """
        if self._submitting:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._submitted.wait(), seconds)
        await asyncio.sleep(seconds)

    def _refuse(self, error: Exception) -> None:
        while self._waiting:
            turn = self._waiting.popleft().turn
            if not turn.done():
                turn.set_exception(error)


@contextlib.asynccontextmanager
async def _turn(name: str) -> AsyncIterator[None]:
    """The turn of this process among all that submit there; without a server's word, that of this process alone."""
    async with contextlib.AsyncExitStack() as stack:
        # Of its own: that of the task run which came first would give the turn back when that task run ends.
        stack.enter_context(ConcurrencyContext())
        with contextlib.suppress(Exception):
            await _make_limit(name)
            await stack.enter_async_context(concurrency(name, occupy=1, timeout_seconds=TURN_SECONDS))
        yield


_made: set[tuple[Any, str]] = set()


async def _make_limit(name: str) -> None:
    async with get_client() as client:
        if (client.api_url, name) not in _made:
            await client.upsert_global_concurrency_limit_by_name(name, 1)
            _made.add((client.api_url, name))
