"""A socket here that leads to the Docker engine of another machine."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from contextlib import suppress

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.ssh.connection import Connection, Stream
from prefect_tao.platforms.ssh.framing import CommandResult

DIAL = "docker system dial-stdio"
_BLOCK = 1 << 16


class EngineSocket:
    """Every connection to it is one `docker system dial-stdio` there. `fault` is why the last one failed."""

    def __init__(self, there: Connection) -> None:
        self.there = there
        self.fault: Unreachable | None = None
        self._folder = ""
        self._listener: socket.socket | None = None
        self._opening = threading.Lock()
        self._streams: set[Stream] = set()

    @property
    def url(self) -> str:
        """What a Docker client connects to, once it is open."""
        return f"unix://{self._folder}/engine.sock"

    def open(self) -> None:
        """Listen, once the engine there has answered. Raises Unreachable, MissingDependency."""
        with self._opening:
            if self._listener is not None:
                return
            answer = self.there.run(DIAL)
            if answer.code:
                raise _no_engine(self.there.destination.host, answer)
            self._folder = tempfile.mkdtemp(prefix="tao-docker-")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(f"{self._folder}/engine.sock")
            os.chmod(f"{self._folder}/engine.sock", 0o600)
            listener.listen(64)
            self._listener = listener
            threading.Thread(target=self._accept, args=(listener,), daemon=True, name="tao-docker-ssh").start()

    def close(self) -> None:
        """Stop listening and end the connections that are open."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        for stream in list(self._streams):
            stream.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                plug, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(plug,), daemon=True, name="tao-docker-ssh").start()

    def _serve(self, plug: socket.socket) -> None:
        """Carry one connection until the engine's side ends."""
        with plug:
            try:
                stream = self.there.stream(DIAL)
            except Unreachable as fault:
                self.fault = fault
                return
            self.fault = None
            self._streams.add(stream)
            threading.Thread(target=_send_on, args=(plug, stream), daemon=True, name="tao-docker-ssh").start()
            try:
                while data := stream.receive():
                    plug.sendall(data)
            except (OSError, Unreachable):
                pass
            finally:
                self._streams.discard(stream)
                stream.close()
                with suppress(OSError):
                    plug.shutdown(socket.SHUT_RDWR)


def _send_on(plug: socket.socket, stream: Stream) -> None:
    with suppress(OSError, Unreachable):
        while data := plug.recv(_BLOCK):
            stream.send(data)
    stream.end_input()


def _no_engine(host: str, answer: CommandResult) -> Unreachable:
    said, last = answer.stderr.decode(errors="replace"), answer.words
    if "not found" in last or answer.code == 127:
        return Unreachable(f"{host} has no docker command: {last}", f"install Docker on {host}", retryable=False)
    if "permission denied" in said.lower():
        return Unreachable(
            f"the login on {host} may not use Docker there: {last}",
            f"on {host}: sudo usermod -aG docker $USER, then try again",
            retryable=False,
        )
    return Unreachable(
        f"the Docker engine on {host} does not answer: {last}", f"on {host}: sudo systemctl start docker"
    )
