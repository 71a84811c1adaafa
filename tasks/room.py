"""How many jobs a target takes at once, and how fast it is given new ones, over all runs and workers.

Jobs in flight are counted on the platform itself: a lease dies with its process, jobs do not. Only the short moment of
counting and submitting is taken in turns, by one global limit of Prefect per target.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

from prefect import get_client
from prefect.concurrency.asyncio import concurrency
from prefect.concurrency.context import ConcurrencyContext

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import definite, submit_once
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest

TURN_SECONDS = 600.0
# A paced turn ends long before those who wait for theirs give up, and begins anew.
PACED_SECONDS = 60.0


class Room:
    """The room of one target in this process; tasks that wait to submit are let in as jobs end."""

    def __init__(self, platform: Platform, most: int | None = None, per_second: float | None = None) -> None:
        self._platform = platform
        self._most = most
        self._per_second = per_second
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._submitting = 0
        self._submitted = asyncio.Event()
        self._letting_in: asyncio.Task[None] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether anybody ever has to wait."""
        return self._most is not None or self._per_second is not None

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait until the target has room for one more job; submit it within the block."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
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

    async def submit(
        self, platform: Platform, request: JobRequest, key: str, attempt: int, secrets: Mapping[str, str]
    ) -> JobHandle:
        """As `submit_once`, when there is room. An attempt that somebody else has started already takes none."""
        async with self.place() if self.is_limited and not await self._has(key, attempt) else contextlib.nullcontext():
            return await submit_once(platform, request, key, attempt, secrets)

    async def _has(self, key: str, attempt: int) -> bool:
        found = (await definite(lambda: self._platform.find([key]))).get(key, [])
        return any(handle.attempt == attempt for handle in found)

    async def _let_in(self) -> None:
        pause = self._platform.poll_seconds[0]
        while self._waiting:
            try:
                async with _turn(f"tao-submit-{self._platform.target.replace('/', '-')}"):
                    await self._let_in_some()
            except Exception as error:  # nobody could count, so nobody may submit; who waits is told
                self._refuse(error)
                return
            if self._waiting:
                await asyncio.sleep(pause)

    async def _let_in_some(self) -> None:
        free = len(self._waiting)
        if self._most is not None:
            free = min(free, self._most - await self._platform.in_flight())
        if self._per_second is not None:
            free = min(free, max(1, int(PACED_SECONDS * self._per_second)))
        for _ in range(free):
            if self._per_second:
                await self._keep_distance(1 / self._per_second)
            turn = self._waiting.popleft()
            if turn.done():
                continue
            self._submitting += 1
            self._submitted.clear()
            turn.set_result(None)
        if self._submitting:  # the next one who counts must see these jobs
            await asyncio.wait_for(self._submitted.wait(), TURN_SECONDS)

    async def _keep_distance(self, seconds: float) -> None:
        """Wait before the next one; the distance counts from the submission, unless that takes even longer.

        Before and not after, because whoever submitted last may have ended since, and its turn with it.
        """
        if self._submitting:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._submitted.wait(), seconds)
        await asyncio.sleep(seconds)

    def _refuse(self, error: Exception) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
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
