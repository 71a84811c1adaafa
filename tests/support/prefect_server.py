"""A real Prefect server for tests: `prefect server start`, with a home of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from prefect_tao.settings import PREFECT_DEFAULTS

START_SECONDS = 120


class PrefectServer:
    """`prefect server start` on a free port of the loopback, with a database of its own."""

    def __init__(self, home: Path, **settings: str) -> None:
        self.home = home
        self.settings = settings
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
        return {**kept, **PREFECT_DEFAULTS, **own, **self.settings}

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
