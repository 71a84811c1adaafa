"""What Prefect shows of a watched job, log lines and a live page, and what else listens in this process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextvars import ContextVar

from prefect import get_run_logger

from prefect_tao.jobs.describing import describe
from prefect_tao.jobs.events import Event, JobFound, Progressed, RetryPlanned, StateChanged
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.listening import Audience, Listener
from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.tasks.artifacts.job_page import JobPage
from prefect_tao.tasks.artifacts.pages import DRAW_SECONDS, quietly

LAST_SECONDS = 5.0

# What listens in this process: the command line's screen and run folder, found here by the flows that it runs.
listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


def everyone(*also: Listener, secrets: Mapping[str, str] | None = None) -> Audience:
    """All that listen in this process, and `also`; `secrets` are taken out of what they hear."""
    return Audience(*also, *listeners.get(), secrets=secrets)


async def report_findings(handle: JobHandle, findings: Iterable[Finding]) -> None:
    """Log what to know about a job that was found instead of launched, and pass it on to those that listen here."""
    audience = everyone()
    for finding in findings:
        get_run_logger().warning("%s; %s", finding.message, finding.remedy)
        await audience.hear(JobFound(handle, finding))


class Reporter(Listener):
    """Reports one step: state changes at once, progress at the monitoring interval, its page every few seconds."""

    def __init__(self, label: str, page: JobPage | None = None, seconds: float = DRAW_SECONDS) -> None:
        self.label = label
        self.page = page
        self.seconds = seconds
        self.handle: JobHandle | None = None
        self.logger = get_run_logger()
        self.state: Observation | None = None
        self.progress: Progress | None = None
        self._drawing: asyncio.Task[None] | None = None
        self._drawn_at: float | None = None

    async def hear(self, event: Event) -> None:
        """Log every change of state and why another attempt follows; draw progress when the last drawing is old."""
        match event:
            case StateChanged(handle, seen):
                self.handle, self.state = handle, seen
                self._draw_soon()
                why = f" ({seen.reason})" if seen.reason else ""
                level = logging.WARNING if seen.state is JobState.UNREACHABLE else logging.INFO
                self.logger.log(level, "%s: %s is %s%s", self.label, handle.name, seen.state.value, why)
            case Progressed(_, progress):
                self.progress = progress
                self._draw_soon()
            case RetryPlanned(handle, verdict, delay):
                why = f"{verdict.category.value}: {verdict.cause}"
                words = "%s: %s ended (%s); the next attempt starts in %s"
                self.logger.warning(words, self.label, handle.name, why, format_seconds(delay))

    def _draw_soon(self) -> None:
        """Start a drawing unless one is under way or the last one is new; a slow server must not hold the news up."""
        under_way = self._drawing is not None and not self._drawing.done()
        recent = self._drawn_at is not None and time.monotonic() - self._drawn_at < self.seconds
        if self.page and not under_way and not recent:
            self._drawing = asyncio.get_running_loop().create_task(self.draw())

    async def _draw_last(self) -> None:
        """Draw the end, after what is still being drawn, in bounded time."""
        last = asyncio.get_running_loop().create_task(self._draw_after(self._drawing))
        _, late = await asyncio.wait({last}, timeout=LAST_SECONDS)
        for task in late:
            task.cancel()

    async def _draw_after(self, drawing: asyncio.Task[None] | None) -> None:
        if drawing is not None:
            await drawing
        if self.progress is not None:  # a guess about a job that is over, or watched no longer, helps no one
            self.progress = self.progress.model_copy(update={"eta_seconds": None})
        if self.state is not None and not self.state.state.terminal:  # else its outcome follows
            await self.draw(watched=False)

    async def draw(self, watched: bool = True) -> None:
        """Bring the page up to date."""
        if self.page is None or self.handle is None or self.state is None:
            return
        self._drawn_at = time.monotonic()
        async with quietly(DRAW_SECONDS / 2):
            await self.page.show(self.handle, self.state, self.progress, watched)

    @contextlib.asynccontextmanager
    async def every(self, minutes: float) -> AsyncIterator[None]:
        """Log where the job stands every `minutes`, changed or not, for as long as the block lasts."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._repeat(minutes * 60)), loop.create_task(self._redraw())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await self._draw_last()

    async def _redraw(self) -> None:
        """A log grows although neither state nor progress change."""
        while self.page is not None:
            await asyncio.sleep(self.seconds)
            self._draw_soon()

    async def _repeat(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            if self.state:
                told = f", {describe(self.progress)}" if self.progress else ""
                self.logger.info("%s: %s%s", self.label, self.state.state.value, told)
