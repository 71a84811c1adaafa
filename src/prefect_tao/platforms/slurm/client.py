"""The way to a cluster: bash scripts run on the login node that answers, and files are written there."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.platforms.ssh.connection import COMMANDS, Connection
from prefect_tao.platforms.ssh.destination import Destination
from prefect_tao.platforms.ssh.faults import GOES_ON

T = TypeVar("T")

CALL_SECONDS = 90.0
# How long a login node that did not answer is asked only after the others.
SHUN_SECONDS = 300.0
SHELL = "exec bash --noprofile --norc -s"
# What a script ends with that has run to its last line, and that nothing else is likely to end with.
_WHOLE = 86


@dataclass(frozen=True)
class Account:
    """Who logs in, on which login nodes and with what; what is left out comes from ~/.ssh/config."""

    user: str
    hosts: tuple[str, ...]
    port: int | None = None
    key_path: str | None = None
    known_hosts: str | None = None
    passphrase: str | None = field(default=None, repr=False)

    def destination(self, host: str) -> Destination:
        """One of the login nodes."""
        return Destination(
            host,
            self.user,
            self.port,
            self.key_path,
            self.known_hosts,
            passphrase=self.passphrase,
            key_setting="SSH_KEY_PATH",
        )


class Login:
    """The login nodes. Its methods may be called side by side; blocking work happens in a small pool of threads."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self._host = ""
        self._shunned: dict[str, float] = {}
        self._connections: dict[Destination, Connection] = {}
        self._opening = threading.Lock()
        self._pool = ThreadPoolExecutor(COMMANDS, thread_name_prefix="slurm-login")

    @property
    def host(self) -> str:
        """The login node in use, or the first one."""
        return self._host or self.account.hosts[0]

    async def run(self, script: str, seconds: float = CALL_SECONDS, *, again: bool = True) -> str:
        """What the bash `script` prints. With `again` it is repeated once on a new connection; raises Unreachable."""
        return await self._call(lambda there: _run(there, script, seconds), again)

    async def put(self, path: str, data: bytes) -> None:
        """Write a file that only its owner may read, in a folder of its own. Raises Unreachable, SubmitFailed."""
        await self._call(lambda there: _put(there, path, data), again=False)

    async def close(self) -> None:
        """Let go of the connections; what runs on the cluster goes on."""
        for connection in self._connections.values():
            connection.close()
        self._pool.shutdown(wait=False)

    async def connect(self) -> str:
        """Connect if there is no connection; the login node that answered. Raises Unreachable."""
        await self._call(lambda there: None, again=True)
        return self._host

    def connection(self, host: str) -> Connection:
        """The connection to one of the login nodes, which may not have been used yet."""
        destination = self.account.destination(host)
        with self._opening:
            if destination not in self._connections:
                self._connections[destination] = Connection(destination)
            return self._connections[destination]

    async def _call(self, action: Callable[[Connection], T], again: bool) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._call_here, action, again)

    def _call_here(self, action: Callable[[Connection], T], again: bool) -> T:
        there = self._connected()
        try:
            return action(there)
        except Unreachable:
            if not again:
                raise
        there = self._connected()
        try:
            return action(there)
        except Unreachable:
            self._shun(there.destination.host)
            raise

    def _connected(self) -> Connection:
        """The first login node that answers."""
        failures = []
        for host in self._order():
            there = self.connection(host)
            try:
                there.connect()
            except Unreachable as error:
                self._shun(host)
                failures.append(error)
                continue
            self._host = host
            self._shunned.pop(host, None)
            return there
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


def _none_answers(failures: Sequence[Unreachable]) -> Unreachable:
    """One error for all login nodes; it lasts only if each of them does."""
    if len(failures) == 1:
        return failures[0]
    causes = "; ".join(failure.cause for failure in failures)
    passing = any(failure.retryable for failure in failures)
    return Unreachable(f"no login node answers: {causes}", failures[0].remedy, passing)


def _run(there: Connection, script: str, seconds: float) -> str:
    # In braces, so that bash reads it all before it runs any of it; the second `exit` is for an error that makes it
    # leave the braces. What goes to stderr is not an answer.
    text = f"{{ exec 2>/dev/null\n{script}\nexit {_WHOLE}; }}\nexit 1\n"
    answer = there.run(SHELL, text.encode(), seconds)
    if answer.code != _WHOLE:
        said = answer.stdout.decode(errors="replace").strip()[-200:]
        raise Unreachable(f"{there.destination.host}: the answer was cut short{': ' if said else ''}{said}", GOES_ON)
    return answer.stdout.decode(errors="replace")


def _put(there: Connection, path: str, data: bytes) -> None:
    try:
        there.put({path: data}, CALL_SECONDS)
    except OSError as error:
        raise SubmitFailed(
            f"{os.path.dirname(path)} cannot be written on the cluster: {error}",
            "check the folder's rights, the quota and the free space there, or name another results folder",
        ) from error
