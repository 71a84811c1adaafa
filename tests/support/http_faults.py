"""An HTTP proxy that misbehaves on request: answers of its own, bodies that are cut or altered, delays, outages."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

CHUNK = 64 * 1024
HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass
class Request:
    """One request as it came by."""

    method: str
    path: str
    headers: dict[str, str]
    sent: int = 0  # bytes of the answer's body that reached the client

    @property
    def is_object(self) -> bool:
        """Whether it reads an object."""
        return self.method == "GET" and self.path.strip("/").count("/") > 0 and "list-type" not in self.path


@dataclass
class Fault:
    """What happens to a request: an answer of our own, or the real one cut after some bytes, altered or late."""

    status: int = 0
    code: str = ""
    cut_after: int | None = None
    alter: bool = False
    delay: float = 0.0
    before: Callable[[], object] = lambda: None


Rule = Callable[[Request], Fault | None]


@dataclass
class Faults:
    """The proxy; `rules` are asked in turn about each request, and the first fault is what happens."""

    upstream: int
    rules: list[Rule] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> Faults:
        faults, self._lock = self, threading.Lock()

        class Handler(_Handler):
            owner = faults

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def reads(self) -> list[Request]:
        """The requests that read objects."""
        return [request for request in self.requests if request.is_object]

    def times(self, count: int, fault: Fault, when: Callable[[Request], bool] = lambda request: True) -> None:
        """Let `fault` happen to the next `count` requests that `when` is true of."""
        left = [count]

        def rule(request: Request) -> Fault | None:
            with self._lock:
                if left[0] > 0 and when(request):
                    left[0] -= 1
                    return fault
            return None

        self.rules.append(rule)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Faults

    def log_message(self, *_: object) -> None:
        pass

    def _any(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, dict(self.headers))
        self.owner.requests.append(request)
        fault = next(filter(None, (rule(request) for rule in list(self.owner.rules))), Fault())
        time.sleep(fault.delay)
        fault.before()
        with contextlib.suppress(ConnectionError):
            self._own(fault) if fault.status else self._forward(request, data, fault)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any

    def _own(self, fault: Fault) -> None:
        text = f"<Error><Code>{fault.code}</Code><Message>as the test wants it</Message></Error>".encode()
        self.send_response(fault.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _forward(self, request: Request, data: bytes, fault: Fault) -> None:
        upstream = http.client.HTTPConnection("127.0.0.1", self.owner.upstream, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("expect", *HOP)}
            headers["Content-Length"] = str(len(data))
            upstream.request(self.command, self.path, data, headers)
            answer = upstream.getresponse()
            length = answer.getheader("Content-Length")
            body = None if length is not None else answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", length if body is None else str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            if body is not None:
                self.wfile.write(body)
                return
            self._pass_on(answer, request, fault)
        finally:
            upstream.close()

    def _pass_on(self, answer: http.client.HTTPResponse, request: Request, fault: Fault) -> None:
        if fault.cut_after == 0:
            self.close_connection = True
            return
        while chunk := answer.read(CHUNK if fault.cut_after is None else min(CHUNK, fault.cut_after - request.sent)):
            if fault.alter and not request.sent:
                chunk = bytes([chunk[0] ^ 1]) + chunk[1:]
            self.wfile.write(chunk)
            request.sent += len(chunk)
            if fault.cut_after is not None and request.sent >= fault.cut_after:
                self.close_connection = True
                self.wfile.flush()
                return
