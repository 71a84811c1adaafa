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

    from ..stores import Store

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
        self.upload = ""
        self.digests: dict[int, bytes] = {}
        self.tags: dict[int, str] = {}

    def start(self) -> None:
        try:
            self.facts = os.stat(self.path)
        except FileNotFoundError:
            raise Unsettled
        self.size = self.facts.st_size
        step = max(self.store.piece, self.size // MOST_PARTS + MIB if self.size > self.store.piece * MOST_PARTS else 0)
        if self.size <= self.store.piece or not self.store.has_parts:
            self.pieces = [self._whole]
            return
        self.upload = self.store.retry(self.what, partial(self.store.begin, self.bucket, self.key))
        self.pieces = [
            partial(self._part, number, start, min(step, self.size - start))
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
            digest = md5(data)
            self.store.retry(self.what, partial(self.store.put, self.bucket, self.key, data, digest))

    def _part(self, number: int, start: int, length: int) -> None:
        with self._read(start, length) as data:
            digest = md5(data)
            self.digests[number] = digest.digest() if digest else b""
            put = partial(self.store.put_part, self.bucket, self.key, self.upload, number, data, digest)
            self.tags[number] = self.store.retry(self.what, put)

    def finish(self) -> None:
        if self.upload:
            self._check()
            self.store.retry(self.what, self._complete)
            self.upload = ""

    def _complete(self) -> None:
        numbers = sorted(self.tags)
        tags, digests = [self.tags[number] for number in numbers], [self.digests[number] for number in numbers]
        try:
            self.store.complete(self.bucket, self.key, self.upload, tags, digests)
        except Exception as error:
            if not self.store.is_gone(error):
                raise
            # The reply to an earlier try was lost, or somebody has removed the upload.
            there = self.store.head(self.bucket, self.key)
            if there.size != self.size or not self.store.is_same(there, digests):
                raise

    def drop(self) -> None:
        if self.upload:
            try:
                self.store.abort(self.bucket, self.key, self.upload)
            except Exception as error:
                uri = self.store.uri(self.bucket, self.key)
                self.store.say("an unfinished upload stays at %s: %s" % (uri, error))
