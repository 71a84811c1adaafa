"""A real sshd on a free port of the loopback, and an ssh folder of someone who may log in to it."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import debian
import pytest

ALIAS = "gpu-box"
START_SECONDS = 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as plug:
        return int(plug.getsockname()[1])


class Sshd:
    """`sshd` on a free port of the loopback, and an ssh folder whose configuration knows it only through an Include."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.ssh_folder = folder / "client"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def user(self) -> str:
        return pwd.getpwuid(os.getuid()).pw_name

    @property
    def host_key(self) -> str:
        """Its public key, as known_hosts files have it."""
        return (self.folder / "host_key.pub").read_text()

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text()

    @property
    def logins(self) -> int:
        """How many logins it has accepted."""
        return self.log.count("Accepted publickey")

    @property
    def connections(self) -> int:
        """How many connections came, whatever became of them."""
        return self.log.count("Connection from ")

    def start(self, environment: Mapping[str, str], **more: str) -> None:
        self.ssh_folder.mkdir()
        for name in ("host_key", "client/id_ed25519"):
            make_key(self.folder / name)
        shutil.copy(self.folder / "client/id_ed25519.pub", self.folder / "authorized_keys")
        (self.ssh_folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {self.host_key}")
        (self.ssh_folder / "boxes").write_text(f"Host {ALIAS}\n  HostName 127.0.0.1\n  Port {self.port}\n")
        (self.ssh_folder / "config").write_text(f"Include {self.ssh_folder}/boxes\n")
        given = " ".join(f'{name}="{value}"' for name, value in environment.items())
        settings = {
            "Port": str(self.port),
            "ListenAddress": "127.0.0.1",
            "HostKey": str(self.folder / "host_key"),
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"),
            "PidFile": "none",
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "PermitRootLogin": "prohibit-password",
            "LogLevel": "VERBOSE",
            "MaxStartups": "100",
            "SetEnv": given,
            **more,
        }
        (self.folder / "sshd_config").write_text(
            "".join(f"{name} {value}\n" for name, value in settings.items() if value)
        )
        Path("/run/sshd").mkdir(exist_ok=True)
        self.run()

    def run(self) -> None:
        program = shutil.which("sshd", path=debian.PATH)
        assert program
        (self.folder / "sshd.log").touch()
        begun = self.log.count("Server listening")
        with open(self.folder / "sshd.log", "ab") as log:
            words = [program, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while self.log.count("Server listening") == begun:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd did not start: {self.log[-1000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(10)

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def make_key(path: Path, passphrase: str = "") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-f", str(path)], check=True)


def new_server(environment: Mapping[str, str] | None = None, **settings: str) -> Sshd:
    """A running sshd; skips the test where there can be none. `settings` are those of sshd_config."""
    try:
        debian.ensure({"sshd": "openssh-server", "ssh": "openssh-client"})
    except debian.Missing as error:
        pytest.skip(str(error))
    server = Sshd(Path(tempfile.mkdtemp(prefix="tao-sshd-")))
    server.start({"PATH": debian.PATH, **(environment or {})}, **settings)
    return server
