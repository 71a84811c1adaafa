"""Another machine over the system's own ssh: commands there, and its Docker engine as a socket here.

The ssh program reads the user's whole configuration (Include, Port, ProxyCommand, agents), which Python clients only
guess at; so it makes every connection, and all of them share one login.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, TaoError, Unreachable

CONNECT_SECONDS = 15
KEEP_SECONDS = 60
ALIVE_SECONDS = 15
LOST = 255  # what ssh itself ends with when it has no connection
DIAL = "docker system dial-stdio"


class Silent(Unreachable):
    """The engine or its host did not answer at all, so nothing is known of any job there."""


@dataclass
class Login:
    """How to log in: `destination` is a host or an alias of ssh's configuration, `folder` replaces ~/.ssh."""

    destination: str
    user: str | None = None
    port: int | None = None
    folder: Path | None = None
    _shared: str = field(default="", init=False, repr=False)

    @classmethod
    def parse(cls, url: str, folder: str | None = None) -> Login:
        """The login of ssh://user@host:port; user and port are ssh's own choice where left out. Raises InvalidInput."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidInput(f"{url} has no usable port", "write ssh://user@host:22") from None
        host = parts.netloc.rpartition("@")[2].partition(":")[0] if "[" not in parts.netloc else parts.hostname
        if not host or host.startswith("-") or (parts.username or "").startswith("-") or parts.path.strip("/"):
            raise InvalidInput(f"{url} names no host", "write ssh://user@host, or ssh:// and an alias of ~/.ssh/config")
        return cls(host, parts.username, port, Path(folder).expanduser() if folder else None)

    @property
    def shared(self) -> str:
        """The private folder that holds the sockets of this login, made when it is first needed."""
        if not self._shared:
            self._shared = tempfile.mkdtemp(prefix="tao-ssh-")
        return self._shared

    def words(self, command: str = "") -> list[str]:
        """The ssh command line; never asks anything, because nobody is there to answer."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(CONNECT_SECONDS),
            "ServerAliveInterval": str(ALIVE_SECONDS),
            "ControlMaster": "auto",
            "ControlPath": f"{self.shared}/c",
            "ControlPersist": str(KEEP_SECONDS),
            "ClearAllForwardings": "yes",
            "LogLevel": "ERROR",
        }
        words = ["ssh", "-T", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
        words += [*self._own_folder(), *(["-l", self.user] if self.user else [])]
        words += ["-p", str(self.port)] if self.port else []
        return [*words, "--", self.destination, *([command] if command else [])]

    def _own_folder(self) -> list[str]:
        """Options that make ssh look into another folder than ~/.ssh."""
        if self.folder is None:
            return []
        words = ["-F", str(self.folder / "config")] if (self.folder / "config").exists() else []
        if (self.folder / "known_hosts").exists():
            words += ["-o", f"UserKnownHostsFile={shlex.quote(str(self.folder / 'known_hosts'))}"]
        for name in ("id_ed25519", "id_ecdsa", "id_rsa"):
            words += ["-i", str(self.folder / name)] if (self.folder / name).exists() else []
        return words

    def run(self, command: str, stdin: bytes = b"", timeout: float = 60.0) -> bytes:
        """What a command there prints. Raises Unreachable without a connection, InvalidInput when it fails."""
        done = self.attempt(command, stdin, timeout)
        if done.returncode == LOST:
            raise lost(self.destination, done.stderr.decode(errors="replace"))
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise InvalidInput(f"{self.destination}: {said}", "check it there by hand")
        return done.stdout

    def shell(self, command: str) -> tuple[int, bytes]:
        """How a command there ended and what it printed. Raises Unreachable without a connection."""
        done = self.attempt(command)
        if done.returncode == LOST:
            raise lost(self.destination, done.stderr.decode(errors="replace"))
        return done.returncode, done.stdout

    def attempt(self, command: str, stdin: bytes = b"", timeout: float = 60.0) -> subprocess.CompletedProcess[bytes]:
        """Run a command there, however it ends. Raises Unreachable when it does not end in time."""
        if not shutil.which("ssh"):
            raise MissingDependency("there is no ssh program on this machine", "install openssh-client")
        try:
            # Not by pipes alone: the login that stays behind would keep them open and us waiting.
            with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
                done = subprocess.run(
                    self.words(command), input=stdin, stdout=out, stderr=errors, timeout=timeout, check=False
                )
                out.seek(0)
                errors.seek(0)
                return subprocess.CompletedProcess(done.args, done.returncode, out.read(), errors.read())
        except subprocess.TimeoutExpired:
            raise Silent(
                f"{self.destination} did not answer within {timeout:g} s", "check the host and the network"
            ) from None

    def close(self) -> None:
        """End the shared login and remove its folder."""
        if not self._shared:
            return
        with suppress(OSError, subprocess.TimeoutExpired):
            if (Path(self._shared) / "c").exists():
                words = ["ssh", "-o", f"ControlPath={self._shared}/c", "-O", "exit", "--", self.destination]
                subprocess.run(words, capture_output=True, timeout=5, check=False)
        shutil.rmtree(self._shared, ignore_errors=True)
        self._shared = ""


class EngineSocket:
    """A socket here that leads to the Docker engine there; every connection is one `docker system dial-stdio`."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.path = f"{login.shared}/engine.sock"
        self._listener: socket.socket | None = None
        self._dialed: list[subprocess.Popen[bytes]] = []
        self._opening = threading.Lock()

    @property
    def url(self) -> str:
        """What a Docker client connects to."""
        return f"unix://{self.path}"

    def open(self) -> None:
        """Listen, once the engine there has answered. Raises Unreachable, InvalidInput, MissingDependency."""
        with self._opening:
            if self._listener is not None:
                return
            # This first call makes the login that all others share, and its words tell what is wrong.
            done = self.login.attempt(DIAL)
            if done.returncode:
                raise _refused(self.login.destination, done.returncode, done.stderr.decode(errors="replace").strip())
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(self.path)
            os.chmod(self.path, 0o600)
            listener.listen(64)
            self._listener = listener
            threading.Thread(target=self._accept, args=(listener,), daemon=True, name="tao-ssh").start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):  # ssh has its own copy of the connection from here on
                there = connection.fileno()
                self._dialed.append(
                    subprocess.Popen(self.login.words(DIAL), stdin=there, stdout=there, stderr=subprocess.DEVNULL)
                )
            self._dialed = [child for child in self._dialed if child.poll() is None]

    def close(self) -> None:
        """Stop listening and end the connections that are open."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for child in self._dialed:
            child.terminate()
        for child in self._dialed:
            with suppress(subprocess.TimeoutExpired):
                child.wait(5)
        self._dialed = []


def _refused(host: str, code: int, said: str) -> TaoError:
    if code == LOST:
        return lost(host, said)
    last = said.splitlines()[-1] if said else f"exit code {code}"
    if "not found" in last or code == 127:
        return Unreachable(f"{host} has no docker command: {last}", f"install Docker on {host}")
    if "permission denied" in said.lower():
        return Unreachable(
            f"the login on {host} may not use Docker there: {last}",
            f"on {host}: sudo usermod -aG docker $USER, then try again",
        )
    return Unreachable(
        f"the Docker engine on {host} does not answer: {last}", f"on {host}: sudo systemctl start docker"
    )


def lost(host: str, said: str) -> Silent:
    """Why there is no connection, in ssh's own words and with what to do about it."""
    last = next((line for line in reversed(said.strip().splitlines()) if line), "no connection")
    remedy = f"try it by hand: ssh -o BatchMode=yes {host} true"
    if "Host key verification failed" in said:
        remedy = f"trust the host first: ssh-keyscan -H {host} >> ~/.ssh/known_hosts"
    elif "Permission denied" in said:
        remedy = f"let the host know your key: ssh-copy-id {host}; a key with a passphrase has to be in an ssh agent"
    return Silent(f"{host} cannot be reached over ssh: {last}", remedy)
