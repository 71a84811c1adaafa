"""A login that is refused is said at once, with its cause; a machine that is away is waited for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from opened_platforms import slurm_at
from ssh_server import ALIAS, Sshd, free_port, make_key
from ssh_tools import MakeServer, Reach, folder_of, host

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.retrying import retry
from prefect_tao.platforms.ssh import connection


@pytest.mark.usefixtures("carrier")
def test_a_refused_login_is_tried_once(servers: list[Sshd], reach: Reach, tmp_path: Path) -> None:
    server = servers[1]
    folder = folder_of(tmp_path, server, config=host(ALIAS, server))
    for name in ("id_ed25519", "id_ed25519.pub"):
        (folder / name).unlink()
    make_key(folder / "id_ed25519")
    before = server.connections
    for number in range(10):
        with pytest.raises(Unreachable, match=r"Permission denied \(publickey.*login was refused") as told:
            reach(folder=str(folder)).run(f"echo {number}")
        assert not told.value.retryable
        assert "ssh-copy-id" in told.value.remedy
    assert server.connections == before + 1
    # After some minutes it is tried again by itself: the host may have been wrong, too.
    refusals = connection._refusals
    for destination, known in refusals.items():
        refusals[destination] = known._replace(until=time.monotonic() - 1)
    with open(server.folder / "authorized_keys", "a") as keys:
        keys.write((folder / "id_ed25519.pub").read_text())
    assert reach(folder=str(folder)).run("echo in").stdout == b"in\n"


async def test_a_launch_with_a_run_key_says_a_refused_login_at_once(servers: list[Sshd], tmp_path: Path) -> None:
    server = servers[1]
    make_key(tmp_path / "stranger")
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {server.host_key}")
    platform = slurm_at(
        user=server.user,
        hostnames=["127.0.0.1"],
        partition="x",
        ssh_port=server.port,
        ssh_key_path=str(tmp_path / "stranger"),
        known_hosts=str(known),
    )
    before, began = server.connections, time.monotonic()
    with pytest.raises(Unreachable, match="login was refused") as told:
        await retry(lambda: platform.find(["0" * 16]))
    assert "SSH_KEY_PATH" in told.value.remedy
    assert time.monotonic() - began < 20
    assert server.connections == before + 1
    await platform.close()


@pytest.mark.usefixtures("carrier")
def test_a_login_whose_shell_runs_nothing_is_said_at_once(make_server: MakeServer, reach: Reach) -> None:
    server = make_server(ForceCommand="echo 'This account is currently not available.'")
    with pytest.raises(Unreachable, match="runs no commands, it says: This account is currently not") as told:
        reach(folder=str(server.ssh_folder)).run("true")
    assert not told.value.retryable


async def test_a_machine_that_is_away_is_waited_for(tmp_path: Path, reach: Reach) -> None:
    with pytest.raises(Unreachable, match="onnection refused") as told:
        await asyncio.to_thread(reach("127.0.0.1", port=free_port(), folder=str(tmp_path)).connect)
    assert told.value.retryable


@pytest.mark.usefixtures("carrier")
def test_a_host_that_wants_a_second_factor_is_named_as_such(make_server: MakeServer, reach: Reach) -> None:
    server = make_server(
        AuthenticationMethods="publickey,password", PasswordAuthentication="yes", PermitRootLogin="yes"
    )
    with pytest.raises(Unreachable, match=r"two-factor authentication: after the key it asks for") as told:
        reach(folder=str(server.ssh_folder)).connect()
    assert "ControlMaster" in told.value.remedy
    assert not told.value.retryable


def test_a_jump_host_that_refuses_is_named(servers: list[Sshd], reach: Reach, tmp_path: Path) -> None:
    gate, _, last = servers
    folder = folder_of(tmp_path, last, config=host("gate", gate) + host(ALIAS, last, "ProxyJump gate"))
    with open(folder / "known_hosts", "a") as known:
        known.write(f"[127.0.0.1]:{gate.port} {gate.host_key}")
    with pytest.raises(Unreachable, match=rf"jump host \S+@127.0.0.1:{gate.port}: .*login was refused"):
        reach(folder=str(folder)).connect()
