"""A Postgres of the server's own: in a folder, on the loopback, with a password that only its owner can read."""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from prefect_tao.server.postgres_programs import PostgresPrograms

USER = "prefect"
ACCOUNTS = ("postgres", "nobody")  # whom it runs as when we are root, which it refuses to
START_SECONDS, STOP_SECONDS = 60.0, 10.0
_LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


class PostgresFailed(Exception):
    """It does not start, or has ended; with its own words."""


class Postgres:
    """One cluster in `folder`. It ends with the process that started it, however that ends."""

    def __init__(self, folder: Path, programs: PostgresPrograms) -> None:
        self._account = _account() if os.geteuid() == 0 else None
        self._programs = programs.for_everyone() if self._account else programs
        self._folder, self._data = folder, folder / "data"
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """As Prefect takes it."""
        return f"postgresql+asyncpg://{USER}:{self._password.read_text()}@127.0.0.1:{self._port}/postgres"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def _password(self) -> Path:
        return self._folder / "password"

    @property
    def _path(self) -> str:
        """The data folder as the programs are told. Another account need not reach it by name: it starts in it."""
        return "/proc/self/cwd" if self._account else str(self._data)

    def create(self) -> None:
        """Make the cluster anew; what a start that was broken off has left is removed. Raises PostgresFailed."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._data.mkdir(parents=True, mode=0o700)
        self._folder.chmod(0o700)
        password = secrets.token_hex(24)
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(password)
            file.flush()
            if self._account:
                os.chown(self._data, self._account.pw_uid, self._account.pw_gid)
                os.chown(file.name, self._account.pw_uid, self._account.pw_gid)
            words = ["-U", USER, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", f"--pwfile={file.name}"]
            done = self._start("initdb", "-D", self._path, *words)
            if done.wait():
                raise PostgresFailed(self._told())
        self._password.touch(mode=0o600)
        self._password.write_text(password)

    def start(self) -> None:
        """Returns when it answers. Raises PostgresFailed."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self._port = _free_port()
            settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": self._port}
            self._process = self._start(
                "postgres", "-D", self._path, *(f"--{key}={value}" for key, value in settings.items())
            )
            while self.alive and time.monotonic() < deadline:
                if self._is_ready():
                    return
                time.sleep(0.05)
            if self.alive or "postmaster.pid" not in self._told():
                break
            time.sleep(0.5)  # the one of a server that was killed just now is about to end
        self.stop()
        raise PostgresFailed(self._told())

    def stop(self) -> None:
        """End it, without loss: what was written down stays written even where it has to be killed."""
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
            if self._process is None or not self.alive:
                return
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                continue

    def _is_ready(self) -> bool:
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return self._process is not None and lines[:1] == [str(self._process.pid)] and lines[-1].strip() == "ready"

    def _start(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        account = self._account
        with open(self._folder / "log", "wb") as log:
            return subprocess.Popen(
                [self._programs.folder / program, *words],
                cwd=self._data,
                env={"PATH": os.defpath, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C at a terminal is for us to pass on, when Prefect's server has ended
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
                preexec_fn=partial(end_with_parent, signal.SIGINT),
            )

    def _told(self) -> str:
        return (self._folder / "log").read_text(errors="replace").strip()[-2000:]


def end_with_parent(number: signal.Signals) -> None:
    """For a new process: it gets this signal when the one that started it ends, even by SIGKILL."""
    _LIBC.prctl(PR_SET_PDEATHSIG, number)


def _account() -> pwd.struct_passwd:
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresFailed(f"as root it needs one of these accounts: {', '.join(ACCOUNTS)}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
