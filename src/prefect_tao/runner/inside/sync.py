"""Carries outputs to where they are kept, while the command runs and after its end."""

from __future__ import annotations

import os
import time

from .atomic import write_whole
from .failures import RunnerError, Unsettled
from .fast_imports import partial
from .log import say
from .parallel import run_parallel
from .retry import retry_phase
from .schemes import is_local
from .store import upload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from .tenure import Tenure

PATIENCE_SECONDS = 300  # for a store that does not answer when the command has ended and its outputs are to be kept
SMALL = 1 << 20
NOT_TEXT = set(range(32)) - set(b"\t\n\f\r\033")  # logs have colours and bars


class Sync:
    """Carries files from where the command writes them to where they are kept; only what changed since last time."""

    def __init__(self, excludes: Sequence[str], skip: Sequence[str], tenure: Tenure) -> None:
        self.excludes = [pattern[2:] if pattern.startswith("./") else pattern.lstrip("/") for pattern in excludes]
        self.skip = skip  # folders that are kept already, or that are the runner's own
        self.tenure = tenure
        self.routes: list[tuple[str, str]] = []  # local path, destination
        self.done: dict[tuple[str, str], tuple[int, int]] = {}
        self.seen: dict[tuple[str, str], tuple[int, int]] = {}
        self.end_rounds: Callable[[], None] = lambda: None

    def add(self, local: str, destination: str) -> None:
        self.routes.append((local, destination))

    def _files(self, local: str) -> Iterator[tuple[str, str]]:
        if os.path.isfile(local):
            yield local, os.path.basename(local)
        for base, below, names in os.walk(local):
            inside = os.path.relpath(base, local)
            inside = "" if inside == "." else inside + "/"
            below[:] = [
                name
                for name in below
                if os.path.join(base, name) not in self.skip and not self._excluded(inside + name, folder=True)
            ]
            for name in names:
                if not self._excluded(inside + name):
                    yield os.path.join(base, name), inside + name

    def _excluded(self, relative: str, folder: bool = False) -> bool:
        """Whether a pattern names it, by its path or its own name; patterns for folders end with a slash."""
        from fnmatch import fnmatchcase

        for pattern in self.excludes:
            if pattern.endswith("/") == folder:
                pattern = pattern.rstrip("/")
                if fnmatchcase(relative, pattern) or fnmatchcase(os.path.basename(relative), pattern):
                    return True
        return False

    def once(self, interval: float = 0.0) -> None:
        """Carry what changed. While the command runs, every `interval` seconds, only what it is not writing to."""
        import stat

        if self.routes and self.tenure.is_lost():
            return
        changed: list[Any] = []
        for local, destination in self.routes:
            single = os.path.isfile(local)
            for path, relative in self._files(local):
                try:
                    facts = os.stat(path)
                except OSError:
                    continue
                key, mark = (path, destination), (facts.st_size, facts.st_mtime_ns)
                if self.done.get(key) == mark or not stat.S_ISREG(facts.st_mode):
                    continue
                steady = bool(interval) and self._is_settled(key, mark, interval)
                if interval and not steady and not self._is_growing(key):
                    continue
                target = destination if single else destination.rstrip("/") + "/" + relative
                done = partial(self.done.__setitem__, key, mark)
                changed.append((facts.st_size, is_local(target), (path, target, steady, done)))
        # Small ones first, so that a checkpoint that does not fit leaves logs and states their room.
        copies = [(size > SMALL, partial(copy_whole, *file)) for size, is_here, file in changed if is_here]
        try:
            run_parallel([copy for large, copy in copies if not large])
        finally:
            try:
                run_parallel([copy for large, copy in copies if large])
            finally:
                upload([file for _, is_here, file in changed if not is_here])

    def _is_settled(self, key: tuple[str, str], mark: tuple[int, int], interval: float) -> bool:
        """Whether the file is as it was at the last look, or has not been touched for as long."""
        before, self.seen[key] = self.seen.get(key), mark
        if before is None:
            return time.time() - mark[1] / 1e9 > max(interval, 2.0)
        return before == mark

    def _is_growing(self, key: tuple[str, str]) -> bool:
        """Whether half of the file is of use: logs are read while they grow, a checkpoint only when it is whole."""
        try:
            with open(key[0], "rb") as file:
                return "tfevents" in os.path.basename(key[0]) or NOT_TEXT.isdisjoint(file.read(1024))
        except OSError:
            return False

    def start(self, interval: float) -> None:
        """Carry outputs every `interval` seconds while the command runs."""
        if not self.routes or not interval:
            return
        import threading

        stop = threading.Event()

        def loop() -> None:
            while not stop.wait(interval):
                try:
                    self.once(interval)
                except Exception as error:
                    say("outputs not saved this time, next try in %g s: %s" % (interval, error))

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()

        def end() -> None:
            stop.set()
            thread.join()

        self.end_rounds = end

    def finish(self, is_hurried: Callable[[], bool]) -> None:
        """The last round, after the command ended. A store that does not answer now may do so in a minute."""
        self.end_rounds()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self.once()
            except RunnerError as error:
                if error.final or is_hurried() or time.monotonic() > deadline:
                    raise
                say("outputs not saved yet, trying again: %s" % error)


def copy_whole(path: str, target: str, steady: bool, done: Callable[[], None]) -> None:
    """Copy a file under a temporary name and call `done`; one that should be steady and is not is left alone."""

    def write(temporary: str) -> None:
        before = os.stat(path)
        copy_file(path, temporary)
        after = os.stat(path)
        if steady and (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise Unsettled(path)

    def action() -> None:
        if os.path.exists(path):  # else the command has removed it meanwhile
            os.makedirs(os.path.dirname(target), exist_ok=True)
            write_whole(target, write)

    try:
        retry_phase("outputs", "saving %s to %s" % (path, target), action)
        done()
    except Unsettled:
        pass


def copy_file(source: str, target: str) -> None:
    """Copy content, and mode and times where the file system takes them."""
    import shutil

    shutil.copyfile(source, target)
    try:
        shutil.copystat(source, target)
    except OSError:
        pass
