"""A proxy in front of an engine's socket: it counts and keeps requests, loses or replaces replies, and can be cut."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from proxy import Cuttable, pump

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Seen(NamedTuple):
    """A request as it went to the engine."""

    method: str
    path: str
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class Reply(NamedTuple):
    """An answer in place of the engine's; `done`: the engine has done what it was asked for. 0: no answer at all.

    With `is_cut` the connection breaks before its end.
    """

    status: int
    done: bool = False
    body: bytes = b'{"message": "upstream error"}'
    is_cut: bool = False


class EngineProxy(Cuttable):
    """Forwards one socket to another, request by request.

    `lose(seen)` says whose reply is thrown away, `replace(seen)` which one comes in its place.
    """

    def __init__(self, upstream: Path, path: Path) -> None:
        super().__init__()
        self.upstream = upstream
        self.path = path
        self.requests: list[Seen] = []
        self.lose: Callable[[Seen], bool] = lambda seen: False
        self.replace: Callable[[Seen], Reply | None] = lambda seen: None
        self.lost = 0

    @property
    def host(self) -> str:
        return f"unix://{self.path}"

    def _listen(self) -> socket.socket:
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        listener.listen(64)
        return listener

    def cut(self) -> None:
        super().cut()
        self.path.unlink(missing_ok=True)

    def matching(self, method: str, pattern: str) -> list[Seen]:
        """The requests so far whose path fits."""
        return [seen for seen in self.requests if seen.method == method and re.search(pattern, seen.path)]

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = _connected(self.upstream)
            except OSError:  # the engine is down
                client.close()
                continue
            self._connections += [client, server]
            threading.Thread(target=self._talk, args=(client, server), daemon=True).start()

    def _do_silently(self, request: bytes) -> None:
        """Let the engine do it, and keep its reply to ourselves."""
        with _connected(self.upstream) as server:
            server.sendall(request)
            server.recv(65536)

    def _talk(self, client: socket.socket, server: socket.socket) -> None:
        """One connection: each request is read whole, so that its reply can be let through or lost."""
        back = threading.Thread(target=pump, args=(server, client), daemon=True)
        with suppress(OSError):
            begun = False
            while request := _whole(client):
                seen = _parse(request)
                self.requests.append(seen)
                if self.lose(seen):
                    self._do_silently(request)
                    self.lost += 1
                    break
                if reply := self.replace(seen):
                    if reply.done:
                        self._do_silently(request)
                    if not reply.status:
                        break
                    client.sendall(_written(reply))
                    if reply.is_cut:
                        break
                    continue
                if not begun:
                    back.start()
                    begun = True
                server.sendall(request)
        for end in (client, server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _written(reply: Reply) -> bytes:
    length = f"Content-Length: {len(reply.body) + reply.is_cut}"
    return (
        f"HTTP/1.1 {reply.status} Replaced\r\nContent-Type: application/json\r\n{length}\r\n\r\n".encode() + reply.body
    )


def _connected(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    server.connect(str(path))
    return server


def _whole(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = client.recv(65536)
        if not more:
            return b""
        data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    missing = (int(length[1]) if length else 0) - len(rest)
    parts = [data]
    while missing > 0:
        more = client.recv(min(missing, 1 << 20))
        if not more:
            return b""
        parts.append(more)
        missing -= len(more)
    return b"".join(parts)


def _parse(request: bytes) -> Seen:
    head, _, body = request.partition(b"\r\n\r\n")
    method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ", 2)
    return Seen(method, re.sub(r"^/v[\d.]+", "", path), body)
