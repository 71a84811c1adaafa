"""Uploads that are never half."""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial

from ..failures import Unsettled
from ..sizes import MIB
from ..stores import split
from . import Carrier, Transfer, md5

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ..stores import Parts, Store

MOST_PARTS = 10_000


def send(store: Store, files: Sequence[tuple[str, str, bool, Callable[[], None]]]) -> None:
    """Upload files: (path, uri, whether it must be steady, what to call when it is there). Raises StorageError."""
    files = store.send_bulk(files)
    Carrier("saving %d files" % len(files), store).carry(Upload(store, *file) for file in files)


class Upload(Transfer):
    """A file on its way to `uri`; under that name there is never half of it.

    A `steady` file must not change while it is sent, one that only grows is sent as far as it was at the start.
    """

    def __init__(self, store: Store, path: str, uri: str, steady: bool, done: Callable[[], None]) -> None:
        super().__init__(0)
        self.store, self.path, self.steady = store, path, steady
        self.done = done
        self.bucket, self.key = split(uri)
        self.what = "saving %s to %s" % (path, uri)
        self.parts: Parts | None = None

    def start(self) -> None:
        try:
            self.facts = os.stat(self.path)
        except FileNotFoundError:
            raise Unsettled
        self.size = self.facts.st_size
        step = max(self.store.piece, self.size // MOST_PARTS + MIB if self.size > self.store.piece * MOST_PARTS else 0)
        if self.size > self.store.piece:
            self.parts = self.store.retry(self.what, partial(self.store.begin, self.bucket, self.key))
        if self.parts is None:
            self.pieces = [self._whole]
            return
        self.pieces = [
            partial(self._part, self.parts, number, start, min(step, self.size - start))
            for number, start in enumerate(range(0, self.size, step), 1)
        ]

    @contextmanager
    def _read(self, start: int, length: int) -> Iterator[Any]:
        """A part of the file as it is now: what is sent is what was looked at, even if the file is written to."""
        with self.store.room(length) as room:
            view = memoryview(room)[:length]
            try:
                with open(self.path, "rb", buffering=0) as file:
                    file.seek(start)
                    done = 0
                    while done < length:
                        count = file.readinto(view[done:])
                        if not count:
                            raise Unsettled
                        done += count
            except FileNotFoundError:
                raise Unsettled
            yield room if len(room) == length else bytes(view)

    def _check(self) -> None:
        try:
            facts = os.stat(self.path)
        except OSError:
            raise Unsettled
        if self.steady and (facts.st_size, facts.st_mtime_ns) != (self.facts.st_size, self.facts.st_mtime_ns):
            raise Unsettled

    def _whole(self) -> None:
        with self._read(0, self.size) as data:
            self._check()
            self.store.retry(self.what, partial(self.store.put, self.bucket, self.key, data, md5(data)))

    def _part(self, parts: Parts, number: int, start: int, length: int) -> None:
        with self._read(start, length) as data:
            self.store.retry(self.what, partial(parts.put, number, data, md5(data)))

    def finish(self) -> None:
        if self.parts:
            self._check()
            self.store.retry(self.what, partial(self.parts.complete, self.size))
            self.parts = None

    def drop(self) -> None:
        if self.parts:
            try:
                self.parts.abort()
            except Exception as error:
                uri = self.store.uri(self.bucket, self.key)
                self.store.say("an unfinished upload stays at %s: %s" % (uri, error))
