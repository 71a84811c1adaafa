"""The stand-in of Lepton over HTTP, as the real client and the lep command ask it, and what goes wrong on request."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from lepton_cloud import CloudJob, LeptonCloud, Rejected


@dataclass
class LeptonRequest:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: Any = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass
class LeptonFault:
    """What happens to a request: another answer, a late one, or none, before or after it was carried out."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    lost: str = ""  # "request" or "reply"
    body: bytes = b'{"code": "Injected", "message": "as the test wants it"}'


@dataclass
class LeptonServer:
    """A workspace at a port of the loopback."""

    cloud: LeptonCloud
    requests: list[LeptonRequest] = field(default_factory=list)
    is_away: bool = False
    cuts_characters: bool = False

    def __enter__(self) -> LeptonServer:
        server, self._lock = self, threading.Lock()
        self._faults: list[tuple[Callable[[LeptonRequest], bool], list[int], LeptonFault]] = []

        class Handler(_Handler):
            owner = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/api/v2/workspaces/{self.cloud.id}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self.cloud.close()

    def hinder(self, when: str | Callable[[LeptonRequest], bool], fault: LeptonFault, times: int = 1) -> None:
        """Let `fault` happen to the next requests that `when` is true of, such as "POST /jobs"."""
        is_it = when if callable(when) else lambda request: str(request) == when
        self._faults.append((is_it, [times], fault))

    def clear(self) -> None:
        self._faults.clear()

    def fault(self, request: LeptonRequest) -> LeptonFault:
        with self._lock:
            self.requests.append(request)
            for is_it, left, fault in self._faults:
                if left[0] > 0 and is_it(request):
                    left[0] -= 1
                    return fault
        return LeptonFault()

    def asked(self, words: str) -> list[LeptonRequest]:
        """The requests so far that begin with these words."""
        return [request for request in self.requests if str(request).startswith(words)]


def lepton_server(folder: Path, gpus: int = 0, grace: float = 1.0) -> LeptonServer:
    """A server for a workspace of its own, to be entered."""
    return LeptonServer(LeptonCloud(folder, gpus, grace))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: LeptonServer

    def log_message(self, *_: object) -> None:
        pass

    def _any(self) -> None:
        parts = urlsplit(self.path)
        size = int(self.headers.get("Content-Length") or 0)
        data = self.rfile.read(size)
        cloud, prefix = self.owner.cloud, f"/api/v2/workspaces/{self.owner.cloud.id}"
        path = parts.path.removeprefix(prefix) if parts.path.startswith(prefix) else "?"
        request = LeptonRequest(self.command, path, parse_qs(parts.query), json.loads(data) if data else None)
        if self.owner.is_away:
            return self._hang_up()
        fault = self.owner.fault(request)
        time.sleep(fault.delay)
        if fault.lost == "request":
            return self._hang_up()
        if fault.status:
            return self._send(fault.status, fault.body, fault.headers)
        try:
            if path == "?":
                raise Rejected(404, "workspace not found", "NotFound")
            if self.headers.get("Authorization") != f"Bearer {cloud.token}":
                raise Rejected(401, "invalid token", "Unauthorized")
            answer = self._route(request, size)
        except Rejected as error:
            answer = (error.status, error.body)
        if fault.lost == "reply":
            return self._hang_up()
        if answer is not None:
            self._send(answer[0], json.dumps(answer[1]).encode())
        return None

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = do_HEAD = _any

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        try:
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except ConnectionError:
            self.close_connection = True

    # -- who answers what ----------------------------------------------------------------------------------------------

    def _route(self, request: LeptonRequest, size: int) -> tuple[int, Any] | None:
        words = [unquote(part) for part in request.path.strip("/").split("/")]
        match request.method, words:
            case "GET", [""]:
                return 200, {"id": self.owner.cloud.id, "display_name": "Stand-in"}
            case "GET", ["tokens"]:
                return 200, []
            case "GET", ["workspace"]:
                return 200, _workspace(self.owner.cloud)
            case "GET", ["shapes"]:
                groups = request.query.get("node_groups")
                return 200, [
                    one for one in self.owner.cloud.shapes if not groups or groups[0] in self.owner.cloud.groups
                ]
            case "GET", ["logs"]:
                return 200, self._history(request.query)
            case _, ["jobs", *rest]:
                return self._jobs(request, rest, size)
            case _, ["dedicated-node-groups" | "storage-permission", *_]:
                return self._places(words)
            case _, ["usersecrets", *rest]:
                return self._secrets(request, rest)
            case _, ["imagepullsecrets", *rest]:
                return self._pull_secrets(request)
        raise Rejected(404, request.path, "NotFound")

    def _jobs(self, request: LeptonRequest, rest: list[str], size: int) -> tuple[int, Any] | None:
        cloud = self.owner.cloud
        if not rest:
            if request.method == "POST":
                return 201, cloud.create(request.body, size)
            return 200, {"jobs": cloud.listed(request.query)}
        default = "alive_and_archive" if rest[1:] else "alive_only"
        job = cloud.find(rest[0], (request.query.get("job_query_mode") or [default])[0])
        match request.method, rest[1:]:
            case "GET", []:
                return 200, cloud.shown(job)
            case "PATCH", []:
                return 200, cloud.patch(job, request.body)
            case "DELETE", []:
                cloud.delete(job)
                return 200, {}
            case "GET", ["events"]:
                moment = "2026-01-01T00:00:00Z"
                return 200, [{"type": "Normal", "reason": "Created", "count": 1, "last_observed_time": moment}]
            case "GET", ["replicas"]:
                return 200, cloud.replicas(job)
            case "GET", ["failure-analysis"]:
                return 200, cloud.analyses.get(job.id) or {"err_class": "", "job_failure_by_node_event": []}
            case "GET", ["replicas", name, "log"]:
                return self._live_log(job, name)
        raise Rejected(404, request.path, "NotFound")

    def _places(self, words: list[str]) -> tuple[int, Any]:
        cloud = self.owner.cloud
        match words:
            case ["dedicated-node-groups"]:
                return 200, [cloud.node_group(group) for group in cloud.groups]
            case ["dedicated-node-groups", group] if group in cloud.groups:
                return 200, cloud.node_group(group)
            case ["dedicated-node-groups", group, "nodes"] if group in cloud.groups:
                spec = {"unschedulable": False}
                return 200, [{"metadata": {"id": node, "name": node}, "spec": spec} for node in cloud.nodes]
            case ["dedicated-node-groups", group, *_] if group in cloud.groups:
                return 200, []
            case ["storage-permission", _]:
                return 200, cloud.permissions
        raise Rejected(404, "node group not found", "ResourceNotFound")

    def _secrets(self, request: LeptonRequest, rest: list[str]) -> tuple[int, Any]:
        kept = self.owner.cloud.secrets
        if request.method == "GET":
            return 200, [{name: value for name, value in one.items() if name != "value"} for one in kept.values()]
        if request.method == "POST":
            for one in request.body:
                kept[one["name"]] = {**one, "owner": self.owner.cloud.email}
            return 200, {}
        if kept.pop(rest[0], None) is None:
            raise Rejected(404, f"secret {rest[0]} not found", "ResourceNotFound")
        return 200, {}

    def _pull_secrets(self, request: LeptonRequest) -> tuple[int, Any]:
        kept = self.owner.cloud.pull_secrets
        if request.method == "GET":
            hidden = [{**one, "spec": {**one["spec"], "password": ""}} for one in kept.values()]
            return 200, hidden
        name = request.body["metadata"]["name"]
        if name in kept:
            raise Rejected(409, f"{name} already exists", "ResourceConflict")
        kept[name] = request.body
        return 201, request.body

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _history(self, query: dict[str, list[str]]) -> dict[str, Any]:
        job = self.owner.cloud.find(query["job"][0], "alive_and_archive")
        start, end = int((query.get("start") or ["0"])[0]), int((query.get("end") or [str(1 << 62)])[0])
        limit, backward = int((query.get("limit") or ["5000"])[0]), query.get("direction") != ["forward"]
        wanted = query.get("replica")
        streams = [worker for worker in job.workers if not wanted or worker.name == wanted[0]]
        found = sorted(
            (one, worker.name) for worker in streams for one in worker.log.between(start, end, limit, backward)
        )
        found = found[::-1][:limit] if backward else found[:limit]
        result = [
            {
                "stream": {"replica": worker.name},
                "values": [[str(at), line] for (at, line), name in found if name == worker.name],
            }
            for worker in streams
        ]
        return {"status": "success", "data": {"resultType": "streams", "result": result}}

    def _live_log(self, job: CloudJob, name: str) -> None:
        worker = next((one for one in job.workers if one.name == name), None)
        if worker is None:
            raise Rejected(404, f"replica {name} not found", "ResourceNotFound")
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent, log = 0, worker.log
        try:
            while True:
                with log.changed:
                    if len(log.whole) == sent and not log.is_over:
                        log.changed.wait(0.5)
                    data, over = bytes(log.whole[sent:]), log.is_over
                sent += len(data)
                for piece in _pieces(data) if self.owner.cuts_characters else [data]:
                    if piece:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                if over and not data:
                    break
            self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:
            self.close_connection = True


def _pieces(data: bytes) -> list[bytes]:
    """The data in pieces of three bytes, which part many characters."""
    return [data[at : at + 3] for at in range(0, len(data), 3)]


def _workspace(cloud: LeptonCloud) -> dict[str, Any]:
    none = {"cpu": 0, "memory": 0, "accelerator_num": 0}
    counts = {f"num_{kind}": 0 for kind in ("deployments", "jobs", "pods", "secrets", "image_pull_secrets")}
    return {
        "build_time": "2026-01-01",
        "git_commit": "0",
        "workspace_name": cloud.id,
        "workspace_tier": "Enterprise",
        "workspace_state": "normal",
        "supported_shapes": {},
        "workspace_disk_usage_bytes": 0,
        "workloads": counts,
        "resource_quota": {"limit": none, "used": none},
        "features": {"enable_new_deployment_api": False},
    }
