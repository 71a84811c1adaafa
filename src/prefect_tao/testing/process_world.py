"""A platform whose jobs run on this machine, as a world for the fault machine: real processes behind a bad line."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from prefect_tao.jobs.platform import Platform
from prefect_tao.platforms.process import client
from prefect_tao.platforms.process.job_folder import STOP
from prefect_tao.testing.hindered import FAULTS, HinderedPlatform
from prefect_tao.testing.noted_world import NotedWorld
from prefect_tao.testing.this_machine import living_jobs
from prefect_tao.testing.world import Client


class ProcessWorld(NotedWorld):
    """Jobs as processes, all that they leave below `folder`; `open_at` opens the platform with its root there."""

    faults = FAULTS
    pauses = (0.0, 0.01, 0.03, 0.1, 0.3)
    settle_seconds = 90.0

    def __init__(self, folder: Path, open_at: Callable[[Path], Platform]) -> None:
        super().__init__(folder / "notes")
        self.root, self.open_at = folder / "root", open_at
        self.is_away = False
        self.opened: list[HinderedPlatform] = []

    def client(self) -> Client:
        platform = HinderedPlatform(self.open_at(self.root), lambda: self.is_away)
        self.opened.append(platform)

        def cut() -> None:
            platform.is_dead = True

        return Client(platform, platform.faults.append, cut)

    def set_away(self, away: bool) -> None:
        self.is_away = away

    def let_end(self) -> None:
        for platform in self.opened:
            platform.faults.clear()
        super().let_end()

    def living(self) -> list[str]:
        return living_jobs()

    def was_asked_to_end(self, name: str) -> bool:
        return (self.root / "jobs" / name / STOP).exists()

    def secrets_left(self) -> list[str]:
        value = self.secrets["TOKEN"].encode()
        files = [path for path in self.root.rglob("*") if path.is_file()]
        return [str(path) for path in files if value in path.read_bytes()]

    def close(self) -> None:
        while left := client.carriers(f"{self.root.resolve()}/"):
            for ident in (ident for idents in left.values() for ident in idents):
                client.send(ident, signal.SIGKILL)
