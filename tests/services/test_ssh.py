"""One way over ssh, on a real sshd: configuration, jumps, host keys, keys, refusals, noise; with both carriers."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from opened_platforms import slurm_at
from ssh_server import ALIAS, Sshd, free_port, make_key, new_server

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.retrying import retry
from prefect_tao.platforms.ssh import connection, ssh_config
from prefect_tao.platforms.ssh.connection import Connection
from prefect_tao.platforms.ssh.destination import Destination
from prefect_tao.platforms.ssh.paramiko_trunk import ParamikoTrunk
from prefect_tao.platforms.ssh.program_trunk import ProgramTrunk

CARRIERS = ("paramiko", "program")


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Sshd]]:
    """Three machines; every one may be the way to another."""
    running = [new_server() for _ in range(3)]
    yield running
    for server in running:
        server.remove()


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def reach(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Connection]]:
    """Connections that are closed after the test. Their carrier is the test's parameter, where it has one."""
    opened: list[Connection] = []

    def open_one(host: str = ALIAS, **given: Any) -> Connection:
        opened.append(Connection(Destination(host, **given)))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def carry(monkeypatch: pytest.MonkeyPatch, carrier: str) -> None:
    """Let the ssh program carry what paramiko could carry as well."""
    if carrier == "program":
        whole = ssh_config._beyond
        monkeypatch.setattr(ssh_config, "_beyond", lambda *given: whole(*given) or "this test")


def carrier_of(there: Connection) -> type:
    assert there._shared is not None
    return type(next(iter(there._shared._trunks)))


def folder_of(tmp_path: Path, *servers: Sshd, config: str = "") -> Path:
    """The ssh folder of someone who is let in by all of them and knows them all."""
    folder = tmp_path / f"ssh-{token_hex(4)}"
    folder.mkdir()
    make_key(folder / "id_ed25519")
    for server in servers:
        with open(server.folder / "authorized_keys", "a") as keys:
            keys.write((folder / "id_ed25519.pub").read_text())
    (folder / "known_hosts").write_text("".join(f"[127.0.0.1]:{one.port} {one.host_key}" for one in servers))
    (folder / "config").write_text(config)
    return folder


def host(name: str, server: Sshd, *more: str) -> str:
    return "\n  ".join([f"Host {name}", "HostName 127.0.0.1", f"Port {server.port}", *more]) + "\n"


# -- what it does ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", CARRIERS)
def test_commands_files_and_streams_share_one_login(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    carrier: str,
) -> None:
    carry(monkeypatch, carrier)
    server = servers[0]
    folder = folder_of(tmp_path, server, config=host(ALIAS, server))
    before = server.logins
    first, second = reach(folder=str(folder)), reach(folder=str(folder))
    assert first.run("echo out; echo words >&2; exit 3") == (3, b"out\n", b"words\n")
    assert second.run("cat", b"\x00\xff" * 500_000).stdout == b"\x00\xff" * 500_000
    assert carrier_of(first) is (ProgramTrunk if carrier == "program" else ParamikoTrunk)
    second.put({f"{tmp_path}/new/folder/file": b"secret", f"{tmp_path}/new/folder/empty": b""})
    path = tmp_path / "new" / "folder" / "file"
    assert (path.read_bytes(), path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (
        b"secret",
        0o600,
        0o700,
    )
    assert sorted(os.listdir(path.parent)) == ["empty", "file"]
    stream = first.stream("cat")
    stream.send(b"there and back")
    assert stream.receive() == b"there and back"
    second.close()
    stream.end_input()
    assert stream.receive() == b""
    stream.close()
    assert first.run("true").code == 0
    assert server.logins == before + 1


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_background_process_and_a_slow_one_keep_no_one_waiting(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    carrier: str,
) -> None:
    carry(monkeypatch, carrier)
    there = reach(folder=str(folder_of(tmp_path, servers[0], config=host(ALIAS, servers[0]))))
    began = time.monotonic()
    assert there.run("sleep 60 & echo begun").stdout == b"begun\n"
    with pytest.raises(Unreachable, match="no answer within 1 s") as told:
        there.run("sleep 60", timeout=1)
    assert told.value.retryable
    assert there.run("echo again").stdout == b"again\n"
    assert time.monotonic() - began < 30


def test_many_streams_and_commands_at_once_all_get_through(
    servers: list[Sshd], reach: Callable[..., Connection], tmp_path: Path
) -> None:
    server = servers[0]
    there = reach(folder=str(folder_of(tmp_path, server, config=host(ALIAS, server))))
    before, answers = server.logins, []
    streams = [there.stream("cat") for _ in range(12)]
    threads = [
        threading.Thread(target=lambda number=number: answers.append(there.run(f"echo {number}").stdout))
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for stream in streams:
        stream.send(b"x")
        assert stream.receive() == b"x"
    for thread in threads:
        thread.join()
    assert sorted(map(int, answers)) == list(range(20))
    assert server.logins - before <= 4
    for stream in streams:
        stream.close()


def test_a_connection_that_has_died_is_made_anew(
    reach: Callable[..., Connection], tmp_path: Path, servers: list[Sshd]
) -> None:
    there = reach(folder=str(folder_of(tmp_path, servers[2], config=host(ALIAS, servers[2]))))
    there.connect()
    for each in there._shared._trunks:  # type: ignore[union-attr]
        each._transport.sock.close()  # type: ignore[attr-defined]
    assert there.run("echo back").stdout == b"back\n"


# -- a person's configuration ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_program", [True, False])
def test_an_alias_through_an_include_is_understood(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    has_program: bool,
) -> None:
    folder = folder_of(tmp_path, servers[0])
    (folder / "boxes").write_text(f"Host box-*\n  HostName 127.0.0.1\n  Port {servers[0].port}\n")
    (folder / "config").write_text(
        f"Include {folder}/boxes\nHost other\n  Include {folder}/others\nHost *\n  User {servers[0].user}\n"
    )
    (folder / "others").write_text("Host *\n  Port 1\n")  # does not count: it is included for another host
    if not has_program:
        monkeypatch.setattr(ssh_config, "PROGRAM", "no-such-program")
    there = reach("box-7", folder=str(folder))
    assert there.run("echo $SSH_CONNECTION").stdout.decode().split()[-1] == str(servers[0].port)


@pytest.mark.parametrize("has_program", [True, False])
def test_what_a_caller_says_wins_over_the_configuration(tmp_path: Path, monkeypatch: Any, has_program: bool) -> None:
    if not has_program:
        monkeypatch.setattr(ssh_config, "PROGRAM", "no-such-program")
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


@pytest.mark.parametrize("carrier", [*CARRIERS, "no program"])
def test_two_jump_hosts_lead_to_the_machine(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    carrier: str,
) -> None:
    carry(monkeypatch, carrier)
    if carrier == "no program":
        monkeypatch.setattr(ssh_config, "PROGRAM", "no-such-program")
    gate, inner, last = servers
    config = host("gate", gate) + host("inner", inner) + host(ALIAS, last, "ProxyJump gate,inner")
    before = [server.logins for server in servers]
    there = reach(folder=str(folder_of(tmp_path, *servers, config=config)))
    assert there.run("echo $SSH_CONNECTION").stdout.decode().split()[-1] == str(last.port)
    assert there.run("true").code == 0
    assert [server.logins - earlier for server, earlier in zip(servers, before, strict=True)] == [1, 1, 1]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_jump_host_that_has_a_jump_host_itself(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    carrier: str,
) -> None:
    carry(monkeypatch, carrier)
    gate, inner, last = servers
    config = host("gate", gate) + host("inner", inner, "ProxyJump gate")
    folder = folder_of(tmp_path, *servers, config=config + host(ALIAS, last, "ProxyJump inner"))
    assert reach(folder=str(folder)).run("echo ok").stdout == b"ok\n"


def test_jump_hosts_in_a_circle_are_named(tmp_path: Path, reach: Callable[..., Connection]) -> None:
    (tmp_path / "config").write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    with pytest.raises(Unreachable, match="in a circle") as told:
        reach("a", folder=str(tmp_path)).connect()
    assert not told.value.retryable


@pytest.mark.parametrize("carrier", [*CARRIERS, "no program"])
def test_a_proxy_command_carries_the_connection(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    carrier: str,
) -> None:
    carry(monkeypatch, carrier)
    if carrier == "no program":
        monkeypatch.setattr(ssh_config, "PROGRAM", "no-such-program")
    gate, _, last = servers
    folder = folder_of(tmp_path, gate, last)
    words = f"ssh -F {folder}/config -i {folder}/id_ed25519 -o UserKnownHostsFile={folder}/known_hosts -W %h:%p gate"
    (folder / "config").write_text(host("gate", gate) + host(ALIAS, last, f"ProxyCommand {words}"))
    before = gate.logins
    there = reach(folder=str(folder))
    assert there.run("echo $SSH_CONNECTION").stdout.decode().split()[-1] == str(last.port)
    assert gate.logins == before + 1


def test_a_connection_that_a_person_has_opened_is_used(
    servers: list[Sshd], reach: Callable[..., Connection], tmp_path: Path
) -> None:
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


# -- host keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", CARRIERS)
def test_an_unknown_a_changed_and_a_revoked_host_key_are_refused(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    carrier: str,
) -> None:
    carry(monkeypatch, carrier)
    server = servers[0]
    folder = folder_of(tmp_path, server, config=host(ALIAS, server))
    known, name = folder / "known_hosts", f"[127.0.0.1]:{server.port}"
    make_key(tmp_path / "other")
    other = (tmp_path / "other.pub").read_text()
    for text, words, remedy in (
        ("", "is not known here", "ssh-keyscan"),
        (f"{name} {other}", "is not the one that is known", "ssh-keygen -R"),
        (f"@revoked {name} {server.host_key}{name} {server.host_key}", "is revoked", "ask the site"),
    ):
        known.write_text(text)
        there = reach(folder=str(folder))
        with pytest.raises(Unreachable, match=f"Host key verification failed: its host key {words}") as told:
            there.connect()
        assert remedy in told.value.remedy
        assert not told.value.retryable
        # To store the right key is enough; no one has to wait.
        known.write_text(f"{name} {server.host_key}")
        there.connect()
        there.close()


def test_hosts_are_known_by_hash_by_pattern_and_without_a_port(
    servers: list[Sshd], reach: Callable[..., Connection], tmp_path: Path
) -> None:
    server = servers[0]
    folder = folder_of(tmp_path, server, config=host(ALIAS, server) + "\nHost *\n  HostKeyAlias none\n")
    known = folder / "known_hosts"
    for name in (f"[127.0.0.1]:{server.port}", "127.0.0.1", "127.0.0.*,!127.0.0.9", "*"):
        known.write_text(f"# hosts\n\n{name} {server.host_key}")
        assert reach(folder=str(folder)).run("true").code == 0
        if "*" not in name:
            subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, capture_output=True)
            assert known.read_text().count("|1|") == 1
            with_hash = reach(folder=str(folder))
            assert with_hash.run("true").code == 0
    known.write_text(f"127.0.0.*,!127.0.0.1 {server.host_key}")
    fresh = folder_of(tmp_path, server, config=host(ALIAS, server))
    shutil.copy(known, fresh / "known_hosts")
    with pytest.raises(Unreachable, match="not known here"):
        reach(folder=str(fresh)).connect()


def test_a_host_certificate_is_trusted_by_its_authority(tmp_path: Path, reach: Callable[..., Connection]) -> None:
    server = new_server()
    try:
        make_key(tmp_path / "authority")
        words = ["ssh-keygen", "-q", "-s", str(tmp_path / "authority"), "-I", "box", "-h", "-n", "127.0.0.1"]
        subprocess.run([*words, str(server.folder / "host_key.pub")], check=True)
        with open(server.folder / "sshd_config", "a") as config:
            config.write(f"HostCertificate {server.folder}/host_key-cert.pub\n")
        server.stop()
        server.run()
        known = server.ssh_folder / "known_hosts"
        authority = (tmp_path / "authority.pub").read_text()
        known.write_text(f"@cert-authority 127.0.0.* {authority}")
        there = reach(folder=str(server.ssh_folder))
        assert there.run("echo trusted").stdout == b"trusted\n"
        assert carrier_of(there) is ProgramTrunk
        there.close()
        known.write_text(f"@cert-authority 10.0.0.* {authority}")
        with pytest.raises(Unreachable, match="not known here"):
            reach(folder=str(server.ssh_folder)).connect()
    finally:
        server.remove()


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_key_with_a_passphrase(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    carrier: str,
) -> None:
    carry(monkeypatch, carrier)
    server = servers[0]
    folder = folder_of(tmp_path, server, config=host(ALIAS, server))
    key = folder / "locked"
    (folder / "id_ed25519").rename(key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a phrase", "-f", str(key)], check=True)
    given = {"folder": str(folder), "key_path": str(key)}
    assert reach(**given, passphrase="a phrase").run("echo open").stdout == b"open\n"
    for passphrase in (None, "wrong"):
        with pytest.raises(Unreachable) as told:
            reach(**given, passphrase=passphrase).connect()
        assert not told.value.retryable
        if carrier == "paramiko":
            assert "passphrase" in told.value.cause


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_keys_of_an_agent(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    carrier: str,
) -> None:
    carry(monkeypatch, carrier)
    server, plug = servers[0], tmp_path / "agent"
    folder = folder_of(tmp_path, server, config=host(ALIAS, server))
    key = tmp_path / "elsewhere"
    (folder / "id_ed25519").rename(key)
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(plug)], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(plug))
        there = reach(folder=str(folder))
        while not plug.exists():
            time.sleep(0.05)
        with pytest.raises(Unreachable, match="login was refused"):
            there.connect()
        subprocess.run(["ssh-add", "-q", str(key)], check=True, capture_output=True)
        # What the agent has got since is tried at once.
        assert there.run("echo agent").stdout == b"agent\n"
    finally:
        agent.terminate()
        agent.wait()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_refused_login_is_tried_once(
    servers: list[Sshd],
    reach: Callable[..., Connection],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    carrier: str,
) -> None:
    carry(monkeypatch, carrier)
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


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_login_whose_shell_runs_nothing_is_said_at_once(
    reach: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    carry(monkeypatch, carrier)
    server = new_server(ForceCommand="echo 'This account is currently not available.'")
    try:
        with pytest.raises(Unreachable, match="runs no commands, it says: This account is currently not") as told:
            reach(folder=str(server.ssh_folder)).run("true")
        assert not told.value.retryable
    finally:
        server.remove()


async def test_a_machine_that_is_away_is_waited_for(tmp_path: Path, reach: Callable[..., Connection]) -> None:
    with pytest.raises(Unreachable, match="onnection refused") as told:
        await asyncio.to_thread(reach("127.0.0.1", port=free_port(), folder=str(tmp_path)).connect)
    assert told.value.retryable


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_host_that_wants_a_second_factor_is_named_as_such(
    reach: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch, carrier: str
) -> None:
    carry(monkeypatch, carrier)
    server = new_server(AuthenticationMethods="publickey,password", PasswordAuthentication="yes", PermitRootLogin="yes")
    try:
        with pytest.raises(Unreachable, match=r"two-factor authentication: after the key it asks for") as told:
            reach(folder=str(server.ssh_folder)).connect()
        assert "ControlMaster" in told.value.remedy
        assert not told.value.retryable
    finally:
        server.remove()


def test_a_jump_host_that_refuses_is_named(
    servers: list[Sshd], reach: Callable[..., Connection], tmp_path: Path
) -> None:
    gate, _, last = servers
    folder = folder_of(tmp_path, last, config=host("gate", gate) + host(ALIAS, last, "ProxyJump gate"))
    with open(folder / "known_hosts", "a") as known:
        known.write(f"[127.0.0.1]:{gate.port} {gate.host_key}")
    with pytest.raises(Unreachable, match=rf"jump host \S+@127.0.0.1:{gate.port}: .*login was refused"):
        reach(folder=str(folder)).connect()


# -- noise -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def noisy(tmp_path: Path) -> Iterator[Sshd]:
    """A machine whose .bashrc prints, with an sftp server that breaks on that."""
    (tmp_path / ".bashrc").write_text("echo Welcome to the cluster; echo 'mind the quota' >&2\n")
    server = new_server({"HOME": str(tmp_path)}, Subsystem="sftp /usr/lib/openssh/sftp-server")
    yield server
    server.remove()


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_noisy_login_shell_disturbs_neither_commands_nor_files_nor_streams(
    noisy: Sshd, reach: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, carrier: str
) -> None:
    carry(monkeypatch, carrier)
    there = reach(folder=str(noisy.ssh_folder))
    assert there.run("echo answer") == (0, b"answer\n", b"")
    there.put({f"{tmp_path}/made/file": b"data"})
    assert (tmp_path / "made" / "file").read_bytes() == b"data"
    stream = there.stream("cat")
    stream.send(b"bytes")
    assert stream.receive() == b"bytes"
    stream.close()


def test_a_file_that_cannot_be_written_is_said_in_the_machines_words(
    servers: list[Sshd], reach: Callable[..., Connection], tmp_path: Path
) -> None:
    there = reach(folder=str(folder_of(tmp_path, servers[0], config=host(ALIAS, servers[0]))))
    with pytest.raises(OSError, match="/proc/none"):
        there.put({"/proc/none/file": b"x"})
