"""Many transfers side by side."""

from __future__ import annotations

import hashlib
import sys
import threading
import time
from itertools import islice

from ..failures import Changed, StorageError, Unsettled
from ..sizes import human

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from ..stores import Store

LANES = 16  # transfers at once
BATCH = 2_000
SAY_SECONDS = 30.0


class Transfer:
    """One file on its way, in one piece or several: `start` may lay them out, `finish` follows them, or else `drop`."""

    def __init__(self, size: int, *pieces: Callable[[], None]) -> None:
        self.size = size
        self.pieces = list(pieces)
        self.left = 0
        self.error: Exception | None = None
        self.done: Callable[[], None] = lambda: None  # called when it is there

    def start(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def drop(self) -> None:
        pass


class Carrier:
    """Runs transfers side by side."""

    lanes = threading.BoundedSemaphore(LANES)  # for all carriers together

    def __init__(self, what: str, store: Store) -> None:
        self.what, self.store = what, store
        self.lock = threading.Lock()
        self.failed: list[Exception] = []
        self.moved = 0

    def carry(self, transfers: Iterable[Transfer]) -> None:
        """Returns when all have ended; then the first failure is raised. A signal does not wait for them."""
        waiting, started = iter(transfers), time.monotonic()
        batch = list(islice(waiting, BATCH))
        while batch:  # a million of them at once would take memory that the job needs
            self._carry(batch, started)
            batch = list(islice(waiting, BATCH))
        if self.failed:
            raise self.failed[0]

    def _carry(self, transfers: Sequence[Transfer], started: float) -> None:
        from concurrent.futures import ThreadPoolExecutor, wait

        pool, futures = ThreadPoolExecutor(LANES), []
        try:
            for begun in [pool.submit(self._begin, one) for one in transfers]:
                one = begun.result()
                futures += [pool.submit(self._piece, one, work) for work in one.pieces]
            while wait(futures, SAY_SECONDS).not_done:
                seconds = time.monotonic() - started
                self.store.say("%s: %s after %d s" % (self.what, human(self.moved), seconds))
        finally:
            for future in futures:
                future.cancel()
            pool.shutdown(wait=False)

    def _begin(self, one: Transfer) -> Transfer:
        try:
            with self.lanes:
                one.start()
            one.left = len(one.pieces)
        except Exception as error:
            one.error, one.pieces = error, []
        if not one.pieces:
            self._end(one)
        return one

    def _piece(self, one: Transfer, work: Callable[[], None]) -> None:
        try:
            if one.error is None:
                with self.lanes:
                    work()
        except Exception as error:
            one.error = one.error or error
        with self.lock:
            one.left -= 1
            is_last = not one.left
            self.moved += one.size // len(one.pieces)
        if is_last:
            self._end(one)

    def _end(self, one: Transfer) -> None:
        try:
            if one.error is None:
                one.finish()
                one.done()
        except Exception as error:
            one.error = error
        if one.error is None:
            return
        one.drop()
        if isinstance(one.error, (StorageError, Changed)):
            self.failed.append(one.error)
        elif not isinstance(one.error, Unsettled):
            self.failed.append(self.store.explained(self.what, one.error))


class NoDigest:
    """In place of an MD5 that this Python must not compute: it says nothing."""

    def update(self, data: Any) -> None:
        pass

    def digest(self) -> bytes:
        return b""

    def hexdigest(self) -> str:
        return ""


def md5(data: Any = b"") -> Any:
    """MD5 against accidents."""
    words: dict[str, Any] = {"usedforsecurity": False} if sys.version_info[:2] > (3, 8) else {}
    try:
        return hashlib.md5(data, **words)
    except ValueError:
        return NoDigest()
