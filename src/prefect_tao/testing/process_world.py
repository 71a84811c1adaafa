"""A platform whose jobs run on this machine, as a world for the fault machine: real processes behind a bad line."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.process import client
from prefect_tao.testing.hindered import FAULTS, HinderedPlatform
from prefect_tao.testing.this_machine import living, living_jobs
from prefect_tao.testing.world import Client, Event, World

# The job says in `notes` that it has begun and how it ended; what it is to do is a file there.
COMMAND = """mktemp {notes}/run-$TAO_JOB_NAME-XXXXXX
until [ -e {notes}/go ] || [ -e {notes}/ends-$TAO_JOB_NAME ]; do
  if [ -e {notes}/fails-$TAO_JOB_NAME ]; then echo Error > {notes}/end-$TAO_JOB_NAME; exit 1; fi
  sleep 0.05
done
echo Complete > {notes}/end-$TAO_JOB_NAME"""
WORDS = {Event.ENDS_WELL: "ends", Event.FAILS: "fails"}


class ProcessWorld(World):
    """Jobs as processes, all that they leave below `folder`; `open_at` opens the platform with its root there."""

    faults = FAULTS
    events = frozenset(WORDS)
    pauses = (0.0, 0.01, 0.03, 0.1, 0.3)
    settle_seconds = 90.0

    def __init__(self, folder: Path, open_at: Callable[[Path], Platform]) -> None:
        self.root, self.notes, self.open_at = folder / "root", folder / "notes", open_at
        self.notes.mkdir(parents=True)
        self.secrets = {"TOKEN": f"secret-{token_hex(8)}"}
        self.is_away = False
        self.opened: list[HinderedPlatform] = []

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def client(self) -> Client:
        platform = HinderedPlatform(self.open_at(self.root), lambda: self.is_away)
        self.opened.append(platform)

        def cut() -> None:
            platform.is_dead = True

        return Client(platform, platform.faults.append, cut)

    def request(self) -> JobRequest:
        return JobRequest.build(command=COMMAND.format(notes=self.notes), secrets=["TOKEN"])

    async def happens(self, event: Event, key: str) -> None:
        for name in self.live(key):
            (self.notes / f"{WORDS[event]}-{name}").touch()

    def set_away(self, away: bool) -> None:
        self.is_away = away

    def let_end(self) -> None:
        for platform in self.opened:
            platform.faults.clear()
        (self.notes / "go").touch()

    def wrong(self) -> list[str]:
        runs = Counter(re.sub("^run-|-[^-]*$", "", path.name) for path in self.notes.glob("run-*"))
        live: dict[str, list[str]] = {}
        for name in runs:
            if living(name):
                live.setdefault(name.rpartition("-")[0], []).append(name)
        twice = [f"{name} has run {times} times" for name, times in runs.items() if times > 1]
        return twice + [f"several live: {names}" for names in live.values() if len(names) > 1]

    def ends(self, handle: JobHandle) -> set[JobState]:
        if living(handle.name):
            return set()
        end = self.notes / f"end-{handle.name}"
        return {JobState(end.read_text().strip())} if end.exists() else {JobState.CANCELED}

    def live(self, key: str) -> list[str]:
        return [name for name in living_jobs() if JobName.parse(name).key == key]

    def secrets_left(self) -> list[str]:
        value = self.secrets["TOKEN"].encode()
        files = [path for path in self.root.rglob("*") if path.is_file()]
        return [str(path) for path in files if value in path.read_bytes()]

    def close(self) -> None:
        while left := client.carriers(f"{self.root.resolve()}/"):
            for ident in (ident for idents in left.values() for ident in idents):
                client.send(ident, signal.SIGKILL)
