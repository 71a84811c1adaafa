"""An instance of Brev as a world for the fault machine: each launcher reaches the engine by a way of its own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from brev_cloud import BrevCloud
from docker_engine import Engine
from docker_proxy import EngineProxy
from docker_world import DockerLine, DockerWorld
from opened_platforms import brev_at

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
