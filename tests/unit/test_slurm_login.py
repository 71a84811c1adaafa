"""The way to a cluster: a login node that answers at first and then no more blocks nobody for long."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.slurm.client import Account, Login
from prefect_tao.platforms.ssh import trunk

USER = "me"


class Frozen(paramiko.ServerInterface):
    """An ssh server that opens a session and freezes at whatever is asked in it."""

    def __init__(self, thaw: threading.Event) -> None:
        self.thaw = thaw

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.thaw.wait(60)
        return False

    def check_channel_subsystem_request(self, channel: paramiko.Channel, name: str) -> bool:
        self.thaw.wait(60)
        return False


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    key = paramiko.ECDSAKey.generate()
    key.write_private_key_file(str(tmp_path / "key"))
    thaw, listener = threading.Event(), socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
    transports = []

    def serve() -> None:
        while True:
            try:
                plug, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(plug)
            transport.add_server_key(key)
            transport.start_server(server=Frozen(thaw))
            transports.append(transport)

    threading.Thread(target=serve, daemon=True).start()
    yield Account(USER, ("127.0.0.1",), port, str(tmp_path / "key"), str(tmp_path / "known_hosts"))
    thaw.set()
    listener.close()
    for transport in transports:
        transport.close()


@pytest.mark.parametrize("call", ["run", "put"])
async def test_a_peer_that_freezes_within_a_call_is_given_up(
    account: Account, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(trunk, "OPEN_SECONDS", 1.0)
    way = Login(account)
    began = time.monotonic()
    with pytest.raises(Unreachable):
        await (way.run("true", again=False) if call == "run" else way.put("/x/y", b"z"))
    assert time.monotonic() - began < 30
    # The connection that did not answer is not used again.
    shared = way.connection("127.0.0.1")._shared
    assert shared is not None
    assert not [one for one in shared._trunks if one.is_usable]
    await way.close()


async def test_a_missing_file_of_host_keys_is_named(account: Account, tmp_path: Path) -> None:
    missing = Account(USER, account.hosts, account.port, account.key_path, str(tmp_path / "none"))
    with pytest.raises(Unreachable) as refused:
        await Login(missing).connect()
    assert str(tmp_path / "none") in refused.value.remedy
    assert "ssh-keyscan" in refused.value.remedy
