"""The stand-in of Lepton as a world for the fault machine: answers get lost, jobs are stopped and started anew."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from lepton_api import LeptonFault, lepton_server
from lepton_cloud import OVER, CloudJob
from opened_platforms import lepton_at

from prefect_tao.platforms.lepton.client import SINCE
from prefect_tao.platforms.lepton.driver import LeptonPlatform
from prefect_tao.testing.hindered import FAULTS, HinderedPlatform
from prefect_tao.testing.noted_world import NotedWorld
from prefect_tao.testing.world import Client, Event

HTTP_FAULTS = {
    "lost request": LeptonFault(lost="request"),
    "lost reply": LeptonFault(lost="reply"),
    "answers 500": LeptonFault(status=500),
    "answers 429": LeptonFault(status=429, headers={"Retry-After": "0"}),
}


class LeptonWorld(NotedWorld):
    """Results are on a mount, so jobs claim their names there."""

    faults = (*FAULTS, *HTTP_FAULTS)
    events = frozenset((Event.ENDS_WELL, Event.FAILS, Event.STOPPED, Event.REQUEUED))
    pauses = (0.0, 0.01, 0.03, 0.1, 0.3)
    settle_seconds = 90.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "notes", image="any/image:1")
        self.server = lepton_server(folder / "cloud", grace=0.5).__enter__()
        self.opened: list[HinderedPlatform] = []

    def client(self) -> Client:
        root = self.server.cloud.folder / "volumes" / "lustre" / "results"
        inner = lepton_at(self.server, results_root=str(root), poll_seconds=0.05)
        inner.denial_seconds, inner.workspace.sleep = 0.3, lambda seconds: None
        platform = HinderedPlatform(inner, lambda: self.server.is_away)
        self.opened.append(platform)

        def hinder(fault: str) -> None:
            if fault in HTTP_FAULTS:
                self.server.hinder(lambda request: True, HTTP_FAULTS[fault])
            else:
                platform.faults.append(fault)

        def cut() -> None:
            """What is on its way arrives; nothing is asked for after that."""
            platform.is_dead, inner.workspace.token = True, ""
            inner._pool.shutdown(wait=True, cancel_futures=True)

        return Client(platform, hinder, cut)

    async def happens(self, event: Event, key: str) -> None:
        jobs = [job for job in self.server.cloud.jobs.values() if job.state == "Running" and key in job.name]
        for job in jobs:
            if event is Event.STOPPED:
                self.stopped_at[job.name] = time.time()
                self.server.cloud.patch(job, {"spec": {"stopped": True}})
            elif event is Event.REQUEUED:
                await asyncio.to_thread(self.server.cloud.take_away, job, True)
        if event not in (Event.STOPPED, Event.REQUEUED):
            await super().happens(event, key)

    def set_away(self, away: bool) -> None:
        self.server.is_away = away

    def let_end(self) -> None:
        self.server.clear()
        for platform in self.opened:
            platform.faults.clear()
        super().let_end()

    def _named(self, name: str) -> list[CloudJob]:
        return [job for job in list(self.server.cloud.jobs.values()) if job.name == name]

    def living(self) -> list[str]:
        return [job.name for job in list(self.server.cloud.jobs.values()) if job.state not in OVER]

    def was_asked_to_end(self, name: str) -> bool:
        return any(job.raw["spec"].get("stopped") for job in self._named(name))

    def hours_pass(self) -> None:
        for one in self.server.cloud.secrets.values():
            one["tags"] = [f"{SINCE}0"]

    def secrets_left(self) -> list[str]:
        living = self.living()
        return [name for name in self.server.cloud.secrets if name.partition(".")[0] not in living]

    def close(self) -> None:
        for platform in self.opened:
            assert isinstance(platform.inner, LeptonPlatform)
            platform.inner._pool.shutdown(wait=False)
        self.server.__exit__(None, None, None)
