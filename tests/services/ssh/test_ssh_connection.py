"""What a connection does, on a real sshd and with both carriers: commands, files, streams, whatever a shell prints."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from ssh_server import ALIAS, Sshd
from ssh_tools import MakeServer, Reach, carrier_of, folder_of, host

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.ssh.paramiko_trunk import ParamikoTrunk
from prefect_tao.platforms.ssh.program_trunk import ProgramTrunk


def test_commands_files_and_streams_share_one_login(
    servers: list[Sshd], reach: Reach, tmp_path: Path, carrier: str
) -> None:
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


@pytest.mark.usefixtures("carrier")
def test_a_background_process_and_a_slow_one_keep_no_one_waiting(
    servers: list[Sshd], reach: Reach, tmp_path: Path
) -> None:
    there = reach(folder=str(folder_of(tmp_path, servers[0], config=host(ALIAS, servers[0]))))
    began = time.monotonic()
    assert there.run("sleep 60 & echo begun").stdout == b"begun\n"
    with pytest.raises(Unreachable, match="no answer within 1 s") as told:
        there.run("sleep 60", timeout=1)
    assert told.value.retryable
    assert there.run("echo again").stdout == b"again\n"
    assert time.monotonic() - began < 30


def test_many_streams_and_commands_at_once_all_get_through(servers: list[Sshd], reach: Reach, tmp_path: Path) -> None:
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


def test_a_connection_that_has_died_is_made_anew(reach: Reach, tmp_path: Path, servers: list[Sshd]) -> None:
    there = reach(folder=str(folder_of(tmp_path, servers[2], config=host(ALIAS, servers[2]))))
    there.connect()
    for each in there._shared._trunks:  # type: ignore[union-attr]
        each._transport.sock.close()  # type: ignore[attr-defined]
    assert there.run("echo back").stdout == b"back\n"


@pytest.fixture
def noisy(make_server: MakeServer, tmp_path: Path) -> Sshd:
    """A machine whose .bashrc prints, with an sftp server that breaks on that."""
    (tmp_path / ".bashrc").write_text("echo Welcome to the cluster; echo 'mind the quota' >&2\n")
    return make_server({"HOME": str(tmp_path)}, Subsystem="sftp /usr/lib/openssh/sftp-server")


@pytest.mark.usefixtures("carrier")
def test_a_noisy_login_shell_disturbs_neither_commands_nor_files_nor_streams(
    noisy: Sshd, reach: Reach, tmp_path: Path
) -> None:
    there = reach(folder=str(noisy.ssh_folder))
    assert there.run("echo answer") == (0, b"answer\n", b"")
    there.put({f"{tmp_path}/made/file": b"data"})
    assert (tmp_path / "made" / "file").read_bytes() == b"data"
    stream = there.stream("cat")
    stream.send(b"bytes")
    assert stream.receive() == b"bytes"
    stream.close()


def test_a_file_that_cannot_be_written_is_said_in_the_machines_words(
    servers: list[Sshd], reach: Reach, tmp_path: Path
) -> None:
    there = reach(folder=str(folder_of(tmp_path, servers[0], config=host(ALIAS, servers[0]))))
    with pytest.raises(OSError, match="/proc/none"):
        there.put({"/proc/none/file": b"x"})
