"""The Docker driver keeps the contract, on the engine of this machine and over ssh."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from container_contracts import SETTINGS, OnAnEngine
from docker_engine import Engine
from docker_proxy import EngineProxy
from docker_ssh import ALIAS, Sshd, sshd
from opened_platforms import docker_at

from prefect_tao.jobs.platform import Platform
from prefect_tao.platforms.docker.driver import DockerPlatform
from prefect_tao.testing.contract import SharedResultsContract
from prefect_tao.testing.this_machine import OnThisMachine

__all__ = ["sshd"]
pytestmark = pytest.mark.xdist_group("docker")


class TestLocalDocker(OnThisMachine, OnAnEngine, SharedResultsContract):
    target = "local-docker/test"

    @pytest.fixture
    def platform(self, engine: Engine, tmp_path: Path) -> Iterator[Platform]:
        with EngineProxy(engine.socket, engine.folder / "proxy.sock") as proxy, self.gpu_in_use():
            self.engine, self.proxy = engine, proxy
            self.results = tmp_path / "results"
            self.settings = {**SETTINGS, **self.connection(), "results_root": str(self.results)}
            self.opened: list[DockerPlatform] = []
            yield self.another()
        for platform in self.opened:
            platform.engine.close()
        engine.clear()

    def connection(self) -> dict[str, Any]:
        return {"host": self.proxy.host}

    def another(self, platform: Platform | None = None) -> Platform:
        self.opened.append(docker_at(self.target, **self.settings))
        return self.opened[-1]

    @contextmanager
    def elsewhere(self, platform: Platform) -> Iterator[Platform]:
        engine = self.fixture("another_engine")
        settings = {**SETTINGS, "host": engine.host, "results_root": str(self.results)}
        self.opened.append(docker_at("local-docker/other", **settings))
        yield self.opened[-1]
        engine.clear()

    @contextmanager
    def outage(self, platform: Platform) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.mend()


class TestRemoteDocker(TestLocalDocker):
    """The same engine over ssh, under an alias that only the system's ssh understands."""

    target = "remote-docker/test"

    @pytest.fixture(autouse=True)
    def login(self, sshd: Sshd) -> None:
        self.sshd = sshd

    def connection(self) -> dict[str, Any]:
        return {"host": f"ssh://{ALIAS}", "ssh_path": str(self.sshd.ssh_folder), "poll_seconds": 0.3}
