"""Any driver behind a bad line: calls get lost on the way there, and answers on the way back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import LogChunk, Platform, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.verdict import Verdict

T = TypeVar("T")
FAULTS = ("none", "lost call", "lost answer", "left out")


class HinderedPlatform(Platform):
    """Calls `inner` as the line allows. With `is_dead` its process was killed: nothing that it still wants is done."""

    def __init__(self, inner: Platform, is_away: Callable[[], bool]) -> None:
        self.inner, self.is_away = inner, is_away
        self.target, self.poll_seconds = inner.target, inner.poll_seconds
        self.denial_seconds = inner.denial_seconds
        self.faults: deque[str] = deque()
        self.is_dead = False

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        fault = self.faults.popleft() if self.faults else "none"
        await self._live()
        if self.is_away() or fault == "lost call":
            raise Unreachable("the call was lost", "wait")
        answer = await call()
        await self._live()
        if fault == "lost answer":
            raise Unreachable("the answer was lost", "wait")
        if fault == "left out" and isinstance(answer, dict) and all(isinstance(key, JobHandle) for key in answer):
            answer.clear()
        return answer

    async def _live(self) -> None:
        if self.is_dead:
            await asyncio.get_running_loop().create_future()

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """As the driver does."""
        return self.inner.render(request, key, attempt)

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """As the driver does, if the line lets it."""
        return await self._call(lambda: self.inner.submit(rendered, secrets))

    async def observe(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """As the driver does, if the line lets it."""
        return await self._call(lambda: self.inner.observe(handles))

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """As the driver does, if the line lets it."""
        return await self._call(lambda: self.inner.logs(handle, tail=tail, since=since))

    async def cancel(self, handles: Sequence[JobHandle], timeout: float = 60.0) -> dict[JobHandle, Observation]:
        """As the driver does, if the line lets it; it answers for all of the jobs or for none."""
        seen = await self._call(lambda: self.inner.cancel(handles, timeout))
        if len(seen) < len(set(handles)):
            raise Unreachable("the answer was cut", "wait")
        return seen

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """As the driver does, if the line lets it."""
        return await self._call(lambda: self.inner.diagnose(handle))

    async def site(self) -> str:
        """As the driver does, if the line lets it."""
        return await self._call(self.inner.site)

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """As the driver does, if the line lets it."""
        return await self._call(lambda: self.inner.find(keys))

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """As the driver does, if the line lets it."""
        return await self._call(lambda: self.inner.jobs(labels))

    async def check_path(self, uri: str) -> bool:
        """As the driver does, if the line lets it."""
        return await self._call(lambda: self.inner.check_path(uri))

    async def list_path(self, uri: str) -> list[str]:
        """As the driver does, if the line lets it."""
        return await self._call(lambda: self.inner.list_path(uri))

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """As the driver does, if the line lets it."""
        return await self._call(lambda: self.inner.probe(request))

    def settings(self) -> dict[str, Any]:
        """The driver's."""
        return self.inner.settings()
