"""Shared fixtures: a home of its own for every test, and a real Prefect server for those that need one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect_tools import Api
from slurm_fixture import clean_cluster as clean_cluster
from slurm_fixture import cluster as cluster

from prefect_tao.settings import PREFECT_DEFAULTS

START_SECONDS = 120


class PrefectServer:
    """`prefect server start` on a free port of the loopback, with a database of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def env(self) -> dict[str, str]:
        """What a client of this server has in its environment."""
        own = {"PREFECT_API_URL": self.api, "PREFECT_HOME": str(self.home)}
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
        return {**kept, **PREFECT_DEFAULTS, **own}

    def start(self) -> None:
        words = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        with open(self.home / "server.log", "ab") as log:
            self.process = subprocess.Popen(words, env=self.env, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.api}/health", timeout=2):
                    return
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.2)
        raise RuntimeError(f"Prefect's server did not start: {(self.home / 'server.log').read_text()[-2000:]}")

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One real Prefect server for the whole session."""
    running = PrefectServer(tmp_path_factory.mktemp("prefect"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def api(server: PrefectServer) -> Api:
    """The server's API."""
    return Api(server.api)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The product's own home, never the user's."""
    for name in ("TAO_RESULTS_ROOT", "S3_BUCKET_NAME", "PREFECT_TAO_GPUS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_TAO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
