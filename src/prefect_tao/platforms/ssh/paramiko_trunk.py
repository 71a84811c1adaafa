"""A login by paramiko, also through jump hosts and ProxyCommand."""

from __future__ import annotations

import os
import select
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from prefect_tao.platforms.ssh import authentication, faults, known_hosts, trunk
from prefect_tao.platforms.ssh.faults import Busy, Lost, Unfit
from prefect_tao.platforms.ssh.framing import ERR, OUT
from prefect_tao.platforms.ssh.known_hosts import Trust
from prefect_tao.platforms.ssh.ssh_config import Route
from prefect_tao.platforms.ssh.trunk import Channel, Trunk

if TYPE_CHECKING:
    import paramiko

_BLOCK = 1 << 16
_RSA = ("rsa-sha2-512", "rsa-sha2-256")


class ParamikoTrunk(Trunk):
    """The transports of every machine on the way; the last one is the machine that is meant."""

    def __init__(self, routes: Sequence[Route]) -> None:
        """Log in. Raises Silent with what to do, and Unfit when paramiko cannot talk to a server at all."""
        self._transports: list[paramiko.Transport] = []
        self._proxy: subprocess.Popen[bytes] | None = None
        try:
            for route in routes:
                self._transports.append(self._logged_in(route, self._plug(route)))
        except BaseException:
            self.close()
            raise

    @property
    def _transport(self) -> paramiko.Transport:
        return self._transports[-1]

    @property
    def is_active(self) -> bool:
        return all(transport.is_active() for transport in self._transports)

    def open(self, wire: str) -> Channel:
        import paramiko

        try:
            channel = self._transport.open_session(timeout=trunk.OPEN_SECONDS)
        except (paramiko.SSHException, EOFError, OSError) as error:
            # A refused session leaves the connection as it was; both ways of saying so have been seen.
            if self.is_active and not isinstance(error, EOFError) and "imeout" not in str(error):
                raise Busy from error
            raise Lost(f"no session could be opened: {error or type(error).__name__}") from error
        try:
            with self._limited(trunk.OPEN_SECONDS):
                channel.exec_command(wire)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise Lost(f"no command could be started: {error or type(error).__name__}") from error
        return _ParamikoChannel(self, channel)

    def close(self) -> None:
        for transport in reversed(self._transports):
            with suppress(Exception):
                transport.close()
        if self._proxy is not None:
            self._proxy.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._proxy.wait(5)

    @contextmanager
    def _limited(self, seconds: float) -> Iterator[None]:
        """Close the connection when this takes longer: paramiko waits for some answers without a limit."""
        timer = threading.Timer(seconds, self.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    # -- connecting ----------------------------------------------------------------------------------------------------

    def _plug(self, route: Route) -> Any:
        """The bytes to a machine: through the one before it, through a command, or straight."""
        try:
            if self._transports:
                return self._transport.open_channel(
                    "direct-tcpip", (route.hostname, route.port), ("127.0.0.1", 0), timeout=trunk.CONNECT_SECONDS
                )
            if route.proxy_command:
                return self._through_command(route)
            plug = socket.create_connection((route.hostname, route.port), timeout=trunk.CONNECT_SECONDS)
        except Exception as error:  # paramiko and the sockets each have errors of their own
            raise faults.unreached(route, str(error).strip() or type(error).__name__) from error
        # With Nagle's algorithm on, every question waits for an acknowledgement: 44 ms each, even on loopback.
        plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return plug

    def _through_command(self, route: Route) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            self._proxy = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {expanded(route.proxy_command, route)}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us, not for a connection that jobs are watched through
            )
        return ours

    def _logged_in(self, route: Route, plug: Any) -> paramiko.Transport:
        import paramiko

        try:
            transport = paramiko.Transport(plug)
        except (paramiko.SSHException, OSError) as error:
            plug.close()
            raise faults.unreached(route, str(error) or type(error).__name__) from error
        try:
            transport.banner_timeout = transport.auth_timeout = trunk.CONNECT_SECONDS
            _ask_for_known_kinds(transport, route)
            transport.start_client(timeout=trunk.CONNECT_SECONDS)
            _check_host_key(transport, route)
            authentication.log_in(transport, route)
            transport.set_keepalive(trunk.KEEPALIVE_SECONDS)
        except paramiko.ssh_exception.IncompatiblePeer as error:
            transport.close()
            raise Unfit(str(error)) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            transport.close()
            raise faults.unreached(route, self._why(error)) from error
        except BaseException:
            transport.close()
            raise
        return transport

    def _why(self, error: Exception) -> str:
        if self._proxy is not None and (code := self._proxy.poll()):
            return f"its ProxyCommand ended with exit code {code}"
        return str(error).strip() or "the connection was cut"


def expanded(command: str, route: Route) -> str:
    """A ProxyCommand with the values in place of its marks."""
    values = {"%%": "%", "%h": route.hostname, "%p": str(route.port), "%r": route.user, "%n": route.destination.host}
    parts = command.split("%%")
    for mark in ("%h", "%p", "%r", "%n"):
        parts = [part.replace(mark, shlex.quote(values[mark])) for part in parts]
    return os.path.expanduser("%".join(parts))


def _ask_for_known_kinds(transport: paramiko.Transport, route: Route) -> None:
    """A host has keys of several kinds; it is asked first for one that is known."""
    options = transport.get_security_options()
    known = [
        name
        for kind in known_hosts.kinds(route.known_hosts, route.known_as)
        for name in (_RSA if kind == "ssh-rsa" else (kind,))
        if name in options.key_types
    ]
    options.key_types = [*known, *(name for name in options.key_types if name not in known)]


def _check_host_key(transport: paramiko.Transport, route: Route) -> None:
    key = transport.get_remote_server_key()
    trust = known_hosts.judge(route.known_hosts, route.known_as, key.get_name(), key.get_base64())
    if trust is Trust.KNOWN:
        return
    fault = {
        Trust.UNKNOWN: faults.unknown_host,
        Trust.CHANGED: faults.changed_host,
        Trust.REVOKED: faults.revoked_host,
    }[trust](route)
    raise fault


class _ParamikoChannel(Channel):
    def __init__(self, owner: ParamikoTrunk, channel: paramiko.Channel) -> None:
        self._owner = owner
        self._channel = channel
        self._poll = select.poll()
        self._poll.register(channel.fileno(), select.POLLIN)

    def send(self, data: bytes, deadline: float) -> None:
        import paramiko

        try:
            self._channel.settimeout(max(0.01, deadline - time.monotonic()))
            self._channel.sendall(data)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise Lost(str(error) or "the connection was cut") from error

    def receive(self, deadline: float) -> tuple[int, bytes] | None:
        channel = self._channel
        while True:
            if channel.recv_ready():
                return OUT, channel.recv(_BLOCK)
            if channel.recv_stderr_ready():
                return ERR, channel.recv_stderr(_BLOCK)
            if channel.closed or channel.eof_received:
                return None
            if (left := deadline - time.monotonic()) <= 0:
                raise Lost("no answer in time")
            # Not for longer than a second: that there will be no more is not always news to the poll.
            self._poll.poll(1000 * min(left, 1.0))

    def end_input(self) -> None:
        with suppress(Exception):
            self._channel.shutdown_write()

    def close(self) -> None:
        with suppress(Exception), self._owner._limited(trunk.OPEN_SECONDS):
            self._channel.close()
