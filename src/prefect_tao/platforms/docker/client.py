"""The engine's API: one client that is opened when it is needed, a few threads of its own, and typed errors."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
import struct
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import httpx

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.platforms.docker.endpoint import Endpoint
from prefect_tao.platforms.docker.engine_socket import EngineSocket
from prefect_tao.platforms.doubt import Refused
from prefect_tao.platforms.ssh.connection import Connection
from prefect_tao.platforms.ssh.destination import Destination
from prefect_tao.platforms.ssh.faults import Silent
from prefect_tao.platforms.stamped_logs import LogEntry, nanoseconds

P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT_SECONDS = 60
MAX_CALLS = 8
NOT_FOUND, CONFLICT = 404, 409
# What the engine says of a container that somebody removes at this moment.
REMOVAL = "marked for removal"
DESKTOP = "Docker Desktop"
TAR_ROOM = 1 << 16  # for the headers before a file and the padding behind it


@dataclass(frozen=True)
class TarEntry:
    """A file for a container; `mode` is who may read it. Data of None makes a folder."""

    name: str
    data: bytes | None
    mode: int = 0o600


class Owner(NamedTuple):
    """Whom a file belongs to inside a container."""

    uid: int
    gid: int


ROOT = Owner(0, 0)


class Engine:
    """One engine. Methods block and belong into `call`; they raise Silent, Refused, and what opening raises."""

    def __init__(self, endpoint: Endpoint, ssh_folder: str | None = None) -> None:
        self.endpoint = endpoint
        self.ssh = Connection(Destination.parse(endpoint.url, ssh_folder)) if endpoint.scheme == "ssh" else None
        self._socket = EngineSocket(self.ssh) if self.ssh else None
        self._client: httpx.Client | None = None
        self._gone: Silent | None = None
        self._product = ""
        self._opening = threading.Lock()
        self._pools: dict[str, ThreadPoolExecutor] = {}

    @property
    def shown(self) -> str:
        """The engine in the words of a person."""
        return self.endpoint.url

    @cached_property
    def is_here(self) -> bool:
        """Whether the engine's files are this machine's: a socket here may lead into a virtual machine, or out of ours.

        Raises Silent, MissingDependency.
        """
        if self.endpoint.scheme != "unix":
            return False
        self.client()
        return DESKTOP not in self._product and _listens_here(self.endpoint.url.partition("://")[2])

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do blocking work in one of the engine's own threads."""
        return await self._in_pool("tao-docker", partial(work, *args, **kwargs))

    async def launch(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for what may take as long as a pull; looks and cancellations do not wait for it."""
        return await self._in_pool("tao-docker-launch", partial(work, *args, **kwargs))

    async def _in_pool(self, name: str, work: Callable[[], T]) -> T:
        if name not in self._pools:
            self._pools[name] = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix=name)
        return await asyncio.get_running_loop().run_in_executor(self._pools[name], work)

    def close(self) -> None:
        """Let go of the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._socket:
            self._socket.close()
        if self.ssh:
            self.ssh.close()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self._pools = {}

    def abandon(self, why: str) -> None:
        """Let go of an engine that is gone for good: who waits for its answer hears it at once, later ones too."""
        self._gone = Silent(why, "look at the job again", retryable=False)
        self.close()

    # -- requests ------------------------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        """The whole answer to a request; `given` is as for `stream`. Raises Silent, and Refused for an error status."""
        with self.stream(method, path, **given) as answer:
            answer.read()
            return answer

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> Iterator[httpx.Response]:
        """The same, and what it holds is read as it comes."""
        client = self.client()
        with (
            self.typed(),
            client.stream(
                method, path, params=params, json=body, content=data, headers=dict(headers or {}), timeout=timeout
            ) as answer,
        ):
            if answer.status_code >= 400:
                answer.read()
                raise Refused(answer.status_code, _said(answer))
            yield answer

    def json(self, method: str, path: str, **given: Any) -> Any:
        """The answer as data."""
        answer = self.ask(method, path, **given)
        with self.typed():
            return answer.json()

    def client(self) -> httpx.Client:
        """A client that is connected. Raises Silent, MissingDependency, InvalidInput."""
        if self._gone:
            raise self._gone
        with self._opening:
            if self._client is None:
                self._client = self._open()
            return self._client

    def _open(self) -> httpx.Client:
        url = self.endpoint.url
        if self._socket:
            self._socket.open()
            url = self._socket.url
        # Variables for web proxies and public authorities are not about this engine; answers are read as they come.
        plain: dict[str, Any] = {"trust_env": False, "headers": {"Accept-Encoding": "identity"}}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=2 * MAX_CALLS)
        if url.startswith("unix://"):
            address = "http://docker"
            plain["transport"] = httpx.HTTPTransport(uds=url.removeprefix("unix://"), limits=limits)
        else:
            address = f"{'https' if self.endpoint.certs else 'http'}://{url.partition('://')[2]}"
            address = url if url.startswith("https://") else address
            plain |= {"verify": self._tls() if self.endpoint.certs else True, "limits": limits}
        with self.typed(), httpx.Client(base_url=address, timeout=TIMEOUT_SECONDS, **plain) as first:
            told = first.get("/version").raise_for_status().json()
        self._product = str((told.get("Platform") or {}).get("Name"))
        if "transport" in plain:
            plain["transport"] = httpx.HTTPTransport(uds=url.removeprefix("unix://"), limits=limits)
        return httpx.Client(base_url=f"{address}/v{told['ApiVersion']}", timeout=TIMEOUT_SECONDS, **plain)

    def _tls(self) -> ssl.SSLContext:
        folder = Path(str(self.endpoint.certs))
        for name in ("ca.pem", "cert.pem", "key.pem"):
            if not (folder / name).is_file():
                raise InvalidInput(f"{folder} has no {name}", "a TLS folder holds ca.pem, cert.pem and key.pem")
        context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
        if not self.endpoint.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
        return context

    @contextmanager
    def typed(self) -> Iterator[None]:
        """What goes wrong on the way as ours: the engine was not reached, so nothing is known."""
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, json.JSONDecodeError, OSError) as error:
            raise self._unreached(error) from error

    def _unreached(self, error: BaseException) -> Silent:
        said = str(error)
        if self._socket and (fault := self._socket.fault):
            return Silent(fault.cause, fault.remedy, fault.retryable)
        if "Permission denied" in said:
            return Silent(
                f"this user may not use the Docker engine at {self.shown}",
                "sudo usermod -aG docker $USER, then log in again",
                retryable=False,
            )
        if "No such file" in said or "Connection refused" in said:
            remedy = "start it (sudo systemctl start docker), or name the right one in the block or in DOCKER_HOST"
            return Silent(f"no Docker engine answers at {self.shown}", remedy)
        if isinstance(error, httpx.TimeoutException) or "timed out" in said.lower():
            return Silent(f"the Docker engine at {self.shown} did not answer in time", "the job goes on; try again")
        if "CERTIFICATE" in said or "SSL" in said:
            remedy = "check ca.pem, cert.pem and key.pem in the TLS folder (DOCKER_CERT_PATH)"
            is_settled = "CERTIFICATE" in said  # what one side shows the other does not take
            return Silent(f"the TLS connection to {self.shown} failed: {_short(said)}", remedy, not is_settled)
        return Silent(f"the connection to the Docker engine at {self.shown} broke: {_short(said)}", "try again")

    # -- files of a container ------------------------------------------------------------------------------------------

    def put(self, container: str, entries: list[TarEntry], owner: Owner = ROOT) -> None:
        """Put files below / of a container, running or not."""
        self.ask("PUT", f"/containers/{container}/archive", params={"path": "/"}, data=_tar(entries, owner))

    def get(self, container: str, path: str, limit: int = 1 << 24) -> bytes | None:
        """The first `limit` bytes of a file of a container; None when there is no such file, or no container."""
        try:
            with self.stream("GET", f"/containers/{container}/archive", params={"path": path}) as answer:
                return _first_file(_up_to(answer, limit + TAR_ROOM), limit)
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
        except tarfile.TarError as error:
            raise self._unreached(error) from error
        return None

    def names(self, container: str, path: str, limit: int = 1 << 24) -> list[str]:
        """The names in a small folder of a container; none when there is no such folder."""
        try:
            with (
                self.stream("GET", f"/containers/{container}/archive", params={"path": path}) as answer,
                tarfile.open(fileobj=io.BytesIO(_up_to(answer, limit)), mode="r:") as tar,
            ):
                return [name.partition("/")[2] for name in tar.getnames() if name.count("/") == 1]
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
        except tarfile.TarError as error:
            raise self._unreached(error) from error
        return []

    def has(self, container: str, path: str) -> bool:
        """Whether a container has a file."""
        try:
            self.ask("HEAD", f"/containers/{container}/archive", params={"path": path})
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True


def _listens_here(path: str) -> bool:
    """Whether the process behind a socket is one that this machine knows; that of a host around us has no number."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
            number, _, _ = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return True
    return bool(number)


def _tar(entries: list[TarEntry], owner: Owner) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.mode, info.size, (info.uid, info.gid) = entry.mode, len(entry.data or b""), owner
            info.type = tarfile.DIRTYPE if entry.data is None else tarfile.REGTYPE
            tar.addfile(info, io.BytesIO(entry.data) if entry.data else None)
    return out.getvalue()


def _up_to(answer: httpx.Response, size: int) -> bytes:
    parts: list[bytes] = []
    for more in answer.iter_bytes():
        parts.append(more)
        size -= len(more)
        if size <= 0:
            break
    return b"".join(parts)


def _first_file(archive: bytes, limit: int) -> bytes | None:
    """The content of the one file in an archive that may be cut off behind `limit`."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        member = tar.next()
        if member is None or not member.isfile():
            return None
        return archive[member.offset_data : member.offset_data + min(member.size, limit)]


def _said(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"]).strip()
    except (ValueError, KeyError, TypeError):
        return str(answer.text).strip() or f"status {answer.status_code}"


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:197] + "..."


_HEADER = struct.Struct(">BxxxL")


def log_entries(answer: httpx.Response) -> Iterator[LogEntry]:
    """The entries of an answer with timestamps: each is a frame of its own."""
    buffer, start = b"", 0
    for more in answer.iter_bytes():
        buffer, start = buffer[start:] + more, 0
        while len(buffer) - start >= _HEADER.size:
            end = start + _HEADER.size + _HEADER.unpack_from(buffer, start)[1]
            if len(buffer) < end:
                break
            stamp, _, data = buffer[start + _HEADER.size : end].partition(b" ")
            yield LogEntry(nanoseconds(stamp.decode()), data)
            start = end
