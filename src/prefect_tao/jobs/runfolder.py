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

from prefect_tao.jobs.chain_outcome import StepOutcome
from prefect_tao.jobs.clock import now
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.events import (
    Event,
    JobEnded,
    JobFound,
    LogWritten,
    PointChanged,
    Progressed,
    RetryPlanned,
    RunBegan,
    StateChanged,
    StepChanged,
    SweepStarted,
)
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.listening import Listener
from prefect_tao.jobs.points import PointOutcome
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.verdict import Verdict

LOG_LINES = 2000
WRITE_SECONDS = 1.0
OVER = ("Complete", "Error", "Canceled")


class RunFolder(Listener):
    """`<root>/<run>/<time>/`, kept up to date while jobs are watched.

    Files about all jobs are written about once a second, however many events come; `close` writes the last of them.
    """

    wants_logs = True

    def __init__(self, root: Path, run: str, metadata: Mapping[str, Any]) -> None:
        """Raises InvalidInput when the folder cannot be made."""
        self.folder = root.expanduser().absolute() / run / f"{datetime.now().astimezone():%Y%m%d_%H%M%S}"
        self._jobs: dict[str, dict[str, Any]] = {}
        self._parts: dict[str, dict[str, Mapping[str, Any]]] = {}  # the steps of a chain, the points of a sweep
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

    async def hear(self, event: Event) -> None:
        """Append the event and bring the files that it changes up to date."""
        match event:
            case RunBegan(flow_run_id):
                self._append("run", flow_run_id=flow_run_id)
            case StateChanged(handle, seen):
                state = seen.model_dump(mode="json", exclude={"progress"})
                self._append("state", job=handle.name, **state)
                self._note(handle, state)
            case Progressed(handle, progress):
                said = progress.model_dump(mode="json", exclude={"history"})
                self._append("progress", job=handle.name, **said)
                self._note(handle, {"progress": said})
            case LogWritten(_, text):
                self._log.extend(text.splitlines(keepends=True))
                self._write_soon("latest_logs.txt")
            case JobFound(handle, finding):
                said = finding.model_dump(mode="json", include={"level", "message", "remedy"})
                self._append("finding", job=handle.name, **said)
            case RetryPlanned(handle, verdict, delay):
                self._append("retry", job=handle.name, cause=verdict.cause, delay_seconds=delay)
                self._fail(handle, verdict)
            case JobEnded(outcome):
                if outcome.verdict and outcome.state is JobState.ERROR:
                    self._fail(outcome.handle, outcome.verdict)
            case StepChanged(step):
                self._part("step", step.name, _step_facts(step))
            case SweepStarted(board):
                self._parts["points"] = {point.name: _point_facts(point) for point in board.points}
                self._append("sweep", points=len(board.points), metric=board.metric, direction=board.direction)
                self._write_soon("status.json")
            case PointChanged(point):
                self._part("point", point.name, _point_facts(point))

    def _part(self, kind: str, name: str, facts: Mapping[str, Any]) -> None:
        """A step or a point as it stands now."""
        self._parts.setdefault(f"{kind}s", {})[name] = facts
        self._append(kind, **{kind: name}, **facts)
        self._write_soon("status.json")

    def close(self) -> None:
        """Write what is not written yet; nothing more is heard. A folder that is gone by then does not matter."""
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
        return _json({"updated": now().isoformat(), **self._parts, "jobs": self._jobs})

    def _append(self, event: str, **facts: Any) -> None:
        with open(self.folder / "status_events.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"at": now().isoformat(), "event": event, **facts}) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        part = self.folder / f".{name}.{token_hex(4)}"
        part.write_text(text, encoding="utf-8", errors="replace")
        os.replace(part, self.folder / name)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _step_facts(step: StepOutcome) -> dict[str, Any]:
    facts = step.model_dump(mode="json", include={"target", "after", "state", "message", "gpus", "begun_at"})
    outcome = step.outcome
    return {**facts, "job": outcome.handle.name if outcome else "", "results": outcome.results if outcome else ""}


def _point_facts(point: PointOutcome) -> dict[str, Any]:
    wanted = {"label", "overrides", "state", "metrics", "seconds", "results", "message"}
    facts = point.model_dump(mode="json", include=wanted)
    return {**facts, "job": point.handle.name if point.handle else ""}
