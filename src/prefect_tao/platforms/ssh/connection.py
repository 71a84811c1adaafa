"""The connection to a machine, shared by everything in this process: commands, files and streams.

A login that the machine refuses is tried once and then remembered: repeating it helps no one and gets people banned.
"""

from __future__ import annotations

import atexit
import os
import posixpath
import shlex
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple

from prefect_tao.jobs.errors import MissingDependency
from prefect_tao.platforms.ssh import ssh_config, trunk
from prefect_tao.platforms.ssh.destination import Destination
from prefect_tao.platforms.ssh.faults import GOES_ON, Busy, Lost, Silent, Unfit, no_commands
from prefect_tao.platforms.ssh.framing import OUT, CommandResult, Framed
from prefect_tao.platforms.ssh.ssh_config import Route
from prefect_tao.platforms.ssh.trunk import Channel, Trunk

# With five commands at once on a connection none was ever refused.
COMMANDS = 5
CALL_SECONDS = 60.0
REMEMBER_SECONDS = 300.0
_BUSY_TRIES = 6
_CUT_SECONDS = 0.3
_FOREVER = float("inf")


class Stream:
    """A command there as a channel of bytes in both directions. Methods raise Silent when the connection is lost."""

    def __init__(self, shared: _Shared, trunk: Trunk, channel: Channel, first: bytes) -> None:
        self._shared = shared
        self._trunk = trunk
        self._channel = channel
        self._first = first
        self._closing = threading.Lock()
        self._is_closed = False

    def send(self, data: bytes) -> None:
        """Give all of `data` to the command."""
        with self._shared.typed():
            self._channel.send(data, time.monotonic() + CALL_SECONDS)

    def receive(self) -> bytes:
        """Some of what it prints; empty at the end."""
        if self._first:
            first, self._first = self._first, b""
            return first
        with self._shared.typed():
            while got := self._channel.receive(_FOREVER):
                if got[0] == OUT:
                    return got[1]
        return b""

    def end_input(self) -> None:
        """Nothing more will be sent."""
        self._channel.end_input()

    def close(self) -> None:
        """Let go of it; may be called by anyone, and twice."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
        self._channel.close()
        self._shared.leave(self._trunk)


class Connection:
    """A machine. Methods block, may be called side by side, and raise Silent when it is not reached."""

    def __init__(self, destination: Destination) -> None:
        """Nothing is connected yet."""
        self.destination = destination
        self._shared: _Shared | None = _join(destination)

    def connect(self) -> None:
        """Log in, if there is no login."""
        self._there.connect()

    def routes(self) -> list[Route]:
        """The machines on the way, as ssh's configuration says now; the last one is the one that is meant."""
        return ssh_config.routes(self.destination)

    def run(self, command: str, stdin: bytes = b"", timeout: float = CALL_SECONDS) -> CommandResult:
        """What a command prints there, however it ends. It is never run twice."""
        return self._there.run(command, stdin, timeout)

    def put(self, files: Mapping[str, bytes], timeout: float = CALL_SECONDS) -> None:
        """Write files that only their owner may read, whole or not at all. Raises OSError in the machine's words.

        They travel as the input of a command: sftp breaks on login shells that print something, and some sites have
        none. Folders that are missing are made; the last one of a path is for its owner only.
        """
        for path, data in files.items():
            answer = self.run(_write(path, len(data)), data, timeout)
            if answer.code:
                raise OSError(answer.words)

    def stream(self, command: str) -> Stream:
        """Start a command as a channel of bytes. Raises Silent also when it does not begin."""
        return self._there.stream(command)

    def close(self) -> None:
        """Let go of it; the login ends when no one else in this process uses it."""
        if self._shared is not None:
            shared, self._shared = self._shared, None
            _part(self.destination, shared)

    @property
    def _there(self) -> _Shared:
        if self._shared is None:
            self._shared = _join(self.destination)
        return self._shared


def _write(path: str, size: int) -> str:
    folder, part = shlex.quote(posixpath.dirname(path) or "."), shlex.quote(f"{path}.part")
    return (
        f"d={folder}; p={part}; "
        'if [ ! -d "$d" ]; then mkdir -p "$(dirname "$d")" && (umask 077; mkdir "$d") || [ -d "$d" ] || exit 1; fi; '
        f'umask 077; if cat > "$p" && [ "$(wc -c < "$p")" -eq {size} ] && mv -f "$p" {shlex.quote(path)}; then exit 0; '
        'fi; [ ! -e "$p" ] || echo "the file is shorter than what was sent; the disk or the quota may be full" >&2; '
        'rm -f "$p"; rmdir "$d" 2>/dev/null; exit 1'
    )


# -- what is shared ----------------------------------------------------------------------------------------------------


class _Refusal(NamedTuple):
    """A login that cannot work before something has changed."""

    fault: Silent
    fingerprint: object
    until: float


_lock = threading.Lock()
_all: dict[Destination, tuple[_Shared, int]] = {}
_refusals: dict[Destination, _Refusal] = {}


@atexit.register
def _close_all() -> None:
    """The ssh program's connection would outlive this process."""
    for shared, _ in list(_all.values()):
        shared.close()


def _join(destination: Destination) -> _Shared:
    with _lock:
        shared, holders = _all.get(destination) or (_Shared(destination), 0)
        _all[destination] = (shared, holders + 1)
        return shared


def _part(destination: Destination, shared: _Shared) -> None:
    with _lock:
        _, holders = _all[destination]
        _all[destination] = (shared, holders - 1)
        if holders > 1:
            return
        del _all[destination]
    shared.close()


class _Shared:
    """The logins to one machine: one, and further ones only for streams that it has no room for."""

    def __init__(self, destination: Destination) -> None:
        self.destination = destination
        self._trunks: dict[Trunk, int] = {}
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._commands = threading.BoundedSemaphore(COMMANDS)

    def connect(self) -> None:
        with self.typed():
            self.leave(self._entered())

    def run(self, command: str, stdin: bytes, timeout: float) -> CommandResult:
        framed = Framed(command, len(stdin))
        with self._commands, self.typed():
            used, channel = self._opened(framed.wire, patient=True)
            deadline = time.monotonic() + timeout
            try:
                unsent = _unsent(channel, stdin, deadline)
                while not framed.is_whole:
                    if (got := channel.receive(deadline)) is None:
                        if unsent:
                            raise unsent
                        self._check_commands(used, framed)
                        raise Lost(f"the answer was cut short{': ' if framed.noise else ''}{framed.noise}")
                    framed.take(*got)
                return framed.answer
            except Lost as lost:
                used.is_retired = True
                if time.monotonic() >= deadline:
                    raise Lost(f"no answer within {timeout:g} s") from lost
                raise
            finally:
                channel.close()
                self.leave(used)

    def _check_commands(self, used: Trunk, framed: Framed) -> None:
        """Raises Silent where a login works and its shell runs nothing: it has ended with words of its own."""
        if framed.begun is not None or not framed.noise:
            return
        time.sleep(_CUT_SECONDS)  # a connection that was cut is known to be so only after a moment
        if used.is_active:
            raise no_commands(self.destination.shown, framed.noise)

    def stream(self, command: str) -> Stream:
        framed = Framed(command, is_stream=True)
        with self.typed():
            used, channel = self._opened(framed.wire, patient=False)
            deadline = time.monotonic() + trunk.OPEN_SECONDS
            try:
                while (first := framed.begun) is None:
                    if (got := channel.receive(deadline)) is None:
                        raise Lost(f"{command} did not begin: {framed.noise}")
                    framed.take(*got)
            except Lost:
                channel.close()
                self.leave(used)
                raise
            return Stream(self, used, channel, first)

    @contextmanager
    def typed(self) -> Iterator[None]:
        """A lost connection in the words of a person."""
        try:
            yield
        except Lost as lost:
            raise Silent(f"{self.destination.host}: {lost}", GOES_ON) from lost

    def leave(self, used: Trunk) -> None:
        """A channel is over; the last one takes a login with it that is not used again."""
        with self._lock:
            if used not in self._trunks:
                return
            self._trunks[used] -= 1
            if self._trunks[used] or used.is_usable:
                return
            del self._trunks[used]
        used.close()

    def close(self) -> None:
        """End all logins."""
        with self._lock:
            trunks, self._trunks = list(self._trunks), {}
        for each in trunks:
            each.close()

    def _opened(self, wire: str, patient: bool) -> tuple[Trunk, Channel]:
        """A channel on a login with room. One that turns out to be dead is replaced once: nothing was done on it."""
        busy = lost = 0
        while True:
            used = self._entered()
            try:
                return used, used.open(wire)
            except Busy:
                busy += 1
                self._wait_for_room(used, busy, patient)
            except Lost:
                used.is_retired = True
                self.leave(used)
                lost += 1
                if lost > 1:
                    raise
            except BaseException:
                self.leave(used)
                raise

    def _wait_for_room(self, used: Trunk, busy: int, patient: bool) -> None:
        """After a refused session: a place may be free in a moment; else the next one goes to another login."""
        self.leave(used)
        with self._lock:
            others = self._trunks.get(used, 0)
        if others and (not patient or busy > _BUSY_TRIES):
            used.room = others
        elif busy > _BUSY_TRIES:
            raise Lost("the machine opens no further session on this connection")
        else:
            time.sleep(0.05 * 2**busy)

    def _entered(self) -> Trunk:
        """A login with room for one more channel, which is counted."""
        with self._connecting:
            with self._lock:
                for each, channels in self._trunks.items():
                    if each.is_usable and channels < each.room:
                        self._trunks[each] += 1
                        return each
                idle = [each for each, channels in self._trunks.items() if not channels and not each.is_usable]
                for each in idle:
                    del self._trunks[each]
            for each in idle:
                each.close()
            made = _logged_in(self.destination)
            with self._lock:
                self._trunks[made] = 1
            return made


def _logged_in(destination: Destination) -> Trunk:
    """A new login, by paramiko or by the ssh program. Raises Silent, MissingDependency."""
    routes = ssh_config.routes(destination)
    fingerprint = _fingerprint(routes)
    known = _refusals.get(destination)
    if known and known.fingerprint == fingerprint and time.monotonic() < known.until:
        raise known.fault
    try:
        made = _carried(routes)
    except Silent as fault:
        if not fault.retryable:
            _refusals[destination] = _Refusal(fault, fingerprint, time.monotonic() + REMEMBER_SECONDS)
        raise
    _refusals.pop(destination, None)
    return made


def _fingerprint(routes: list[Route]) -> object:
    """What a person may have changed since: settings, keys, the agent, known hosts."""
    files = [file for route in routes for file in (*route.keys, *route.known_hosts)]
    return routes, [_state(str(file)) for file in files], os.environ.get("SSH_AUTH_SOCK"), _agent_keys()


def _state(path: str) -> tuple[int, int] | None:
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _agent_keys() -> list[str]:
    if not os.environ.get("SSH_AUTH_SOCK") or not find_spec("paramiko"):
        return []
    import paramiko

    try:
        agent = paramiko.Agent()
    except (paramiko.SSHException, OSError):
        return []
    try:
        return [key.get_base64() for key in agent.get_keys()]
    finally:
        agent.close()


def _carried(routes: list[Route]) -> Trunk:
    from prefect_tao.platforms.ssh.program_trunk import ProgramTrunk

    beyond = ", ".join(route.beyond for route in routes if route.beyond)
    has_program, has_paramiko = ssh_config.has_program(), find_spec("paramiko") is not None
    if has_program and (beyond or not has_paramiko):
        return ProgramTrunk(routes)
    if not has_paramiko:
        raise MissingDependency("there is neither paramiko nor an ssh program on this machine", "pip install paramiko")
    from prefect_tao.platforms.ssh.paramiko_trunk import ParamikoTrunk

    try:
        return ParamikoTrunk(routes)
    except Unfit as error:
        if has_program:
            return ProgramTrunk(routes)
        raise Silent(f"{routes[-1].hostname}: {error}", "install the ssh program (openssh-client)", False) from error
    except Silent as fault:
        if beyond:
            remedy = f"{fault.remedy}; or install the ssh program (openssh-client), which {beyond} needs"
            raise Silent(fault.cause, remedy, fault.retryable) from fault
        raise


def _unsent(channel: Channel, stdin: bytes | None, deadline: float) -> Lost | None:
    """Why the command was not given all its input, if so: one that ended before has answered all the same."""
    try:
        if stdin:
            channel.send(stdin, deadline)
    except Lost as lost:
        return lost
    return None
