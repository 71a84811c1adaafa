"""Proxies that can be cut: what is behind them is then as unreachable as a server can be."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from typing import Self


class Cuttable(ABC):
    """Stands in front of a server, until it is cut."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        self.mend()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def mend(self) -> None:
        """Listen, at the same address as before."""
        self._listener = self._listen()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Refuse new connections and break those there are."""
        for each in [self._listener, *self._connections] if self._listener else self._connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._listener = None
        self._connections.clear()

    @abstractmethod
    def _listen(self) -> socket.socket: ...

    @abstractmethod
    def _accept(self, listener: socket.socket) -> None: ...


class Proxy(Cuttable):
    """Forwards a free port of the loopback to another one."""

    def __init__(self, upstream: int) -> None:
        super().__init__()
        self.upstream = upstream
        self.port = 0

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def _listen(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self.upstream))
            except OSError:
                return
            self._connections += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=pump, args=(source, sink), daemon=True).start()


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Carry what comes from one end to the other, until one of them closes."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
