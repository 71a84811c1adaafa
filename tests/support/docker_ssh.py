"""A real sshd in front of an engine: whoever logs in finds a docker command that knows the engine."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import debian
import pytest
from docker_engine import Engine, free_port

ALIAS = "gpu-box"
START_SECONDS = 20


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

    def start(self, environment: dict[str, str]) -> None:
        self.ssh_folder.mkdir()
        for name in ("host_key", "client/id_ed25519"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(words, check=True)
        shutil.copy(self.folder / "client/id_ed25519.pub", self.folder / "authorized_keys")
        host_key = (self.folder / "host_key.pub").read_text()
        (self.ssh_folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}")
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
            "SetEnv": given,
        }
        (self.folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        Path("/run/sshd").mkdir(exist_ok=True)
        self.run()

    def run(self) -> None:
        program = shutil.which("sshd", path=debian.PATH)
        assert program
        with open(self.folder / "sshd.log", "ab") as log:
            words = [program, "-D", "-e", "-f", str(self.folder / "sshd_config")]
            self.process = subprocess.Popen(words, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while "Server listening" not in (self.folder / "sshd.log").read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd did not start: {(self.folder / 'sshd.log').read_text()[-1000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process:
            self.process.terminate()
            self.process.wait(10)


def new_sshd(socket: Path) -> Sshd:
    """An sshd whose logins reach the engine at `socket`; skips the test where there can be none."""
    try:
        debian.ensure({"sshd": "openssh-server", "ssh": "openssh-client"})
    except debian.Missing as error:
        pytest.skip(str(error))
    sshd = Sshd(Path(tempfile.mkdtemp(prefix="tao-sshd-")))
    sshd.start({"DOCKER_HOST": f"unix://{socket}", "PATH": debian.PATH})
    return sshd


@pytest.fixture(scope="module")
def sshd(engine: Engine) -> Iterator[Sshd]:
    """One sshd for the tests of a module; it leads to the engine by way of the proxy's socket."""
    running = new_sshd(engine.folder / "proxy.sock")
    yield running
    running.stop()
    shutil.rmtree(running.folder, ignore_errors=True)
