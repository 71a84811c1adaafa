"""The way to a cluster: one ssh connection to one of its login nodes, shared by everything this process does there.

Scripts go in through stdin and answers come back between two marks, so that neither the length of a script nor what a
login shell prints of its own matters. Every call has a time limit; a connection that did not answer is not used again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, TypeVar

from prefect_tao.jobs.errors import SubmitFailed, Unreachable

if TYPE_CHECKING:
    import paramiko

T = TypeVar("T")

# OpenSSH refuses the 11th session of a connection and frees a slot late; with five none was ever refused.
CHANNELS = 5
CONNECT_SECONDS = 15.0
OPEN_SECONDS = 15.0
CALL_SECONDS = 90.0
KEEPALIVE_SECONDS = 30
# How long a login node that did not answer is asked only after the others.
SHUN_SECONDS = 300.0
SHELL = "exec bash --noprofile --norc -s"
_REFUSED_TRIES = 6
_BLOCK = 1 << 16


class Lost(Exception):
    """The connection ended, or did not answer in time: whatever was asked may or may not have been done."""


class _Refused(Exception):
    """The server opens no further channel at the moment; nothing was done."""


@dataclass(frozen=True)
class Account:
    """Who logs in, where and with what."""

    user: str
    hosts: tuple[str, ...]
    port: int = 22
    key_path: str | None = None
    known_hosts: str | None = None
    passphrase: str | None = field(default=None, repr=False)


class Login:
    """The connection. Its methods may be called side by side; blocking work happens in a small pool of threads."""

    def __init__(self, account: Account) -> None:
        """Raises ModuleNotFoundError where there is no paramiko."""
        import paramiko  # noqa: F401 - to know now, and not in a thread

        self.account = account
        self.trips = 0
        self._client: paramiko.SSHClient | None = None
        self._host = ""
        self._shunned: dict[str, float] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(CHANNELS, thread_name_prefix="slurm-login")

    @property
    def host(self) -> str:
        """The login node in use, or the first one."""
        return self._host or self.account.hosts[0]

    async def run(self, script: str, seconds: float = CALL_SECONDS, *, again: bool = True) -> str:
        """What the bash `script` prints. With `again` it is repeated once on a new connection; raises Unreachable."""
        return await self._call(lambda client: _run(client, script, seconds), again)

    async def put(self, path: str, data: bytes) -> None:
        """Write a file that only its owner may read, in a new folder. Raises Unreachable, SubmitFailed."""
        await self._call(lambda client: _put(client, path, data), again=False)

    async def close(self) -> None:
        """Let go of the connection; what runs on the cluster goes on."""
        self._drop(self._client)
        self._pool.shutdown(wait=False)

    async def connect(self) -> str:
        """Connect if there is no connection; the login node that answered. Raises Unreachable."""
        await self._call(lambda client: None, again=True)
        return self._host

    async def _call(self, action: Callable[[paramiko.SSHClient], T], again: bool) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call_here, action, again)

    def _call_here(self, action: Callable[[paramiko.SSHClient], T], again: bool) -> T:
        client = self._connected()
        try:
            return self._patiently(client, action)
        except Lost as lost:
            self._drop(client)
            if not again:
                raise _unreachable(self._host, lost) from lost
        client = self._connected()
        try:
            return self._patiently(client, action)
        except Lost as lost:
            self._drop(client)
            self._shun(self._host)
            raise _unreachable(self._host, lost) from lost

    def _patiently(self, client: paramiko.SSHClient, action: Callable[[paramiko.SSHClient], T]) -> T:
        for attempt in range(_REFUSED_TRIES):
            try:
                self.trips += 1
                return action(client)
            except _Refused:
                time.sleep(0.05 * 2**attempt)
        raise Lost("the login node opens no further session on this connection")

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _connected(self) -> paramiko.SSHClient:
        with self._lock:
            if self._client is not None and _is_active(self._client):
                return self._client
            failures = []
            for host in self._order():
                try:
                    self._client, self._host = _open(self.account, host), host
                    self._shunned.pop(host, None)
                    return self._client
                except Unreachable as error:
                    self._shun(host)
                    failures.append(error)
            raise _none_answers(failures)

    def _order(self) -> list[str]:
        """The login nodes as given; those that did not answer lately come last, the one in use comes first."""
        now = time.monotonic()
        return sorted(
            self.account.hosts,
            key=lambda host: (self._shunned.get(host, 0) > now, host != self._host),
        )

    def _shun(self, host: str) -> None:
        self._shunned[host] = time.monotonic() + SHUN_SECONDS

    def _drop(self, client: paramiko.SSHClient | None) -> None:
        with self._lock:
            if client is not None and client is self._client:
                self._client = None
        if client is not None:
            with suppress(Exception):
                client.close()


def _open(account: Account, host: str) -> paramiko.SSHClient:
    """A connection to one login node. Raises Unreachable with what a person can do about it."""
    import paramiko

    where = f"{account.user}@{host}:{account.port}"
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    plug = None
    try:
        _load_host_keys(client, account.known_hosts)
        plug = socket.create_connection((host, account.port), timeout=CONNECT_SECONDS)
        # With Nagle's algorithm on, every question waits for an acknowledgement: 44 ms each, even on loopback.
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client.connect(
            host,
            port=account.port,
            username=account.user,
            sock=plug,
            key_filename=str(Path(account.key_path).expanduser()) if account.key_path else None,
            passphrase=account.passphrase,
            allow_agent=account.key_path is None,
            look_for_keys=account.key_path is None,
            timeout=CONNECT_SECONDS,
            banner_timeout=CONNECT_SECONDS,
            auth_timeout=CONNECT_SECONDS,
        )
    except Exception as error:  # paramiko, its agent and the sockets each have errors of their own
        client.close()
        if plug is not None:
            plug.close()
        raise Unreachable(f"{where}: {_why(error, account)}", _what_to_do(error, account, host)) from error
    transport = client.get_transport()
    if transport is not None:
        transport.set_keepalive(KEEPALIVE_SECONDS)
    return client


def _load_host_keys(client: paramiko.SSHClient, known_hosts: str | None) -> None:
    if known_hosts:
        client.load_host_keys(str(Path(known_hosts).expanduser()))
        return
    client.load_system_host_keys()
    with suppress(OSError):
        client.load_system_host_keys("/etc/ssh/ssh_known_hosts")


def _why(error: Exception, account: Account) -> str:
    import paramiko

    text = str(error).strip() or type(error).__name__
    if isinstance(error, paramiko.BadHostKeyException):
        return "its host key is not the one that is known; somebody may be in between"
    if isinstance(error, paramiko.PasswordRequiredException):
        return f"the key {account.key_path} is locked with a passphrase"
    if isinstance(error, paramiko.AuthenticationException):
        return f"the login was refused ({text})"
    if isinstance(error, paramiko.SSHException) and "not found in known_hosts" in text:
        return "its host key is not known here"
    return text


def _what_to_do(error: Exception, account: Account, host: str) -> str:
    import paramiko

    text = str(error)
    port = f" -p {account.port}" if account.port != 22 else ""
    if isinstance(error, paramiko.BadHostKeyException):
        return f"ask the site whether its key changed; only then: ssh-keygen -R {host}"
    if isinstance(error, paramiko.PasswordRequiredException):
        return "give the passphrase in the block, or load the key into an ssh agent and leave SSH_KEY_PATH empty"
    if isinstance(error, paramiko.SSHException) and "not found in known_hosts" in text:
        return f"check the key with the site, then store it: ssh-keyscan{port} {host} >> ~/.ssh/known_hosts"
    if isinstance(error, paramiko.AuthenticationException):
        return f"set SSH_KEY_PATH to a key that {host} accepts: ssh-copy-id -i KEY.pub{port} {account.user}@{host}"
    if account.known_hosts and not os.path.exists(os.path.expanduser(account.known_hosts)):
        keys = account.known_hosts
        return f"there is no file {keys}; check the host key with the site, then: ssh-keyscan{port} {host} >> {keys}"
    if isinstance(error, OSError) and account.key_path and not os.path.exists(os.path.expanduser(account.key_path)):
        return f"there is no key file {account.key_path}; set SSH_KEY_PATH to your private key"
    return "check the name, the port and the network; the job, if there is one, goes on"


def _none_answers(failures: Sequence[Unreachable]) -> Unreachable:
    if len(failures) == 1:
        return failures[0]
    causes = "; ".join(failure.cause for failure in failures)
    return Unreachable(f"no login node answers: {causes}", failures[0].remedy)


def _unreachable(host: str, lost: Lost) -> Unreachable:
    return Unreachable(f"{host}: {lost}", "the job, if there is one, goes on; look again later")


def _is_active(client: paramiko.SSHClient) -> bool:
    transport = client.get_transport()
    return transport is not None and transport.is_active()


# -- one call ----------------------------------------------------------------------------------------------------------


def _session(client: paramiko.SSHClient) -> paramiko.Channel:
    import paramiko

    transport = client.get_transport()
    if transport is None or not transport.is_active():
        raise Lost("the connection is closed")
    try:
        return transport.open_session(timeout=OPEN_SECONDS)
    except (paramiko.SSHException, EOFError, OSError) as error:
        # A refused session leaves the connection as it was; both ways of saying so have been seen.
        if transport.is_active() and not isinstance(error, EOFError) and "imeout" not in str(error):
            raise _Refused from error
        raise Lost(f"no session could be opened: {error or type(error).__name__}") from error


@contextmanager
def _limited(client: paramiko.SSHClient, seconds: float) -> Iterator[None]:
    """Close the connection when this takes longer: paramiko waits for some answers without a limit."""
    timer = threading.Timer(seconds, client.close)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _run(client: paramiko.SSHClient, script: str, seconds: float) -> str:
    import paramiko

    mark = token_hex(8)
    # In braces, so that bash reads it all before it runs any of it; the second `exit` is for an error that makes it
    # leave the braces, after which it would wait for more; `exit` at all, because an EOF that comes late makes
    # sshd drop the whole connection. What goes to stderr is nobody's answer, and may come late.
    begin, end = (f"printf '\\n%s\\n' {word}-{mark}" for word in ("begin", "end"))
    text = f"{{ exec 2>/dev/null\n{begin}\n{script}\n{end}\nexit; }}\nexit 1\n"
    channel = _session(client)
    try:
        channel.settimeout(OPEN_SECONDS)
        with _limited(client, OPEN_SECONDS):
            channel.exec_command(SHELL)
            channel.sendall(text.encode())
        return _framed(channel, mark, time.monotonic() + seconds)
    except TimeoutError as error:
        raise Lost(f"no answer within {seconds:g} s") from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise Lost(str(error) or "the connection was cut") from error
    finally:
        with suppress(Exception), _limited(client, OPEN_SECONDS):
            channel.close()


def _framed(channel: paramiko.Channel, mark: str, deadline: float) -> str:
    begin, end = f"\nbegin-{mark}\n".encode(), f"\nend-{mark}\n".encode()
    data = bytearray()
    while True:
        channel.settimeout(max(0.01, deadline - time.monotonic()))
        block = channel.recv(_BLOCK)
        if not block:
            raise Lost(f"the answer was cut short{_said(data)}")
        data += block
        if (stop := data.find(end, max(0, len(data) - len(block) - len(end)))) >= 0:
            start = data.find(begin)
            return data[start + len(begin) : stop].decode(errors="replace")


def _said(data: bytearray) -> str:
    words = data.decode(errors="replace").strip()[-200:]
    return f": {words}" if words else ""


def _put(client: paramiko.SSHClient, path: str, data: bytes) -> None:
    import paramiko

    transport = client.get_transport()
    if transport is None or not transport.is_active():
        raise Lost("the connection is closed")
    folder = os.path.dirname(path)
    sftp = None
    try:
        channel = _session(client)
        channel.settimeout(CALL_SECONDS)
        with _limited(client, OPEN_SECONDS):
            channel.invoke_subsystem("sftp")
        with _limited(client, CALL_SECONDS):
            sftp = paramiko.SFTPClient(channel)
            _make_folder(sftp, folder)
            with sftp.open(path, "wx") as file:
                file.chmod(0o600)
                file.set_pipelined(True)
                file.write(data)
            if sftp.stat(path).st_size != len(data):
                raise OSError("the file is shorter than what was sent; the disk or the quota may be full")
    except (paramiko.SSHException, EOFError, TimeoutError, ConnectionError) as error:
        raise Lost(str(error) or "the connection was cut") from error
    except OSError as error:  # what the sftp server itself says of a path
        if not transport.is_active() or "closed" in str(error).lower():
            raise Lost(str(error)) from error
        _remove(sftp, path, folder)
        raise SubmitFailed(
            f"{folder} cannot be written on the cluster: {error.strerror or error}",
            "check the folder's rights, the quota and the free space there, or name another results folder",
        ) from error
    finally:
        if sftp is not None:
            with suppress(Exception), _limited(client, OPEN_SECONDS):
                sftp.close()


def _make_folder(sftp: paramiko.SFTPClient, folder: str) -> None:
    """Make `folder`, which only its owner may enter, and what is missing above it."""
    try:
        sftp.mkdir(folder, 0o700)
    except FileNotFoundError:
        missing = []
        parent = os.path.dirname(folder)
        while parent not in ("", "/") and not _is_there(sftp, parent):
            missing.append(parent)
            parent = os.path.dirname(parent)
        for path in reversed(missing):
            with suppress(OSError):  # another launcher may be quicker
                sftp.mkdir(path)
        sftp.mkdir(folder, 0o700)


def _is_there(sftp: paramiko.SFTPClient, path: str) -> bool:
    try:
        sftp.stat(path)
    except FileNotFoundError:
        return False
    return True


def _remove(sftp: paramiko.SFTPClient | None, path: str, folder: str) -> None:
    if sftp is None:
        return
    with suppress(Exception):
        sftp.remove(path)
    with suppress(Exception):
        sftp.rmdir(folder)
