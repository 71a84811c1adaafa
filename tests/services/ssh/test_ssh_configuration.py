"""A person's ssh configuration counts: aliases, includes, jump hosts, proxy commands, connections that are open."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from ssh_server import ALIAS, Sshd, make_key
from ssh_tools import CARRIERS, Reach, folder_of, host

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.ssh import ssh_config
from prefect_tao.platforms.ssh.destination import Destination


@pytest.mark.parametrize("carrier", ["paramiko", "no program"], indirect=True)
@pytest.mark.usefixtures("carrier")
def test_an_alias_through_an_include_is_understood(servers: list[Sshd], reach: Reach, tmp_path: Path) -> None:
    folder = folder_of(tmp_path, servers[0])
    (folder / "boxes").write_text(f"Host box-*\n  HostName 127.0.0.1\n  Port {servers[0].port}\n")
    (folder / "config").write_text(
        f"Include {folder}/boxes\nHost other\n  Include {folder}/others\nHost *\n  User {servers[0].user}\n"
    )
    (folder / "others").write_text("Host *\n  Port 1\n")  # does not count: it is included for another host
    there = reach("box-7", folder=str(folder))
    assert there.run("echo $SSH_CONNECTION").stdout.decode().split()[-1] == str(servers[0].port)


@pytest.mark.parametrize("carrier", ["paramiko", "no program"], indirect=True)
@pytest.mark.usefixtures("carrier")
def test_what_a_caller_says_wins_over_the_configuration(tmp_path: Path) -> None:
    for name in ("mine", "theirs"):
        make_key(tmp_path / name)
    (tmp_path / "config").write_text(
        f"Host box\n  HostName 10.0.0.9\n  User them\n  Port 99\n  IdentityFile {tmp_path}/theirs\n"
        f"  UserKnownHostsFile {tmp_path}/theirs.known\n"
    )
    (route,) = ssh_config.routes(Destination("box", folder=str(tmp_path)))
    assert (route.hostname, route.user, route.port, route.keys) == ("10.0.0.9", "them", 99, (tmp_path / "theirs",))
    assert route.known_hosts[0] == tmp_path / "theirs.known"
    given = Destination("box", "me", 22, f"{tmp_path}/mine", f"{tmp_path}/known", str(tmp_path))
    (route,) = ssh_config.routes(given)
    assert (route.hostname, route.user, route.port, route.keys) == ("10.0.0.9", "me", 22, (tmp_path / "mine",))
    assert route.known_hosts[0] == tmp_path / "known"
    assert tmp_path / "theirs.known" not in route.known_hosts


@pytest.mark.parametrize("carrier", [*CARRIERS, "no program"], indirect=True)
@pytest.mark.usefixtures("carrier")
def test_two_jump_hosts_lead_to_the_machine(servers: list[Sshd], reach: Reach, tmp_path: Path) -> None:
    gate, inner, last = servers
    config = host("gate", gate) + host("inner", inner) + host(ALIAS, last, "ProxyJump gate,inner")
    before = [server.logins for server in servers]
    there = reach(folder=str(folder_of(tmp_path, *servers, config=config)))
    assert there.run("echo $SSH_CONNECTION").stdout.decode().split()[-1] == str(last.port)
    assert there.run("true").code == 0
    assert [server.logins - earlier for server, earlier in zip(servers, before, strict=True)] == [1, 1, 1]


@pytest.mark.usefixtures("carrier")
def test_a_jump_host_that_has_a_jump_host_itself(servers: list[Sshd], reach: Reach, tmp_path: Path) -> None:
    gate, inner, last = servers
    config = host("gate", gate) + host("inner", inner, "ProxyJump gate")
    folder = folder_of(tmp_path, *servers, config=config + host(ALIAS, last, "ProxyJump inner"))
    assert reach(folder=str(folder)).run("echo ok").stdout == b"ok\n"


def test_jump_hosts_in_a_circle_are_named(tmp_path: Path, reach: Reach) -> None:
    (tmp_path / "config").write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(Unreachable, match="in a circle") as told:
        reach("a", folder=str(tmp_path)).connect()
    assert not told.value.retryable


@pytest.mark.parametrize("carrier", [*CARRIERS, "no program"], indirect=True)
@pytest.mark.usefixtures("carrier")
def test_a_proxy_command_carries_the_connection(servers: list[Sshd], reach: Reach, tmp_path: Path) -> None:
    gate, _, last = servers
    folder = folder_of(tmp_path, gate, last)
    words = f"ssh -F {folder}/config -i {folder}/id_ed25519 -o UserKnownHostsFile={folder}/known_hosts -W %h:%p gate"
    (folder / "config").write_text(host("gate", gate) + host(ALIAS, last, f"ProxyCommand {words}"))
    before = gate.logins
    there = reach(folder=str(folder))
    assert there.run("echo $SSH_CONNECTION").stdout.decode().split()[-1] == str(last.port)
    assert gate.logins == before + 1


def test_a_connection_that_a_person_has_opened_is_used(servers: list[Sshd], reach: Reach, tmp_path: Path) -> None:
    """As on hosts that want a second factor: the person logs in once by hand."""
    server, control = servers[0], tmp_path / "c"
    folder = folder_of(tmp_path, server, config=host(ALIAS, server, f"ControlPath {control}"))
    words = ["ssh", "-F", f"{folder}/config", "-i", f"{folder}/id_ed25519", "-MNT"]
    words += ["-o", f"UserKnownHostsFile={folder}/known_hosts", ALIAS]
    master = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if control.exists():
                break
            time.sleep(0.1)
        before = server.logins
        (folder / "id_ed25519").unlink()
        there = reach(folder=str(folder))
        assert there.run("echo shared").stdout == b"shared\n"
        assert server.logins == before
        there.close()
        assert control.exists()
    finally:
        master.terminate()
        master.wait()
