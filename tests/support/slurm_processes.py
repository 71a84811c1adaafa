"""Starts daemons that outlive us, finds them again, and ends them and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

# Below the ports that the kernel gives to outgoing connections, which might take the port of a daemon that is down.
PORTS = range(20000, 32000)


def free_ports(count: int) -> tuple[int, ...]:
    """That many ports of the loopback that nobody listens on."""
    return tuple(islice(filter(is_free, random.sample(PORTS, len(PORTS))), count))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Raises RuntimeError when `holds` does not come true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not so after {seconds:g} s")
        time.sleep(0.05)


class Daemon:
    """One long-running program; its pid and birth are kept in a file, so that a reused pid is never mistaken for it."""

    def __init__(self, note: Path, log: Path, words: Sequence[str], env: Mapping[str, str]) -> None:
        self.note = note
        self.log = log
        self.words = list(words)
        self.env = dict(env)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Of the running daemon, or None."""
        try:
            kept = json.loads(self.note.read_text())
        except (OSError, ValueError):
            return None
        born = birth(kept["pid"])
        return kept["pid"] if born is not None and born == kept["birth"] else None

    def start(self) -> None:
        if self.pid is not None:
            return
        with open(self.log, "ab") as log:
            self._child = subprocess.Popen(
                self.words,
                env=self.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.note.write_text(json.dumps({"pid": self._child.pid, "birth": birth(self._child.pid)}))

    def check(self) -> None:
        """Raises RuntimeError with the last lines of its log when it has ended."""
        if self.pid is None:
            last = self.log.read_text(errors="replace")[-1500:]
            raise RuntimeError(f"{self.words[0]} has ended by itself: {last}")

    def stop(self, seconds: float = 20, sign: signal.Signals = signal.SIGTERM) -> None:
        if (pid := self.pid) is not None:
            end([pid], seconds, sign)
        if self._child:
            self._child.wait()
            self._child = None
        self.note.unlink(missing_ok=True)

    def signal(self, sign: signal.Signals) -> None:
        if (pid := self.pid) is not None:
            send(pid, sign)


def birth(pid: int) -> int | None:
    """When a process began, in ticks since boot; None when it is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def end(pids: Iterable[int], seconds: float, sign: signal.Signals = signal.SIGTERM) -> None:
    """Ask these processes to end, and make them after that many seconds."""
    born = {pid: birth(pid) for pid in pids}

    def left() -> list[int]:
        return [pid for pid, when in born.items() if when is not None and birth(pid) == when]

    for each, limit in ((sign, seconds), (signal.SIGKILL, 10.0)):
        for pid in left():
            # A stopped process would not hear the other one.
            send(pid, signal.SIGCONT)
            send(pid, each)
        deadline = time.monotonic() + limit
        while left() and time.monotonic() < deadline:
            _reap(left())
            time.sleep(0.02)
    _reap(born)


def _reap(pids: Iterable[int]) -> None:
    """Children of ours stay as zombies until they are waited for."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def marked(variable: str, value: str) -> list[int]:
    """All processes with this variable in their environment, and their descendants; never ourselves or above us."""
    needle = f"{variable}={value}".encode()
    found = {pid for pid in _pids() if needle in _read(pid, "environ").split(b"\0")}
    parents = {pid: _parent(pid) for pid in _pids()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grown = bool(more)
    above = set()
    pid = os.getpid()
    while pid:
        above.add(pid)
        pid = parents.get(pid, 0)
    return sorted(found - above)


def owned(uid: int) -> list[int]:
    """All processes of a user."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}").stat().st_uid == uid:
                found.append(pid)
    return found


def holders(file: Path) -> list[int]:
    """All processes that have this file open."""
    return [pid for pid in _pids() if str(file) in _open_files(pid)]


def send(pid: int, sign: signal.Signals) -> None:
    """A signal, unless the process has just ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sign)


def name_of(pid: int) -> str:
    """The program's name; empty when it is gone."""
    return _read(pid, "comm").decode().strip()


def _open_files(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(link)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else 0
