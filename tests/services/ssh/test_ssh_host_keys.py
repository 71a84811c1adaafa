"""Host keys, on a real sshd: as strict as OpenSSH's own program."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from ssh_server import ALIAS, Sshd, make_key
from ssh_tools import MakeServer, Reach, carrier_of, folder_of, host

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.ssh.program_trunk import ProgramTrunk


@pytest.mark.usefixtures("carrier")
def test_an_unknown_a_changed_and_a_revoked_host_key_are_refused(
    servers: list[Sshd], reach: Reach, tmp_path: Path
) -> None:
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
    servers: list[Sshd], reach: Reach, tmp_path: Path
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


def test_a_host_certificate_is_trusted_by_its_authority(make_server: MakeServer, tmp_path: Path, reach: Reach) -> None:
    server = make_server()
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
