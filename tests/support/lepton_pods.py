"""Workers of the Lepton stand-in: each is a process of this machine, with the variables that Lepton gives it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

WORKER = "LEPTON_WORKER_ID"


class WorkerLog:
    """The lines of a worker with the moment of each, as Loki keeps them: whole ones, in order."""

    def __init__(self) -> None:
        self.moments: list[int] = []
        self.lines: list[str] = []
        self.whole = bytearray()  # as the live stream gives it out, unfinished lines included
        self.changed = threading.Condition()
        self.is_over = False

    def add(self, data: bytes, rest: bytes) -> bytes:
        """Take what came; returns the unfinished end of it."""
        *lines, left = (rest + data).split(b"\n")
        with self.changed:
            self.whole += data
            for line in lines:
                self._line(line)
            self.changed.notify_all()
        return left

    def end(self, rest: bytes) -> None:
        with self.changed:
            if rest:
                self._line(rest)
            self.is_over = True
            self.changed.notify_all()

    def _line(self, line: bytes) -> None:
        self.moments.append(max(time.time_ns(), self.moments[-1] + 1 if self.moments else 0))
        self.lines.append(line.decode(errors="replace"))

    def between(self, start: int, end: int, limit: int, backward: bool) -> list[tuple[int, str]]:
        low, high = bisect_left(self.moments, start), bisect_left(self.moments, end)
        low, high = (max(low, high - limit), high) if backward else (low, min(high, low + limit))
        return list(zip(self.moments[low:high], self.lines[low:high], strict=True))


class Worker:
    """One replica. It ends by itself, or when it is asked to; then nothing of it is left."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], disk: Path) -> None:
        self.name, self.log, self.disk = name, WorkerLog(), disk
        self.command, self.env = list(command), dict(env)
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self._starting = threading.Lock()
        self.was_ended = False

    def start(self, ended: Callable[[], None]) -> None:
        with self._starting:
            if self.was_ended or self.process:
                return
            self.disk.mkdir(parents=True)
            own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self.disk)}
            own |= {"TMPDIR": str(self.disk), "TAO_WORK_DIR": str(self.disk), WORKER: self.name}
            self.process = subprocess.Popen(
                self.command,
                env={**own, **self.env},
                cwd=self.disk,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(ended,), daemon=True).start()

    def _read(self, ended: Callable[[], None]) -> None:
        assert self.process
        assert self.process.stdout
        rest, code = b"", None
        # What has left the container's first process may hold its output open; the container ends all the same.
        threading.Thread(target=self._clear_when_over, daemon=True).start()
        while data := self.process.stdout.read1(1 << 16):
            rest = self.log.add(data, rest)
        code = self.process.wait()
        self.log.end(rest)
        shutil.rmtree(self.disk, ignore_errors=True)
        self.code = code if code >= 0 else 128 - code
        ended()

    def _clear_when_over(self) -> None:
        assert self.process
        self.process.wait()
        self.kill()

    def end(self, grace: float) -> None:
        """As a container is ended: its first process is asked, and after a while all of them are killed."""
        with self._starting:
            self.was_ended = True
        if not self.process:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(grace)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Kill every process that has the worker's name in its environment, wherever it has gone."""
        mark = f"{WORKER}={self.name}".encode()
        while left := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _carries(pid, mark)]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process:
                self.process.poll()
            time.sleep(0.005)


def _carries(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False
