"""The Brev driver keeps the contract, on an instance of the person's own: a real sshd before a real Docker engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import debian
import pytest
from brev_cloud import BrevCloud, brev_cloud
from brev_world import BehindProxy
from container_contracts import SETTINGS, OnAnEngine
from docker_engine import Engine
from docker_proxy import EngineProxy
from opened_platforms import brev_at

from prefect_tao.jobs.platform import Platform
from prefect_tao.platforms.brev.client import BrevCommand
from prefect_tao.platforms.brev.driver import BrevPlatform
from prefect_tao.platforms.brev.settings import BrevSettings
from prefect_tao.platforms.ssh.connection import Connection
from prefect_tao.testing.contract import LONG
from prefect_tao.testing.this_machine import OnThisMachine

pytestmark = pytest.mark.xdist_group("docker")


class Box(NamedTuple):
    """An instance that runs, the account it is in, and the way to its engine."""

    cloud: BrevCloud
    proxy: EngineProxy


@pytest.fixture(scope="module")
def box(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """One for all tests, and one login to it that stays: they are slow, and the contract is about jobs."""
    short = Path(tmp_path_factory.mktemp("b"))
    with (
        pytest.MonkeyPatch.context() as patch,
        EngineProxy(engine.socket, engine.folder / "proxy.sock") as proxy,
        brev_cloud(short) as cloud,
    ):
        patch.setenv("PATH", f"{short}/bin:{debian.PATH}")
        patch.setenv("HOME", f"{short}/home")
        cloud.add("box", engine=BehindProxy(engine, proxy.host))
        command = BrevCommand(BrevSettings())
        command.refresh()
        login = Connection(command.destination("box"))
        login.connect()
        yield Box(cloud, proxy)
        login.close()


class TestBrev(OnThisMachine, OnAnEngine):
    @pytest.fixture
    def platform(self, box: Box, engine: Engine, tmp_path: Path) -> Iterator[Platform]:
        self.cloud, self.proxy = box
        self.cloud.calls.clear()
        with self.gpu_in_use():
            self.engine, self.results = engine, tmp_path / "results"
            self.opened: list[BrevPlatform] = []
            yield self.another()
            for opened in self.opened:
                for docker in opened._dockers.values():
                    docker.engine.close()
        engine.clear()

    def another(self, platform: Platform | None = None) -> Platform:
        self.opened.append(brev_at(instance="box", results_root=str(self.results), **SETTINGS))
        return self.opened[-1]

    @contextmanager
    def elsewhere(self, platform: Platform) -> Iterator[Platform]:
        """Another person's instance with the same results folder."""
        engine = self.fixture("another_engine")
        other = self.cloud.add("other", engine=engine)
        settings = {**SETTINGS, "instance": "other", "owner": "somebody", "results_root": str(self.results)}
        self.opened.append(brev_at("brev/other", **settings))
        yield self.opened[-1]
        other.doing, other.since = "delete", 0.0

    @contextmanager
    def outage(self, platform: Platform) -> Iterator[None]:
        self.cloud.is_away = True
        self.proxy.cut()
        yield
        self.proxy.mend()
        self.cloud.is_away = False

    async def test_an_instance_of_the_person_s_own_is_never_made_or_deleted(self, platform: Platform) -> None:
        handle = await self.start(platform, LONG)
        await platform.cancel([handle], timeout=self.cancel_seconds)
        await platform.release([handle])
        assert self.cloud.paid == ["box"]
        assert not [call for call in self.cloud.calls if call["argv"][0] in ("create", "delete", "exec", "copy")]
