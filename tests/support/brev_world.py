"""Instances of Brev as worlds for the fault machine: one of the person's own, and those that are rented for jobs."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brev_cloud import BrevCloud
from docker.errors import NotFound
from docker_engine import Engine
from docker_proxy import EngineProxy
from docker_world import DockerLine, DockerWorld
from opened_platforms import KEYS, brev_at

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.brev import instances, render
from prefect_tao.platforms.brev.driver import BrevPlatform
from prefect_tao.platforms.brev.rental_notes import RentedEnd
from prefect_tao.platforms.docker.render import JOB
from prefect_tao.testing.noted_world import TOLD
from prefect_tao.testing.world import Client

_numbers = itertools.count()


class BehindProxy:
    """The engine of an instance, as far as the stand-in uses it."""

    def __init__(self, engine: Engine, host: str) -> None:
        self.clear, self.host = engine.clear, host


class BrevWorld(DockerWorld):
    """Jobs as containers on an instance of the person's own, with their results below `folder`."""

    def __init__(self, cloud: BrevCloud, engine: Engine, folder: Path) -> None:
        super().__init__(engine, folder)
        self.cloud = cloud

    def client(self) -> Client:
        name = f"box-{next(_numbers)}"
        proxy = EngineProxy(self.engine.socket, self.engine.folder / f"{name}.sock")
        self.cloud.add(name, engine=BehindProxy(self.engine, proxy.host))
        platform: Any = brev_at(instance=name, network="none", results_root=str(self.root))
        line = DockerLine(proxy, platform)
        platform.poll_seconds = (0.1, 0.5)
        proxy.replace = line.spoil
        self.lines.append(line)
        if not self.is_away:
            proxy.mend()
        return Client(platform, line.faults.append, line.cut)

    def close(self) -> None:
        for line in self.lines:
            line.cut()
            platform: Any = line.platform
            for docker in platform._dockers.values():
                docker.engine.close()
        for one in list(self.cloud.instances):
            one.doing, one.since = "delete", 0.0
        self.engine.clear()


@dataclass
class RentingLine:
    """One launcher's command: it is known by its token, which gives it a home of its own."""

    platform: BrevPlatform
    faults: deque[str] = field(default_factory=deque)
    is_cut: bool = False

    def cut(self) -> None:
        """What the command is at goes on; nothing is asked for after that."""
        self.is_cut = True
        for docker in self.platform._dockers.values():
            docker.engine.abandon("its process was killed")


class RentedWorld(DockerWorld):
    """Jobs on instances of their own, whose results are copied to a folder here. What is paid for is alive."""

    faults = ("none", "away", "lost", "no boot")
    events = frozenset(TOLD)
    refuses = False
    settle_seconds = 180.0

    def __init__(self, cloud: BrevCloud, engines: Sequence[Engine], folder: Path) -> None:
        super().__init__(engines[0], Path(render.ON_INSTANCE))
        self.cloud, self.engines, self.here = cloud, engines, folder / self.root.name
        self.renting: list[RentingLine] = []
        cloud.spoil = self._spoil

    def client(self) -> Client:
        platform = brev_at(network="none", results_root=str(self.here), instance_types=["g5.xlarge"])
        platform.take_credentials({"BREV_API_TOKEN": f"session{next(_numbers)}:device", **KEYS})
        platform.poll_seconds = (0.1, 0.5)
        line = RentingLine(platform)
        self.renting.append(line)
        return Client(platform, line.faults.append, line.cut)

    def _spoil(self, asked: dict[str, Any]) -> str:
        line = next((one for one in self.renting if str(one.platform.command.home) == asked["home"]), None)
        if line is None or asked["argv"][:1] == ["--version"]:
            return ""
        fault = "away" if line.is_cut else line.faults.popleft() if line.faults else "none"
        if fault == "no boot":
            self.cloud.faults.setdefault("boot", deque()).append(fault)
        return fault if fault in ("away", "lost") else ""

    def set_away(self, away: bool) -> None:
        self.cloud.is_away = away

    def let_end(self) -> None:
        self.cloud.faults.clear()
        for line in self.renting:
            line.faults.clear()
        super().let_end()

    def _containers(self) -> list[dict[str, Any]]:
        found = [one for engine in self.engines for one in engine.client.containers(all=True)]
        return [one for one in found if JOB in one["Labels"]]

    def _has(self, container: str, path: str) -> bool:
        for engine in self.engines:
            with suppress(NotFound):
                engine.client.get_archive(container, path)
                return True
        return False

    def live(self, key: str) -> list[str]:
        """Containers that run, and instances that cost money whatever is on them."""
        jobs = [instances.job_of(name, self.renting[0].platform.options) for name in self.cloud.paid]
        return sorted({*super().live(key), *(str(job) for job in jobs if job and job.key == key)})

    def was_asked_to_end(self, name: str) -> bool:
        job = JobName.parse(name)
        with suppress(OSError):
            text = Path(self.here, job.key, "attempts", f"{job.attempt}.end.json").read_text()
            return RentedEnd.model_validate_json(text).end.state is JobState.CANCELED
        return super().was_asked_to_end(name)

    def has_begun(self, handle: JobHandle) -> bool:
        # One that was called off is over: its instance goes, whatever container was being made there.
        return self.was_asked_to_end(handle.name) or super().has_begun(handle)

    def secrets_left(self) -> list[str]:
        files = [path for root in (self.root, self.here) for path in root.rglob("*") if path.is_file()]
        return [str(path) for path in files if self.secrets["TOKEN"].encode() in path.read_bytes()]

    def close(self) -> None:
        for line in self.renting:
            line.cut()
            for docker in line.platform._dockers.values():
                docker.engine.close()
        for one in list(self.cloud.instances):
            one.doing, one.since = "delete", 0.0
        for engine in self.engines:
            engine.clear()
