"""Takes turns with other processes, on one machine or on several."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import contextmanager

from .wholeness import discard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BEAT_SECONDS, STALE_SECONDS = 5.0, 30.0


@contextmanager
def turn(folder: str, what: str, tell: Callable[[str], None]) -> Iterator[None]:
    """One process at a time, as far as a shared file system lets us: those who wait find the work done.

    A holder touches its file; one that has not been touched for a while belongs to nobody. Two holders do no harm.
    """
    path = os.path.join(folder, ".turn-%s" % hashlib.sha256(what.encode()).hexdigest()[:16])
    seen, since, told = 0, time.monotonic(), False
    os.makedirs(folder, exist_ok=True)
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            pass
        except OSError:  # cannot be written: whoever reads there needs no turn
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
        if not told:
            tell("another process downloads %s; waiting for it" % what)
            told = True
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
