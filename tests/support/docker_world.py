"""A real Docker engine as a world for the fault machine: each launcher has a proxy of its own before the engine."""

from __future__ import annotations

import itertools
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import docker
from docker_engine import PYTHON, Engine
from docker_proxy import EngineProxy, Reply, Seen
from opened_platforms import docker_at

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.docker.driver import DockerPlatform
from prefect_tao.platforms.docker.observe import STARTED, STOP
from prefect_tao.platforms.docker.render import JOB
from prefect_tao.testing.noted_world import TOLD, NotedWorld
from prefect_tao.testing.world import Client, Event

FAULTS = {
    "none": None,
    "lost request": Reply(0),
    "lost reply": Reply(0, done=True),
    "503 before it arrived": Reply(503),
    "502 after it was done": Reply(502, done=True),
    "too many requests": Reply(429),
    "cut reply": Reply(200, done=True, is_cut=True),
}
BEFORE_START = "created"
_numbers = itertools.count()


@dataclass
class DockerLine:
    """One launcher's way to the engine: its driver, its proxy, and what goes wrong with its next requests."""

    proxy: EngineProxy
    platform: DockerPlatform
    faults: deque[str] = field(default_factory=deque)
    is_cut: bool = False

    def spoil(self, seen: Seen) -> Reply | None:
        reply = FAULTS[self.faults.popleft()] if self.faults else None
        # The answer to HEAD has no body that could be cut.
        return Reply(0, done=True) if reply and reply.is_cut and seen.method == "HEAD" else reply

    def cut(self) -> None:
        self.is_cut = True
        self.proxy.cut()


class DockerWorld(NotedWorld):
    """Jobs as containers of `engine`, with their results below `folder`."""

    faults = tuple(FAULTS)
    events = frozenset({*TOLD, Event.STOPPED, Event.FORGOTTEN})
    pauses = (0.0, 0.02, 0.1, 0.3, 0.6)
    settle_seconds = 90.0
    refuses = True

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.root = folder / token_hex(4)
        super().__init__(self.root / "notes", image=PYTHON)
        self.engine = engine
        self.lines: list[DockerLine] = []
        self.is_away = False

    def client(self) -> Client:
        proxy = EngineProxy(self.engine.socket, self.engine.folder / f"{next(_numbers)}.sock")
        line = DockerLine(
            proxy, docker_at("local-docker/test", host=proxy.host, network="none", results_root=str(self.root))
        )
        line.platform.poll_seconds = (0.1, 0.5)
        proxy.replace = line.spoil
        self.lines.append(line)
        if not self.is_away:
            proxy.mend()
        return Client(line.platform, line.faults.append, line.cut)

    def request(self, refused: bool = False) -> JobRequest:
        request = super().request()
        return (
            request.model_copy(update={"resources": request.resources.model_copy(update={"memory": 1})})
            if refused
            else request
        )

    # -- what happens --------------------------------------------------------------------------------------------------

    async def happens(self, event: Event, key: str) -> None:
        if event is Event.FORGOTTEN:
            self.engine.client.prune_containers()
        elif event is Event.STOPPED:
            for one in self._containers():
                if one["State"] == "running" and one["Labels"][JOB] in self.live(key):
                    self._stop(one["Id"], one["Labels"][JOB])
        else:
            await super().happens(event, key)

    def _stop(self, container: str, name: str) -> None:
        """As people do it: every second one in haste."""
        self.stopped_at[name] = time.time()
        with suppress(docker.errors.APIError):
            if int(name[-3], 16) % 2:
                self.engine.client.kill(container)
            else:
                self.engine.client.stop(container, timeout=10)

    def set_away(self, away: bool) -> None:
        if away != self.is_away:
            for line in self.lines:
                if not line.is_cut:
                    line.proxy.cut() if away else line.proxy.mend()
        self.is_away = away

    def let_end(self) -> None:
        for line in self.lines:
            line.faults.clear()
        super().let_end()

    # -- the truth -----------------------------------------------------------------------------------------------------

    def _containers(self) -> list[dict[str, Any]]:
        return [one for one in self.engine.client.containers(all=True) if JOB in one["Labels"]]

    def living(self) -> list[str]:
        return [
            one["Labels"][JOB]
            for one in self._containers()
            if one["State"] in ("running", "paused", "restarting", BEFORE_START) and not self._is_called_off(one["Id"])
        ]

    def _is_called_off(self, container: str) -> bool:
        """Whether it was cancelled before its job began: started all the same, it ends without running anything."""
        return self._has(container, STOP) and not self._has(container, STARTED)

    def _has(self, container: str, path: str) -> bool:
        try:
            self.engine.client.get_archive(container, path)
        except docker.errors.NotFound:
            return False
        return True

    def ends(self, handle: JobHandle) -> set[JobState]:
        found = super().ends(handle)
        # Of one that was killed and removed nothing tells that it was not simply removed.
        return found | {JobState.ERROR} if handle.name in self.stopped_at and JobState.CANCELED in found else found

    def was_asked_to_end(self, name: str) -> bool:
        return any(self._has(one["Id"], STOP) for one in self._containers() if one["Labels"][JOB] == name)

    def has_begun(self, handle: JobHandle) -> bool:
        own = [one for one in self._containers() if one["Labels"][JOB] == handle.name]
        return not any(one["State"] == BEFORE_START and not self._has(one["Id"], STOP) for one in own)

    def secrets_left(self) -> list[str]:
        layers = []
        for one in self._containers():
            with suppress(docker.errors.NotFound):
                layers.append(Path(self.engine.client.inspect_container(one["Id"])["GraphDriver"]["Data"]["UpperDir"]))
        files = [path for layer in (*layers, self.root) for path in layer.rglob("*") if path.is_file()]
        return [str(path) for path in files if self.secrets["TOKEN"].encode() in path.read_bytes()]

    def close(self) -> None:
        for line in self.lines:
            line.cut()
            line.platform.engine.close()
        self.engine.clear()
