"""A listener that hears no secrets: what a job has printed is passed on with their names in place of their values."""

from __future__ import annotations

from collections.abc import Mapping

from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.following import StepListener
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.redaction import Redactor, redacted
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import Verdict


class Hiding(StepListener):
    """Stands before another listener."""

    def __init__(self, listener: StepListener, secrets: Mapping[str, str]) -> None:
        self._listener = listener
        self._secrets = secrets
        self._logs: dict[str, Redactor] = {}

    @property
    def wants_logs(self) -> bool:  # type: ignore[override]
        """Whether the other one listens to logs."""
        return self._listener.wants_logs

    async def on_state(self, handle: JobHandle, seen: Observation) -> None:
        """Pass it on; after the end no more of the log comes, so what was held back of it goes first."""
        if seen.state.terminal and (rest := self._log(handle).rest()):
            await self._listener.on_log(handle, rest)
        await self._listener.on_state(handle, redacted(seen, self._secrets))

    async def on_progress(self, handle: JobHandle, progress: Progress) -> None:
        """Pass it on."""
        await self._listener.on_progress(handle, redacted(progress, self._secrets))

    async def on_log(self, handle: JobHandle, text: str) -> None:
        """Pass it on, without what may be the beginning of a secret."""
        if shown := self._log(handle).feed(text):
            await self._listener.on_log(handle, shown)

    async def on_finding(self, handle: JobHandle, finding: Finding) -> None:
        """Pass it on."""
        await self._listener.on_finding(handle, redacted(finding, self._secrets))

    async def on_retry(self, handle: JobHandle, verdict: Verdict, delay: float) -> None:
        """Pass it on."""
        await self._listener.on_retry(handle, redacted(verdict, self._secrets), delay)

    async def on_outcome(self, outcome: Outcome) -> None:
        """Pass it on."""
        await self._listener.on_outcome(redacted(outcome, self._secrets))

    def _log(self, handle: JobHandle) -> Redactor:
        return self._logs.setdefault(handle.name, Redactor(self._secrets))
