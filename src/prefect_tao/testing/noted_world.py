"""A world whose jobs write down what they do in a folder that both sides see, and do what files there tell them to."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import Counter
from pathlib import Path
from secrets import token_hex
from typing import Any

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.testing.world import Event, World

# Each run leaves a file of its own, and one that came to its end says how. A run that its service starts anew is not a
# second one: its number is part of the file's name.
COMMAND = """mktemp {notes}/run-$TAO_JOB_NAME.${{TAO_RESTARTS:-0}}-XXXXXX
until [ -e {notes}/go ] || [ -e {notes}/ends-$TAO_JOB_NAME ]; do
  if [ -e {notes}/fails-$TAO_JOB_NAME ]; then echo Error > {notes}/end-$TAO_JOB_NAME; exit 1; fi
  sleep 0.05
done
echo Complete > {notes}/end-$TAO_JOB_NAME"""
TOLD = {Event.ENDS_WELL: "ends", Event.FAILS: "fails"}


class NotedWorld(World):
    """The truth about jobs is in `notes`, and in what `living` sees of them."""

    events = frozenset(TOLD)

    def __init__(self, notes: Path, **fields: Any) -> None:
        notes.mkdir(parents=True)
        self.notes, self.fields = notes, fields
        self.secrets = {"TOKEN": f"secret-{token_hex(8)}"}
        self.asked_at: dict[str, float] = {}
        self.stopped_at: dict[str, float] = {}

    # -- what a service supplies ---------------------------------------------------------------------------------------

    @abstractmethod
    def living(self) -> list[str]:
        """The names of all jobs that run or wait to."""

    def was_asked_to_end(self, name: str) -> bool:
        """Whether somebody has cancelled the job: then its own end came at the same moment, and either will do."""
        return False

    # -- the world -----------------------------------------------------------------------------------------------------

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def request(self, refused: bool = False) -> JobRequest:
        return JobRequest.build(command=COMMAND.format(notes=self.notes), secrets=["TOKEN"], **self.fields)

    async def happens(self, event: Event, key: str) -> None:
        for name in self.live(key):
            (self.notes / f"{TOLD[event]}-{name}").touch()

    def is_told_to_end(self, name: str) -> bool:
        """Whether the job is about to end by itself."""
        return any((self.notes / note).exists() for note in ("go", f"ends-{name}", f"fails-{name}"))

    def let_end(self) -> None:
        (self.notes / "go").touch()

    def asked(self, key: str) -> None:
        self.asked_at[key] = time.time()

    def live(self, key: str) -> list[str]:
        return sorted(name for name in set(self.living()) if JobName.parse(name).key == key)

    def runs(self) -> Counter[str]:
        """How often each start of each job has run its command, by `NAME.RESTARTS`."""
        return Counter(path.name[len("run-") : -len("-XXXXXX")] for path in self.notes.glob("run-*"))

    def wrong(self) -> list[str]:
        runs = self.runs()
        names = sorted({JobName.parse(run.partition(".")[0]) for run in runs})
        found = [f"{run} has run {times} times" for run, times in runs.items() if times > 1]
        alive = [JobName.parse(name) for name in set(self.living())]
        keys = Counter(name.key for name in alive if name in names)
        found += [f"several jobs of {key} live" for key, times in keys.items() if times > 1]
        return found + [why for name in names if (why := self._unwanted(name))]

    def _unwanted(self, name: JobName) -> str:
        """Why there should be no such attempt; empty where one was due."""
        before = str(JobName(name.key, name.attempt - 1))
        if self._told_end(before) is JobState.COMPLETE:
            return f"{name} was started although {before} was complete"
        if self.asked_at[name.key] < self.stopped_at.get(before, 0.0):
            return f"{name} was started although a person had stopped {before}"
        return ""

    def _told_end(self, name: str) -> JobState | None:
        path = self.notes / f"end-{name}"
        text = path.read_text().strip() if path.exists() else ""
        return JobState(text) if text else None

    def ends(self, handle: JobHandle) -> set[JobState]:
        name = handle.name
        if told := self._told_end(name):
            was_stopped = name in self.stopped_at or self.was_asked_to_end(name)
            return {told, JobState.CANCELED} if was_stopped else {told}
        if name in self.living():
            return set()
        has_run = any(run.partition(".")[0] == name for run in self.runs())
        # What never ran may be forgotten; then nothing tells why.
        return {JobState.CANCELED} if has_run else {JobState.CANCELED, JobState.ERROR}
