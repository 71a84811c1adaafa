"""What a watched job tells: Prefect log lines, a progress artifact, and whoever else listens in this process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextvars import ContextVar
from uuid import UUID

from prefect import get_run_logger
from prefect.artifacts import acreate_progress_artifact, aupdate_progress_artifact

from prefect_tao.jobs.describing import describe
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.following import StepListener
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.hiding import Hiding
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.jobs.redaction import redacted
from prefect_tao.jobs.runfolder import Together
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import Verdict
from prefect_tao.jobs.watcher import Guarded
from prefect_tao.tasks.artifacts.pages import quietly

ARTIFACT_SECONDS = 10.0
LAST_SECONDS = 5.0

# The command line sets this to draw live progress; flows run by it in the same process find it here.
audience: ContextVar[StepListener | None] = ContextVar("audience", default=None)
# Where it also keeps what it hears, for programs that read files.
recorder: ContextVar[StepListener | None] = ContextVar("recorder", default=None)


def _listeners() -> Together:
    return Together(*(one for one in (audience.get(), recorder.get()) if one))


async def tell_findings(handle: JobHandle, findings: Iterable[Finding]) -> None:
    """Log what to know about a job that was found instead of launched, and tell whoever listens here."""
    ears = Guarded(_listeners())
    for finding in findings:
        get_run_logger().warning("%s; %s", finding.message, finding.remedy)
        await ears.hear(lambda listener: listener.on_finding(handle, finding))  # noqa: B023 - awaited at once


class Reporter(StepListener):
    """Reports one step: state changes at once, progress at the monitoring interval, the artifact every few seconds."""

    def __init__(self, label: str, key: str, secrets: Mapping[str, str] | None = None, draws: bool = True) -> None:
        self._secrets = secrets or {}  # what the job may have printed, and no log line may repeat
        self.label = label
        self.key = key
        self.draws = draws
        self.logger = get_run_logger()
        # What fails on a screen is no fault of this report.
        self.others = Guarded(Hiding(_listeners(), self._secrets))
        self.wants_logs = self.others.wants_logs
        self.state: Observation | None = None
        self.progress: Progress | None = None
        self._artifact: UUID | None = None
        self._drawing: asyncio.Task[None] | None = None
        self._drawn_at: float | None = None

    async def on_state(self, handle: JobHandle, seen: Observation) -> None:
        """Log every change of state."""
        self.state = seen = redacted(seen, self._secrets)
        why = f" ({seen.reason})" if seen.reason else ""
        level = "warning" if seen.state is JobState.UNREACHABLE else "info"
        getattr(self.logger, level)("%s: %s is %s%s", self.label, handle.name, seen.state.value, why)
        await self.others.hear(lambda other: other.on_state(handle, seen))

    async def on_progress(self, handle: JobHandle, progress: Progress) -> None:
        """Keep the newest progress, and draw it when the last drawing is old enough."""
        self.progress = progress
        self._draw_soon()
        await self.others.hear(lambda other: other.on_progress(handle, progress))

    async def on_log(self, handle: JobHandle, text: str) -> None:
        """The job's own output goes to who listens here, not into Prefect's database."""
        await self.others.hear(lambda other: other.on_log(handle, text))
        self.wants_logs = self.others.wants_logs

    async def on_retry(self, handle: JobHandle, verdict: Verdict, delay: float) -> None:
        """Say why another attempt follows."""
        verdict = redacted(verdict, self._secrets)
        self.logger.warning(
            "%s: %s ended (%s: %s); the next attempt starts in %s",
            self.label,
            handle.name,
            verdict.category.value,
            verdict.cause,
            format_seconds(delay),
        )
        await self.others.hear(lambda other: other.on_retry(handle, verdict, delay))

    async def on_outcome(self, outcome: Outcome) -> None:
        """The end is for who listens here; what is told of it in Prefect is a page."""
        await self.others.hear(lambda other: other.on_outcome(outcome))

    def _draw_soon(self) -> None:
        """Start a drawing unless one is under way or the last one is new; a slow server must not hold the news up."""
        under_way = self._drawing is not None and not self._drawing.done()
        recent = self._drawn_at is not None and time.monotonic() - self._drawn_at < ARTIFACT_SECONDS
        if not under_way and not recent:
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
        await self.draw()

    async def draw(self) -> None:
        """Create or update the one progress artifact of this step."""
        if not self.draws or self.progress is None or self.progress.fraction is None:
            return
        self._drawn_at = time.monotonic()
        percent, text = 100 * self.progress.fraction, f"{self.label}: {describe(self.progress)}"
        async with quietly(ARTIFACT_SECONDS / 2):
            if self._artifact is None:
                self._artifact = await acreate_progress_artifact(
                    progress=percent, key=f"progress-{self.key}", description=text
                )
            else:
                await aupdate_progress_artifact(self._artifact, progress=percent, description=text)

    @contextlib.asynccontextmanager
    async def every(self, minutes: float) -> AsyncIterator[None]:
        """Log where the job stands every `minutes`, changed or not, for as long as the block lasts."""
        task = asyncio.get_running_loop().create_task(self._repeat(minutes * 60))
        try:
            yield
        finally:
            task.cancel()
            await self._draw_last()

    async def _repeat(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            if self.state:
                told = f", {describe(self.progress)}" if self.progress else ""
                self.logger.info("%s: %s%s", self.label, self.state.state.value, told)
