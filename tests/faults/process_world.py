"""The process platform as a world for the fault machine: real processes here, behind a bad line."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from pathlib import Path
from secrets import token_hex

from opened_platforms import process_at
from processes import living

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.process import client
from prefect_tao.testing.hindered import FAULTS, HinderedPlatform
from prefect_tao.testing.world import Client, Event, World

# The job says in `told` that it has begun and how it ended; words for it are files there.
COMMAND = """mktemp {told}/run-$TAO_JOB_NAME-XXXXXX
until [ -e {told}/go ] || [ -e {told}/ends-$TAO_JOB_NAME ]; do
  if [ -e {told}/fails-$TAO_JOB_NAME ]; then echo Error > {told}/end-$TAO_JOB_NAME; exit 1; fi
  sleep 0.05
done
echo Complete > {told}/end-$TAO_JOB_NAME"""
WORDS = {Event.ENDS_WELL: "ends", Event.FAILS: "fails"}


class ProcessWorld(World):
    """Jobs as processes below `folder`."""

    faults = FAULTS
    events = frozenset(WORDS)
    pauses = (0.0, 0.01, 0.03, 0.1, 0.3)
    settle_seconds = 90.0

    def __init__(self, folder: Path) -> None:
        self.root, self.told = folder / "root", folder / "told"
        self.told.mkdir(parents=True)
        self.secrets = {"TOKEN": f"secret-{token_hex(8)}"}
        self.is_away = False
        self.opened: list[HinderedPlatform] = []

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def client(self) -> Client:
        platform = HinderedPlatform(process_at(self.root), lambda: self.is_away)
        self.opened.append(platform)

        def cut() -> None:
            platform.is_dead = True

        return Client(platform, platform.faults.append, cut)

    def request(self) -> JobRequest:
        return JobRequest.build(command=COMMAND.format(told=self.told), secrets=["TOKEN"])

    async def happens(self, event: Event, key: str) -> None:
        for name in self.live(key):
            (self.told / f"{WORDS[event]}-{name}").touch()

    def set_away(self, away: bool) -> None:
        self.is_away = away

    def let_end(self) -> None:
        for platform in self.opened:
            platform.faults.clear()
        (self.told / "go").touch()

    def wrong(self) -> list[str]:
        runs = Counter(re.sub("^run-|-[^-]*$", "", path.name) for path in self.told.glob("run-*"))
        live: dict[str, list[str]] = {}
        for name in runs:
            if living(name):
                live.setdefault(name.rpartition("-")[0], []).append(name)
        twice = [f"{name} has run {times} times" for name, times in runs.items() if times > 1]
        return twice + [f"several live: {names}" for names in live.values() if len(names) > 1]

    def ends(self, handle: JobHandle) -> set[JobState]:
        if living(handle.name):
            return set()
        end = self.told / f"end-{handle.name}"
        return {JobState(end.read_text().strip())} if end.exists() else {JobState.CANCELED}

    def live(self, key: str) -> list[str]:
        names = [path.name for path in (self.root / "jobs").glob(f"tao-{key}-*")]
        return [name for name in names if living(name)]

    def secrets_left(self) -> list[str]:
        value = self.secrets["TOKEN"].encode()
        files = [path for path in self.root.rglob("*") if path.is_file()]
        return [str(path) for path in files if value in path.read_bytes()]

    def close(self) -> None:
        while left := client.carriers(f"{self.root.resolve()}/"):
            for ident in (ident for idents in left.values() for ident in idents):
                client.send(ident, signal.SIGKILL)
