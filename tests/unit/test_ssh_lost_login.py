"""A line that breaks while somebody logs in is no refusal of the login."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import paramiko
import pytest

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.ssh import authentication
from prefect_tao.platforms.ssh.destination import Destination
from prefect_tao.platforms.ssh.ssh_config import routes


class HangsUp(paramiko.ServerInterface):
    """A host that is gone before it has said anything about a key."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self.transport = transport

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        self.transport.close()
        return paramiko.AUTH_FAILED  # type: ignore[attr-defined, no-any-return]

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"


@pytest.mark.parametrize("keys", [1, 2])
def test_a_line_that_breaks_at_the_first_key_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    lines = []
    for number in range(keys):
        paramiko.RSAKey.generate(2048).write_private_key_file(f"{tmp_path}/key{number}")
        lines.append(f"  IdentityFile {tmp_path}/key{number}\n")
    (tmp_path / "config").write_text("Host box\n  HostName 127.0.0.1\n  User me\n" + "".join(lines))
    (route,) = routes(Destination("box", folder=str(tmp_path)))
    here, there = socket.socketpair()
    server, client = paramiko.Transport(there), paramiko.Transport(here)
    server.add_server_key(paramiko.RSAKey.generate(2048))
    try:
        server.start_server(event=threading.Event(), server=HangsUp(server))
        client.start_client(timeout=10)
        with pytest.raises((paramiko.SSHException, EOFError)) as told:
            authentication.log_in(client, route)
        assert not isinstance(told.value, Unreachable)
    finally:
        client.close()
        server.close()
