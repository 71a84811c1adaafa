"""A login by the ssh program of this machine, for what paramiko lacks. Its sessions share one connection."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from prefect_tao.platforms.ssh import faults, trunk
from prefect_tao.platforms.ssh.faults import Lost
from prefect_tao.platforms.ssh.framing import ERR, OUT
from prefect_tao.platforms.ssh.ssh_config import PROGRAM, Route
from prefect_tao.platforms.ssh.trunk import Channel, Trunk

# How long the shared connection outlives a process that was killed.
KEEP_SECONDS = 600
ALIVE_SECONDS = 15
_BLOCK = 1 << 16
_DAY = 86_400_000


class ProgramTrunk(Trunk):
    """The ssh program's shared connection: our own, or one that a person has opened by hand."""

    room = 64  # ssh makes another connection by itself when this one is full

    def __init__(self, routes: Sequence[Route]) -> None:
        """Log in. Raises Silent with what to do."""
        self._routes = routes
        self._folder = tempfile.mkdtemp(prefix="tao-ssh-")
        try:
            self._environment = self._with_passphrase()
            theirs = routes[-1].control_path
            self._is_theirs = bool(theirs) and self._answers(theirs)
            self.control = theirs if self._is_theirs else f"{self._folder}/c"
            if not self._is_theirs:
                self._log_in()
        except BaseException:
            self.close()
            raise

    @property
    def is_active(self) -> bool:
        return os.path.exists(self.control)

    def open(self, wire: str) -> Channel:
        if not self.is_active:
            raise Lost("the connection is closed")
        return _ProgramChannel([*self._words("ControlMaster=no"), "--", self._host, wire], self._environment)

    def close(self) -> None:
        control = Path(self._folder) / "c"
        with suppress(OSError, subprocess.TimeoutExpired):
            if control.exists():
                words = [PROGRAM, "-o", f"ControlPath={control}", "-O", "exit", "--", self._host]
                subprocess.run(words, capture_output=True, timeout=5, check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _host(self) -> str:
        return self._routes[-1].destination.host

    def _answers(self, control: str) -> bool:
        words = [PROGRAM, "-o", f"ControlPath={control}", "-O", "check", "--", self._host]
        with suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(words, capture_output=True, timeout=5, check=False).returncode == 0
        return False

    def _log_in(self) -> None:
        """The first call makes the connection that all others share, and its words say what is wrong."""
        words = [*self._words("ControlMaster=yes", f"ControlPersist={KEEP_SECONDS}"), "--", self._host, "exit 0"]
        seconds = trunk.CONNECT_SECONDS * (1 + len(self._routes))
        # Not by pipes: the connection that stays behind would keep them open and us waiting.
        with tempfile.TemporaryFile() as errors:
            try:
                subprocess.run(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    timeout=seconds,
                    env=self._environment,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise faults.unreached(self._routes[-1], f"no answer within {seconds:g} s") from None
            errors.seek(0)
            said = errors.read().decode(errors="replace")
        if not self.is_active:
            raise faults.of_program(self._routes[-1], said)

    def _words(self, *options: str) -> list[str]:
        """The ssh command line; never asks anything, because no one is there to answer."""
        given = [
            f"ControlPath={self.control}",
            "ClearAllForwardings=yes",
            "PermitLocalCommand=no",
            "RemoteCommand=none",
            *self._common(),
            *options,
        ]
        words = [PROGRAM, "-T", *(part for option in given for part in ("-o", option))]
        if len(self._routes) > 1:
            words += ["-o", f"ProxyCommand={self._through(self._routes[:-1])}"]
        return [*words, *self._routes[-1].destination.options()]

    def _common(self) -> list[str]:
        batch = "no" if self._environment else "yes"
        return [
            f"BatchMode={batch}",
            f"ConnectTimeout={max(1, round(trunk.CONNECT_SECONDS))}",
            f"ServerAliveInterval={ALIVE_SECONDS}",
            "LogLevel=ERROR",
            *(["PasswordAuthentication=no", "KbdInteractiveAuthentication=no"] if self._environment else []),
        ]

    def _through(self, routes: Sequence[Route]) -> str:
        """The command that leads through the jump hosts, each known by the same files as with paramiko."""
        *before, last = routes
        words = [PROGRAM, *(part for option in self._common() for part in ("-o", option))]
        if before:
            words += ["-o", "ProxyCommand=" + self._through(before).replace("%", "%%")]
        return shlex.join([*words, *last.destination.options(), "-W", "[%h]:%p", "--", last.destination.host])

    def _with_passphrase(self) -> dict[str, str] | None:
        """An environment in which ssh gets the passphrase from a file that only we can read; None without one."""
        passphrase = self._routes[-1].destination.passphrase
        if not passphrase:
            return None
        secret, program = Path(self._folder) / "passphrase", Path(self._folder) / "ask"
        secret.touch(0o600)
        secret.write_text(f"{passphrase}\n")
        program.write_text(f"#!/bin/sh\nexec cat {shlex.quote(str(secret))}\n")
        program.chmod(0o700)
        return {**os.environ, "SSH_ASKPASS": str(program), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":0"}


class _ProgramChannel(Channel):
    def __init__(self, words: list[str], environment: dict[str, str] | None) -> None:
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us
        )
        process = self._process
        self._input, self._output, self._errors = (
            cast(IO[bytes], pipe) for pipe in (process.stdin, process.stdout, process.stderr)
        )
        self._streams = {self._output.fileno(): OUT, self._errors.fileno(): ERR}
        self._poll = select.poll()
        for number in self._streams:
            self._poll.register(number, select.POLLIN)

    def send(self, data: bytes, deadline: float) -> None:
        number = self._input.fileno()
        os.set_blocking(number, False)
        writable, rest = select.poll(), memoryview(data)
        writable.register(number, select.POLLOUT)
        while rest:
            if not writable.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
                raise Lost("no answer in time")
            try:
                rest = rest[os.write(number, rest[:_BLOCK]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise Lost(str(error)) from error

    def receive(self, deadline: float) -> tuple[int, bytes] | None:
        while self._streams:
            ready = self._poll.poll(min(_DAY, max(0.0, 1000 * (deadline - time.monotonic()))))
            if not ready:
                raise Lost("no answer in time")
            for number, _ in ready:
                if data := os.read(number, _BLOCK):
                    return self._streams[number], data
                self._poll.unregister(number)
                del self._streams[number]
        return None

    def end_input(self) -> None:
        with suppress(OSError):
            self._input.close()

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(trunk.OPEN_SECONDS)
        for pipe in (self._input, self._output, self._errors):
            with suppress(OSError):
                pipe.close()
