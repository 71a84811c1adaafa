"""A lock between processes, on one machine or on several that share a file system."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import contextmanager

from .atomic import discard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BEAT_SECONDS, STALE_SECONDS = 5.0, 30.0


@contextmanager
def locked(folder: str, what: str, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time, as far as a shared file system allows: those that wait find the work done.

    A holder touches its file; a file that has not been touched for a while has lost its holder. Two holders do no harm.
    """
    path = os.path.join(folder, ".lock-%s" % hashlib.sha256(what.encode()).hexdigest()[:16])
    seen, since, said = 0, time.monotonic(), False
    os.makedirs(folder, exist_ok=True)
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            pass
        except OSError:  # the folder cannot be written: reading there needs no lock
            yield
            return
        try:
            touched = os.stat(path).st_mtime_ns
        except OSError:
            continue
        if touched != seen:
            seen, since = touched, time.monotonic()
        elif time.monotonic() - since > STALE_SECONDS:
            discard(path)
        if not said:
            say("another process downloads %s; waiting for it" % what)
            said = True
        time.sleep(0.2)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            try:
                os.utime(path)
            except OSError:
                pass

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        discard(path)
