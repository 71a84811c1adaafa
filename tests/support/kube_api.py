"""The API server of the stand-in over HTTP: discovery, objects, watches, logs and reviews, with its Status answers."""

from __future__ import annotations

import copy
import json
import re
import socket
import ssl
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kube_controllers import evict
from kube_discovery import discovery
from kube_kubelet import Kubelet
from kube_rules import admit, check, defaults, immutable
from kube_store import (
    JOBS,
    PODS,
    RESOURCES,
    ApiError,
    Object,
    Resource,
    Store,
    field_test,
    label_test,
    named,
)

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/v1)(?:/namespaces/(?P<space>[^/]+)(?=/.))?(?P<rest>(?:/[^/]+){1,3})"
)
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"
# What a test does with a request: nothing, answer otherwise, lose it before or after it is done.
Fault = Callable[[str, str], Any]


class Lost(Exception):
    """The connection breaks without an answer."""


class Api:
    """Listens on a free port of the loopback."""

    def __init__(self, store: Store, kubelet: Kubelet) -> None:
        self.store, self.kubelet = store, kubelet
        self.is_away = False
        self.is_stopping = False
        self.fault: Fault = lambda method, path: None
        self.lines: dict[str, Fault] = {}  # what happens to the requests of one user, by token
        self.requests: list[tuple[str, str]] = []
        self.missing_features: set[str] = set()  # fields of a Job that an older server drops without a word
        self.unknown_fields: set[str] = set()  # and those that a still older one does not know, and refuses
        self.added: Object = {}  # what a policy of the cluster adds to each Job
        self.rights: dict[str, Callable[[str, str], bool]] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        self.secure: ThreadingHTTPServer | None = None
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def listen_to_pods(self, folder: Path) -> int:
        """Listen with a certificate too, as Pods expect it; returns the port."""
        words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=kubernetes -addext subjectAltName=IP:127.0.0.1"
        files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "ca.crt")]
        subprocess.run(["openssl", *words.split(), *files], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "ca.crt", folder / "tls.key")
        self.secure = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.secure.daemon_threads = True
        self.secure.socket = context.wrap_socket(self.secure.socket, server_side=True)
        threading.Thread(target=self.secure.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return int(self.secure.server_address[1])

    def close(self) -> None:
        for server in (self.server, self.secure):
            if server:
                server.shutdown()
                server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    # -- one request ---------------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, token: str, body: bytes, patch: str) -> tuple[int, Any, list[str]]:
        """The code, the body and the warnings. Raises ApiError and Lost."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        path = parts.path.rstrip("/")
        if found := discovery(path):
            return 200, found, []
        if token not in self.rights:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        given = _parsed(body)
        if path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            asked = given["spec"]["resourceAttributes"]
            plural = asked["resource"] + (f"/{asked['subresource']}" if asked.get("subresource") else "")
            return 201, {**given, "status": {"allowed": self.rights[token](asked["verb"], plural)}}, []
        match = _PATH.fullmatch(path)
        steps = match["rest"].strip("/").split("/") if match else []
        resource = RESOURCES.get(((match["group"] or "") if match else "", steps[0] if steps else ""))
        if match is None or resource is None:
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        space, name, sub = match["space"] or "", steps[1] if len(steps) > 1 else "", steps[2] if len(steps) > 2 else ""
        self._authorize(token, method, resource, space, name, sub, query)
        if sub == "log":
            return 200, self._log(self.store.get(PODS, space, name), query), []
        if not name:
            return self._collection(method, resource, space, query, given)
        return self._single(method, resource, space, name, sub, query, given, patch)

    def _authorize(
        self, token: str, method: str, resource: Resource, space: str, name: str, sub: str, query: dict[str, str]
    ) -> None:
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        verb = verbs.get(method) or ("get" if name else "watch" if _is_true(query.get("watch")) else "list")
        plural = f"{resource.plural}/{sub}" if sub else resource.plural
        if self.rights[token](verb, plural):
            return
        what = f'{resource.qualified} "{name}"' if name else resource.qualified
        where = f'in the namespace "{space}"' if resource.namespaced else "at the cluster scope"
        user = f"system:serviceaccount:{space or 'default'}:{token}"
        said = f'cannot {verb} resource "{plural}" in API group "{resource.group}" {where}'
        text = f'{what} is forbidden: User "{user}" {said}'
        details = {**({"name": name} if name else {}), **({"group": resource.group} if resource.group else {})}
        raise ApiError(403, "Forbidden", text, **details, kind=resource.plural)

    def _collection(
        self, method: str, resource: Resource, space: str, query: dict[str, str], given: Any
    ) -> tuple[int, Any, list[str]]:
        if method == "POST":
            strict = query.get("fieldValidation") == "Strict"
            if resource is JOBS and strict and (unknown := sorted(self.unknown_fields & given["spec"].keys())):
                said = ", ".join(f'unknown field "spec.{name}"' for name in unknown)
                start = 'Job in version "v1" cannot be handled as a Job: strict decoding error'
                raise ApiError(400, "BadRequest", f"{start}: {said}")
            warnings = check(resource, given, strict)
            admit(self.store, resource, space, given)
            new = copy.deepcopy(given)
            if resource in (JOBS, PODS):
                new["metadata"]["uid"] = str(uuid.uuid4())
            defaults(resource, new)
            if resource is JOBS:
                lacking = self.missing_features | self.unknown_fields
                new["spec"] = {name: value for name, value in new["spec"].items() if name not in lacking} | self.added
            return 201, self.store.create(resource, space, new, dry=query.get("dryRun") == "All"), warnings
        fits = _selector(query)
        with self.store.changed:
            items = [one for one in self.store.all(resource, space) if fits(one)]
            meta: Object = {"resourceVersion": str(self.store.version)}
        if method == "DELETE":
            for one in items:
                self.store.delete(resource, one)
        if (limit := int(query.get("limit") or 0)) and query.get("resourceVersion") != "0":
            start = int(query.get("continue") or 0)
            if start + limit < len(items):
                meta["continue"] = str(start + limit)
            items = items[start : start + limit]
        return (
            200,
            {"kind": f"{resource.kind}List", "apiVersion": resource.version, "metadata": meta, "items": items},
            [],
        )

    def _single(
        self,
        method: str,
        resource: Resource,
        space: str,
        name: str,
        sub: str,
        query: dict[str, str],
        given: Any,
        patch: str,
    ) -> tuple[int, Any, list[str]]:
        with self.store.changed:
            there = self.store.get(resource, space, name)
            if method == "GET":
                return 200, there, []
            if sub == "eviction":
                evict(self.store, there)
                return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, []
            if method == "DELETE":
                return 200, self._delete(resource, there, query, given or {}), []
            version = (given.get("metadata") or {}).get("resourceVersion") if isinstance(given, dict) else None
            if version and version != there["metadata"]["resourceVersion"]:
                text = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {MODIFIED}'
                raise ApiError(409, "Conflict", text, **named(resource, name))
            new = patched(there, given, patch) if method == "PATCH" else copy.deepcopy(given)
            if sub != "status":
                new["status"] = there.get("status") or {}
            immutable(resource, there, new)
            if not sub:
                check(resource, {key: value for key, value in new.items() if key != "status"}, False)
            kept = {key: there["metadata"][key] for key in ("uid", "creationTimestamp", "resourceVersion")}
            new["metadata"] |= kept

            def replace(one: Object) -> None:
                one.clear()
                one.update(new)

            return 200, self.store.update(resource, there, replace) or new, []

    def _delete(self, resource: Resource, one: Object, query: dict[str, str], options: Object) -> Object:
        meta, asked = one["metadata"], options.get("preconditions") or {}
        name = meta["name"]
        for field, title in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            if asked.get(field) and asked[field] != meta[field]:
                said = f"the {title} in the precondition ({asked[field]}) does not match the {title} in record"
                start = f'Operation cannot be fulfilled on {resource.qualified_kind} "{name}"'
                text = f"{start}: {said}. The object might have been modified"
                raise ApiError(409, "Conflict", text, **named(resource, name))
        policy = options.get("propagationPolicy") or query.get("propagationPolicy")
        policy = policy or ("Orphan" if resource is JOBS else "Background")
        grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        left = self.store.delete(resource, one, policy, int(grace) if grace is not None else None)
        if self.store.find(resource, meta.get("namespace", ""), name):
            return left
        details = {**named(resource, name), "uid": meta["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def _log(self, pod: Object, query: dict[str, str]) -> bytes:
        name, container = pod["metadata"]["name"], query.get("container")
        names = [one["name"] for one in pod["spec"]["containers"]]
        if container and container not in names:
            raise ApiError(400, "BadRequest", f"container {container} is not valid for pod {name}")
        if not pod["spec"].get("nodeName"):
            return b""
        if pod["spec"]["nodeName"] in self.kubelet.silent_nodes:
            text = f'Get "https://{pod["spec"]["nodeName"]}:10250/containerLogs": dial tcp: connect: connection refused'
            raise ApiError(500, "InternalError", text)
        log = self.kubelet.logs.get(pod["metadata"]["uid"])
        if log is None:
            waits = ((pod["status"].get("containerStatuses") or [{}])[0].get("state") or {}).get("waiting") or {}
            why = "trying and failing to pull image" if "Image" in waits.get("reason", "") else waits.get("reason")
            text = f'container "{names[0]}" in pod "{name}" is waiting to start: {why or "ContainerCreating"}'
            raise ApiError(400, "BadRequest", text)
        since = 0
        if moment := query.get("sinceTime"):
            since = int(datetime.fromisoformat(moment).timestamp()) * 1_000_000_000
        tail = int(query["tailLines"]) if "tailLines" in query else None
        text = log.text(since, tail, _is_true(query.get("timestamps")))
        return text[: int(query["limitBytes"])] if "limitBytes" in query else text

    # -- what there is -------------------------------------------------------------------------------------------------

    # -- watches -------------------------------------------------------------------------------------------------------

    def watch(self, target: str, token: str, send: Callable[[Object], None]) -> None:
        """Send what changes until the time is up; a version that is too old is an event too."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        match = _PATH.fullmatch(parts.path.rstrip("/"))
        assert match
        resource, space = RESOURCES[match["group"] or "", match["rest"].strip("/")], match["space"] or ""
        self._authorize(token, "GET", resource, space, "", "", query)
        fits, end = _selector(query), time.monotonic() + float(query.get("timeoutSeconds") or 300)
        version = int(query.get("resourceVersion") or 0)
        with self.store.changed:
            if version and version < self.store.oldest:
                text = f"too old resource version: {version} ({self.store.oldest})"
                send({"type": "ERROR", "object": ApiError(410, "Expired", text).status})
                return
            position = next(
                (n for n, one in enumerate(self.store.history) if one.version > version), len(self.store.history)
            )
            first = [one for one in self.store.all(resource, space) if fits(one)] if not version else []
            position = len(self.store.history) if not version else position
        for one in first:
            send({"type": "ADDED", "object": one})
        while time.monotonic() < end and not self.is_stopping and not self.is_away:
            with self.store.changed:
                if position >= len(self.store.history):
                    self.store.changed.wait(0.2)
                fresh, position = self.store.history[position:], len(self.store.history)
            for change in fresh:
                if (
                    change.resource is resource
                    and space in ("", change.object["metadata"].get("namespace"))
                    and fits(change.object)
                ):
                    send({"type": change.type, "object": change.object})
        if _is_true(query.get("allowWatchBookmarks")):
            meta = {"resourceVersion": str(self.store.version), "creationTimestamp": None}
            send(
                {
                    "type": "BOOKMARK",
                    "object": {"kind": resource.kind, "apiVersion": resource.version, "metadata": meta},
                }
            )


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError as error:
        raise ApiError(400, "BadRequest", f"the body of the request could not be decoded: {error}") from error


def _is_true(text: str | None) -> bool:
    return (text or "").lower() in ("1", "t", "true")


def _selector(query: dict[str, str]) -> Callable[[Object], bool]:
    labels, fields = label_test(query.get("labelSelector", "")), field_test(query.get("fieldSelector", ""))
    return lambda one: labels(one) and fields(one)


def patched(there: Object, given: Any, kind: str) -> Object:
    """The object with a merge patch, or a patch of single operations."""
    new = copy.deepcopy(there)
    if kind != "application/json-patch+json":
        return _merged(new, given)
    for step in given:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].strip("/").split("/")]
        holder = new
        for part in path:
            holder = holder.setdefault(part, {})
        if step["op"] == "test" and holder.get(last) != step["value"]:
            raise ApiError(422, "Invalid", "the server rejected our request due to an error in our request")
        if step["op"] == "remove":
            holder.pop(last, None)
        elif step["op"] != "test":
            holder[last] = step["value"]
    return new


def _merged(old: Object, given: Object) -> Object:
    for key, value in given.items():
        if value is None:
            old.pop(key, None)
        elif isinstance(value, dict) and isinstance(old.get(key), dict):
            _merged(old[key], value)
        else:
            old[key] = value
    return old


def _handler(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *args: Any) -> None:
            pass

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            try:
                if api.is_away:
                    raise Lost
                api.requests.append((self.command, self.path))
                line = api.lines.get(token)
                fault = line(self.command, self.path) if line else api.fault(self.command, self.path)
                if fault == "lost before":
                    raise Lost
                if isinstance(fault, ApiError):
                    raise fault
                if isinstance(fault, tuple):  # a code and the bytes of something that is not the API server's own word
                    self._send(*fault, [])
                    return
                query = parse_qs(urlsplit(self.path).query)
                if self.command == "GET" and _is_true(query.get("watch", [""])[-1]):
                    self._watch(token)
                    return
                patch = (self.headers.get("Content-Type") or "").partition(";")[0]
                code, answer, warnings = api.answer(self.command, self.path, token, body, patch)
                if fault == "lost after" or api.is_away:
                    raise Lost
                if fault == "502 after":
                    raise ApiError(502, "", "bad gateway")
            except ApiError as error:
                code, answer, warnings = error.code, error.status, []
            except Lost:
                self.close_connection = True
                with suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._send(code, answer, warnings)

        def _send(self, code: int, answer: Any, warnings: list[str]) -> None:
            is_text = isinstance(answer, bytes)
            data = answer if is_text else json.dumps(answer).encode()
            with suppress(OSError):
                self.send_response(code)
                self.send_header("Content-Type", "text/plain" if is_text else "application/json")
                self.send_header("Content-Length", str(len(data)))
                for text in warnings:
                    self.send_header("Warning", f'299 - "{text}"'.replace("\n", " "))
                self.end_headers()
                self.wfile.write(data)

        def _watch(self, token: str) -> None:
            if token not in api.rights:
                raise ApiError(401, "Unauthorized", "Unauthorized")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()

            def send(event: Object) -> None:
                data = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            with suppress(OSError):
                api.watch(self.path, token, send)
                self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    return Handler
