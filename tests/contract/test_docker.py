"""The Docker driver keeps the contract, on the engine of this machine and over ssh."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from docker_engine import PYTHON, Engine
from docker_proxy import EngineProxy
from docker_ssh import ALIAS, Sshd, sshd
from opened_platforms import docker_at

from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.docker.driver import DockerPlatform
from prefect_tao.platforms.gpu_locks import lock_folder, prepare
from prefect_tao.testing.contract import LONG, PlatformContract
from prefect_tao.testing.this_machine import OnThisMachine

__all__ = ["sshd"]
pytestmark = pytest.mark.xdist_group("docker")
SETTINGS: dict[str, Any] = {"network": "none", "gpu_ids": ["0"]}


def gpu_lock() -> Path:
    """The file that keeps two jobs off the one GPU."""
    prepare(lock_folder())
    return Path(lock_folder(), "0")


class TestLocalDocker(OnThisMachine, PlatformContract):
    end_seconds = 60.0
    cancel_seconds = 10.0
    many = 8
    target = "local-docker/test"

    @pytest.fixture
    def platform(self, engine: Engine, tmp_path: Path) -> Iterator[Platform]:
        with EngineProxy(engine.socket, engine.folder / "proxy.sock") as proxy, gpu_lock().open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the one GPU is in use
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

    @pytest.fixture(autouse=True)
    def further_engine(self, request: pytest.FixtureRequest) -> None:
        self.fixture = request.getfixturevalue

    @contextmanager
    def elsewhere(self, platform: Platform) -> Iterator[Platform]:
        engine = self.fixture("another_engine")
        settings = {**SETTINGS, "host": engine.host, "results_root": str(self.results)}
        self.opened.append(docker_at("local-docker/other", **settings))
        yield self.opened[-1]
        engine.clear()

    def request(self, command: str, **fields: object) -> JobRequest:
        return super().request(command, **{"image": PYTHON, **fields})

    def written(self, platform: Platform) -> dict[str, bytes]:
        """The results, and all that containers hold on the engine's disk beyond their images."""
        found = {str(path): path.read_bytes() for path in self.results.rglob("*") if path.is_file()}
        for one in self.engine.client.containers(all=True):
            facts = self.engine.client.inspect_container(one["Id"])
            found[one["Id"]] = repr(facts).encode()
            layer = Path(facts["GraphDriver"]["Data"]["UpperDir"])
            found |= {str(path): path.read_bytes() for path in layer.rglob("*") if path.is_file()}
        return found

    def waiting_request(self, platform: Platform) -> JobRequest:
        return self.request(LONG, resources={"gpus": 1}, secrets=["TOKEN"])

    @contextmanager
    def outage(self, platform: Platform) -> Iterator[None]:
        self.proxy.cut()
        yield
        self.proxy.mend()

    # A Docker engine gives out a line when it is whole, so its log never ends inside one.
    async def test_the_tail_is_the_last_lines_and_its_cursor_goes_on(self, platform: Platform) -> None:
        handle = await self.start(
            platform,
            "seq 1 5000; printf 'half \\360\\237'; sleep 0.6; printf '\\231\\202\\n'; "
            "until [ -e $TAO_RESULTS_DIR/go ]; do sleep 0.1; done; echo on",
        )
        await self.says(platform, handle, "half")
        tail = await platform.logs(handle, tail=3)
        assert tail.text == "4999\n5000\nhalf 🙂\n"
        (self.results / handle.key / "results_dir" / "go").touch()
        assert (await self.end(platform, handle)).state is JobState.COMPLETE
        assert (await platform.logs(handle, since=tail.cursor)).text == "on\n"
        assert (await platform.logs(handle, tail=0)).text == ""


class TestRemoteDocker(TestLocalDocker):
    """The same engine over ssh, under an alias that only the system's ssh understands."""

    target = "remote-docker/test"

    @pytest.fixture(autouse=True)
    def login(self, sshd: Sshd) -> None:
        self.sshd = sshd

    def connection(self) -> dict[str, Any]:
        return {"host": f"ssh://{ALIAS}", "ssh_path": str(self.sshd.ssh_folder), "poll_seconds": 0.3}
