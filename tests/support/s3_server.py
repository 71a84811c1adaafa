"""A real S3 server over HTTP in a process of its own, and the aws command by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

import pytest

SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


class S3Server:
    """moto's S3 on a free port of the loopback; it ends with whoever started it."""

    port = 0

    def __enter__(self) -> S3Server:
        words = [sys.executable, "-c", SERVER]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True)
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def aws_alone(folder: Path) -> str:
    """A folder that holds the aws command and nothing else, as the PATH of an image without boto3 does."""
    program = Path(sys.executable).with_name("aws")
    if not program.exists():
        pytest.skip("there is no aws command here: make setup installs it")
    folder.mkdir(exist_ok=True)
    (folder / "aws").symlink_to(program)
    return str(folder)
