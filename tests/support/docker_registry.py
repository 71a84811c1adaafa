"""A real registry on the loopback that wants a login."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import debian
import pytest
from docker_engine import TOOLS, Engine, free_port

USER, PASSWORD = "puller", "registry-password"
START_SECONDS = 20


class Registry:
    """Debian's `docker-registry`, with one user and whatever is pushed to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def login(self) -> dict[str, str]:
        return {"DOCKER_USERNAME": USER, "DOCKER_PASSWORD": PASSWORD, "DOCKER_REGISTRY": self.address}

    def start(self) -> None:
        words = ["htpasswd", "-Bbn", USER, PASSWORD]
        entry = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        (self.folder / "htpasswd").write_text(entry)
        (self.folder / "config.yml").write_text(
            "version: 0.1\n"
            f"storage: {{filesystem: {{rootdirectory: {self.folder}/data}}}}\n"
            f"http: {{addr: '{self.address}'}}\n"
            f"auth: {{htpasswd: {{realm: test, path: {self.folder}/htpasswd}}}}\n"
        )
        with open(self.folder / "log.txt", "wb") as log:
            program = ["docker-registry", "serve", str(self.folder / "config.yml")]
            self.process = subprocess.Popen(program, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://{self.address}/v2/", timeout=2)
            except urllib.error.HTTPError:
                return  # it answers, and wants a login
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"the registry did not start: {(self.folder / 'log.txt').read_text()[-1000:]}")

    def push(self, engine: Engine, name: str) -> str:
        """Push the small image under `name` and forget it on the engine; returns its reference."""
        reference = f"{self.address}/{name}"
        engine.client.tag(TOOLS, reference)
        login = {"username": USER, "password": PASSWORD}
        for line in engine.client.push(reference, auth_config=login, stream=True, decode=True):
            assert "error" not in line, line
        engine.client.remove_image(reference)
        return reference


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    """One registry for the tests of a module."""
    try:
        debian.ensure({"docker-registry": "docker-registry", "htpasswd": "apache2-utils"})
    except debian.Missing as error:
        pytest.skip(str(error))
    running = Registry(Path(tempfile.mkdtemp(prefix="tao-registry-")))
    running.start()
    yield running
    assert running.process
    running.process.terminate()
    running.process.wait(10)
    shutil.rmtree(running.folder, ignore_errors=True)
