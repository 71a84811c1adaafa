"""A run as files in a folder, for people and programs that read files: what runs, where it stands, why it failed.

Each file is written whole or not at all; events are appended. A folder that cannot be written never disturbs a job.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.following import StepListener
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.state import JobState, Observation, now
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import Verdict
from prefect_tao.jobs.watcher import Guarded

LOG_LINES = 2000
WRITE_SECONDS = 1.0
OVER = ("Complete", "Error", "Canceled")


class RunFolder(StepListener):
    """`<root>/<run>/<time>/`, kept up to date while jobs are watched.

    Files that tell of all jobs are written about once a second, however much is heard; `close` writes the last of them.
    """

    wants_logs = True

    def __init__(self, root: Path, run: str, metadata: Mapping[str, Any]) -> None:
        """Raises InvalidInput when the folder cannot be made."""
        self.folder = root.expanduser().absolute() / run / f"{datetime.now().astimezone():%Y%m%d_%H%M%S}"
        self._jobs: dict[str, dict[str, Any]] = {}
        self._failures: dict[str, dict[str, Any]] = {}
        self._log: deque[str] = deque(maxlen=LOG_LINES)
        self._unwritten: set[str] = set()
        self._written_at = -WRITE_SECONDS
        self._later: asyncio.TimerHandle | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write_text("metadata.json", _json({"run": run, "created": now().isoformat(), **metadata}))
            self._write_text("active_jobs.json", _json([]))
        except OSError as error:
            raise InvalidInput(
                f"the run folder {self.folder} cannot be written: {error.strerror}", "choose another --run-dir"
            ) from error

    async def on_state(self, handle: JobHandle, seen: Observation) -> None:
        """An event, the newest status of all jobs, and which of them are not over."""
        state = seen.model_dump(mode="json", exclude={"progress"})
        self._event({"event": "state", "job": handle.name, **state})
        self._note(handle, state)

    async def on_progress(self, handle: JobHandle, progress: Progress) -> None:
        """How far the job is."""
        told = progress.model_dump(mode="json", exclude={"history"})
        self._event({"event": "progress", "job": handle.name, **told})
        self._note(handle, {"progress": told})

    async def on_log(self, handle: JobHandle, text: str) -> None:
        """The newest lines of all jobs' logs."""
        self._log.extend(text.splitlines(keepends=True))
        self._write_soon("latest_logs.txt")

    async def on_finding(self, handle: JobHandle, finding: Finding) -> None:
        """An event."""
        told = finding.model_dump(mode="json", include={"level", "message", "remedy"})
        self._event({"event": "finding", "job": handle.name, **told})

    async def on_retry(self, handle: JobHandle, verdict: Verdict, delay: float) -> None:
        """Why an attempt failed, and that another one follows."""
        self._event({"event": "retry", "job": handle.name, "cause": verdict.cause, "delay_seconds": delay})
        self._fail(handle, verdict)

    async def on_outcome(self, outcome: Outcome) -> None:
        """Why a job failed."""
        if outcome.verdict and outcome.state is JobState.ERROR:
            self._fail(outcome.handle, outcome.verdict)

    def close(self) -> None:
        """Write what is not written yet; nothing more is heard. A folder that is gone is nobody's trouble any more."""
        with suppress(OSError):
            self._write_all()

    def _fail(self, handle: JobHandle, verdict: Verdict) -> None:
        step = handle.labels.get("step", "")
        self._failures[handle.name] = {"job": handle.name, "step": step, **verdict.as_failure_analysis()}
        self._write_soon("failure_analysis.json")

    def _note(self, handle: JobHandle, facts: Mapping[str, Any]) -> None:
        job = self._jobs.setdefault(handle.name, {"handle": handle.model_dump(mode="json"), "state": "Pending"})
        job.update(facts)
        self._write_soon("status.json", "active_jobs.json")

    def _write_soon(self, *names: str) -> None:
        self._unwritten.update(names)
        wait = self._written_at + WRITE_SECONDS - time.monotonic()
        if wait <= 0:
            self._write_all()
        elif self._later is None:
            self._later = asyncio.get_running_loop().call_later(wait, self.close)

    def _write_all(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        names, self._unwritten = self._unwritten, set()
        for name in sorted(names):
            self._write_text(name, self._text(name))
        self._written_at = time.monotonic()

    def _text(self, name: str) -> str:
        if name == "latest_logs.txt":
            return "".join(self._log)
        if name == "failure_analysis.json":  # the newest failure, and all of them
            failures = list(self._failures.values())
            return _json({**failures[-1], "failures": failures})
        if name == "active_jobs.json":
            return _json([job["handle"] for job in self._jobs.values() if job["state"] not in OVER])
        return _json({"updated": now().isoformat(), "jobs": self._jobs})

    def _event(self, event: Mapping[str, Any]) -> None:
        with open(self.folder / "status_events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"at": now().isoformat(), **event}) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        part = self.folder / f".{name}.{token_hex(4)}"
        part.write_text(text, encoding="utf-8", errors="replace")
        os.replace(part, self.folder / name)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


class Together(StepListener):
    """Several listeners as one; one that fails does not keep the news from the others."""

    def __init__(self, *listeners: StepListener) -> None:
        self._ears = [Guarded(listener) for listener in listeners]

    @property
    def wants_logs(self) -> bool:  # type: ignore[override]
        """Whether any of them listens to logs."""
        return any(ear.wants_logs for ear in self._ears)

    async def on_state(self, handle: JobHandle, seen: Observation) -> None:
        """Tell all."""
        for ear in self._ears:
            await ear.hear(lambda listener: listener.on_state(handle, seen))

    async def on_progress(self, handle: JobHandle, progress: Progress) -> None:
        """Tell all."""
        for ear in self._ears:
            await ear.hear(lambda listener: listener.on_progress(handle, progress))

    async def on_log(self, handle: JobHandle, text: str) -> None:
        """Tell those that listen to logs."""
        for ear in self._ears:
            if ear.wants_logs:
                await ear.hear(lambda listener: listener.on_log(handle, text))

    async def on_finding(self, handle: JobHandle, finding: Finding) -> None:
        """Tell all."""
        for ear in self._ears:
            await ear.hear(lambda listener: listener.on_finding(handle, finding))

    async def on_retry(self, handle: JobHandle, verdict: Verdict, delay: float) -> None:
        """Tell all."""
        for ear in self._ears:
            await ear.hear(lambda listener: listener.on_retry(handle, verdict, delay))

    async def on_outcome(self, outcome: Outcome) -> None:
        """Tell all."""
        for ear in self._ears:
            await ear.hear(lambda listener: listener.on_outcome(outcome))
