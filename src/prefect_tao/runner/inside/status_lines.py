"""Repeats the command's status file in the job's log, for launchers that see the log of a job and not its files."""

from __future__ import annotations

import _thread
import os
import time

from .command import STOPS
from .fast_imports import signal
from .log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAME = "status.json"
# Seconds between two looks: soon after news, later while there are none.
SOONEST, LATEST = 1.0, 15.0
# Of a file that has grown a lot only the end is repeated.
MOST, LONGEST_LINE, LAST_LINES = 1 << 16, 12000, 8


class StatusLines:
    """Follows the newest status file in `folders` and one level below; `last` are its last lines."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.folders = folders
        self.last: list[str] = []
        self._path, self._read, self._is_over = "", 0, False
        self._lock = _thread.allocate_lock()

    def start(self) -> None:
        """Look for news until `finish`."""
        _thread.start_new_thread(self._watch, ())

    def finish(self) -> None:
        """Repeat what is left to be repeated, also a last line that is not whole."""
        self._is_over = True
        self._tell()

    def _watch(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # they are for the thread that waits for the command
        pause = SOONEST
        while not self._is_over:
            time.sleep(pause)
            pause = SOONEST if self._tell() else min(pause * 1.5, LATEST)

    def _tell(self) -> bool:
        """Say what is new; whether there was anything."""
        with self._lock:
            try:
                lines = self._news()
            except OSError:  # it is being replaced, or the volume does not answer
                return False
            for line in lines:
                say("%s: %s" % (self._name(), line))
            self.last = (self.last + lines)[-LAST_LINES:]
            return bool(lines)

    def _news(self) -> list[str]:
        found = max(self._files(), default=None)
        if found is None:
            return []
        _, path, size = found
        if path != self._path or size < self._read:
            self._path, self._read, self.last = path, 0, []
        begin = max(self._read, size - MOST)
        with open(path, "rb") as file:
            file.seek(begin)
            data = file.read(size - begin)
        if not self._is_over:
            data = data[: data.rfind(b"\n") + 1]
        is_cut = begin > self._read
        self._read = begin + len(data)
        lines = data.decode("utf-8", "replace").splitlines()[is_cut:]
        return [line for line in lines if line.strip() and len(line) <= LONGEST_LINE]

    def _files(self) -> Iterator[tuple[int, str, int]]:
        for folder in self.folders:
            for path in _candidates(folder):
                try:
                    facts = os.stat(path)
                except OSError:
                    continue
                yield facts.st_mtime_ns, path, facts.st_size

    def _name(self) -> str:
        """The file as people know it: below the output that it is in."""
        above = [os.path.dirname(folder) for folder in self.folders if self._path.startswith(folder + os.sep)]
        return os.path.relpath(self._path, above[0])


def _candidates(folder: str) -> Iterator[str]:
    yield os.path.join(folder, NAME)
    try:
        with os.scandir(folder) as entries:
            yield from [os.path.join(entry.path, NAME) for entry in entries if entry.is_dir()]
    except OSError:
        return


def follow(outputs: dict[str, str]) -> StatusLines:
    """Follow the status file among a job's outputs."""
    folders = [os.environ["TAO_RESULTS_DIR"], *outputs.values()]
    found = StatusLines(list(dict.fromkeys(os.path.abspath(folder) for folder in folders if "://" not in folder)))
    found.start()
    return found
