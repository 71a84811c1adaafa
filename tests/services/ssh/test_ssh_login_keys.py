"""What a person logs in with: keys with a passphrase, and those of an agent."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from ssh_server import ALIAS, Sshd
from ssh_tools import Reach, folder_of, host

from prefect_tao.jobs.errors import Unreachable


def test_a_key_with_a_passphrase(servers: list[Sshd], reach: Reach, tmp_path: Path, carrier: str) -> None:
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


@pytest.mark.usefixtures("carrier")
def test_the_keys_of_an_agent(
    servers: list[Sshd], reach: Reach, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
