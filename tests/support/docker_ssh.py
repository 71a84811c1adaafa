"""A real sshd in front of an engine: whoever logs in finds a docker command that knows the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_engine import Engine
from ssh_server import ALIAS, Sshd, new_server

__all__ = ["ALIAS", "Sshd", "new_sshd", "sshd"]


def new_sshd(socket: Path) -> Sshd:
    """An sshd whose logins reach the engine at `socket`; skips the test where there can be none."""
    return new_server({"DOCKER_HOST": f"unix://{socket}"})


@pytest.fixture(scope="module")
def sshd(engine: Engine) -> Iterator[Sshd]:
    """One sshd for the tests of a module; it leads to the engine by way of the proxy's socket."""
    running = new_sshd(engine.folder / "proxy.sock")
    yield running
    running.remove()
