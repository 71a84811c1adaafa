"""Real ssh servers for the tests of this folder, and connections to them that are closed afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ssh_server import ALIAS, Sshd, new_server
from ssh_tools import CARRIERS, MakeServer, Reach

from prefect_tao.platforms.ssh import ssh_config
from prefect_tao.platforms.ssh.connection import Connection
from prefect_tao.platforms.ssh.destination import Destination


@pytest.fixture(scope="session")
def servers() -> Iterator[list[Sshd]]:
    """Three machines; every one may be the way to another."""
    running = [new_server() for _ in range(3)]
    yield running
    for server in running:
        server.remove()


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    """Machines for one test alone, with settings of their own."""
    made: list[Sshd] = []

    def make(*given: Any, **settings: str) -> Sshd:
        made.append(new_server(*given, **settings))
        return made[-1]

    yield make
    for server in made:
        server.remove()


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture(params=CARRIERS)
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who carries: paramiko, the ssh program even where paramiko could, or paramiko where there is no program."""
    if request.param == "program":
        whole = ssh_config._beyond
        monkeypatch.setattr(ssh_config, "_beyond", lambda *given: whole(*given) or "this test")
    elif request.param == "no program":
        monkeypatch.setattr(ssh_config, "PROGRAM", "no-such-program")
    return str(request.param)


@pytest.fixture
def reach() -> Iterator[Reach]:
    """Connections that are closed after the test."""
    opened: list[Connection] = []

    def open_one(host: str = ALIAS, **given: Any) -> Connection:
        opened.append(Connection(Destination(host, **given)))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()
