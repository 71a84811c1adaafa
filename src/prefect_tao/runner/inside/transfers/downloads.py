"""Downloads: an object in one go or in pieces, and always whole in the end."""

from __future__ import annotations

import hashlib
import os
import zlib
from functools import partial

from ..atomic import discard, part_of
from ..failures import Changed
from ..sizes import MIB
from . import Carrier, Transfer, md5

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ..stores import Item, Store

RANGED = 32 * MIB  # larger objects come in pieces, side by side, and can be taken up where they broke off


def stamp_of(item: Item) -> int:
    """The time that a file of this content bears: when the object was made, and in its microseconds which it is."""
    return (int(item.modified) * 1_000_000 + zlib.crc32(item.etag.encode()) % 999_999 + 1) * 1000


def is_whole(path: str, item: Item) -> bool:
    """Whether the file is the object, downloaded whole and untouched since."""
    try:
        facts = os.stat(path)
    except OSError:
        return False
    # Some file systems keep whole seconds only.
    times = (stamp_of(item), int(item.modified) * 1_000_000_000)
    return facts.st_size == item.size and facts.st_mtime_ns in times


def give_name(temporary: str, path: str, item: Item) -> None:
    """The last act of a download: the file is whole, so it gets its time and its name."""
    os.utime(temporary, ns=(stamp_of(item),) * 2)
    os.replace(temporary, path)


def download(
    store: Store, what: str, wanted: Mapping[str, Item], done: Callable[[str], None] = lambda path: None
) -> None:
    """Download each object to its path, the largest first, so that small ones fill the gaps at the end."""

    def transfer(path: str, item: Item) -> Transfer:
        one = (LargeDownload if item.size > RANGED else Download)(store, item, path)
        one.done = partial(done, path)
        return one

    largest_first = sorted(wanted.items(), key=lambda pair: -pair[1].size)
    Carrier("download of %s" % what, store).carry(transfer(path, item) for path, item in largest_first)
    damaged = [(path, item) for path, item in wanted.items() if store.is_refuted(item)]
    for path, _ in damaged:
        discard(path)
    if damaged:
        raise store.refutation(damaged[0][1])


class Download(Transfer):
    """An object in one go."""

    def __init__(self, store: Store, item: Item, target: str) -> None:
        super().__init__(item.size)
        self.store, self.item, self.target = store, item, target
        self.what = "download of %s" % store.uri(item.bucket, item.key)

    def start(self) -> None:
        os.makedirs(os.path.dirname(self.target), exist_ok=True)
        self.pieces = [partial(self.store.retry, self.what, self._get)]

    def _get(self) -> None:
        temporary, digest, size = part_of(self.target), md5(), 0
        try:
            with open(temporary, "wb") as file:
                checksum, chunks = self.store.read(self.item, 0, self.size, temporary + ".body")
                for chunk in chunks:
                    file.write(chunk)
                    size += len(chunk)
                    digest.update(chunk)
            if size != self.size:
                raise OSError("got %d of %d bytes" % (size, self.size))
            if not self.store.check(self.item, checksum, digest.hexdigest):
                raise OSError("what came does not have the object's checksum")
            give_name(temporary, self.target, self.item)
        finally:
            discard(temporary)


class LargeDownload(Download):
    """An object in pieces. They are kept under a name that stands for the content, so that a later start goes on there.

    Two processes may work on one such file: what they write is the same.
    """

    def __init__(self, store: Store, item: Item, target: str) -> None:
        super().__init__(store, item, target)
        self.part = "%s.%s.part" % (target, hashlib.sha256(repr(tuple(item)).encode()).hexdigest()[:12])
        self.log = self.part + "s"  # which pieces are there, and their MD5s
        self.file = -1
        self.checksum: Any = None
        self.is_wrong = False
        self.digests: dict[int, bytes] = {}

    def start(self) -> None:
        os.makedirs(os.path.dirname(self.target), exist_ok=True)
        self.step = self.store.step(self.item)
        self.file = os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(self.file, self.size)
        recorded, self.count = self._recorded(), -(-self.size // self.step)
        together = max(1, RANGED // self.step)  # a request for each part would be many
        self.pieces = [
            partial(self._piece, range(first, min(first + together, self.count)), recorded)
            for first in range(0, self.count, together)
        ]

    def _recorded(self) -> dict[int, bytes]:
        try:
            with open(self.log, encoding="ascii") as file:
                lines = [line.split() for line in file if line.endswith("\n")]
            return {int(words[1]): bytes.fromhex(words[2]) for words in lines if words[0] == str(self.step)}
        except (OSError, ValueError, IndexError):
            return {}

    def _piece(self, numbers: Sequence[int], recorded: Mapping[int, bytes]) -> None:
        run: list[int] = []
        for number in numbers:
            if number in recorded and self._on_disk(number * self.step, self._stop(number)) == recorded[number]:
                self.digests[number] = recorded[number]
                self._get_run(run)
                run = []
            else:
                run.append(number)
        self._get_run(run)

    def _stop(self, number: int) -> int:
        return min((number + 1) * int(self.step), self.size)

    def _get_run(self, run: Sequence[int]) -> None:
        """Fetch parts that follow each other with one request, or with as many as it takes."""
        if not run:
            return
        at, number, digest = run[0] * self.step, run[0], md5()

        def get() -> None:
            nonlocal at, number, digest
            stop = self._stop(run[-1])
            self.checksum, chunks = self.store.read(self.item, at, stop, "%s.%d.body" % (self.part, number))
            for chunk in chunks:
                while chunk:
                    head = chunk[: self._stop(number) - at]
                    head = head[: os.pwrite(self.file, head, at)]  # a disk that fills up takes less
                    chunk = chunk[len(head) :]
                    at += len(head)
                    digest.update(head)
                    if at == self._stop(number):
                        self._record(number, digest)
                        number, digest = number + 1, md5()
            if at != stop:
                raise OSError("the connection ended %d bytes early" % (stop - at))

        self.store.retry(self.what, get, lambda: at)

    def _record(self, number: int, digest: Any) -> None:
        self.digests[number] = digest.digest()
        # One short line at once, because another process may be writing its own there.
        with open(self.log, "ab", buffering=0) as log:
            log.write(b"%d %d %s\n" % (self.step, number, digest.hexdigest().encode()))

    def _on_disk(self, start: int, stop: int) -> bytes:
        digest = md5()
        for at in range(start, stop, MIB):
            digest.update(os.pread(self.file, min(MIB, stop - at), at))
        return bytes(digest.digest())

    def _is_right(self) -> bool:
        """Whether the bytes have the object's checksum, as far as that can be known."""
        if len(self.digests) != self.count:
            return True
        parts = [self.digests[number] for number in range(self.count)]
        return self.store.check(self.item, self.checksum, lambda: self._on_disk(0, self.size).hex(), parts)

    def finish(self) -> None:
        self.is_wrong = True
        if not self._is_right():
            raise Changed
        self.is_wrong = False
        self._close()
        try:
            give_name(self.part, self.target, self.item)
        except FileNotFoundError:  # another process was quicker with the same content
            if not is_whole(self.target, self.item):
                raise
        discard(self.log)

    def drop(self) -> None:
        """The pieces stay for the next try, unless they are wrong or fill the disk."""
        self._close()
        if self.is_wrong or isinstance(self.error, Changed) or getattr(self.error, "local", False):
            discard(self.part)
            discard(self.log)

    def _close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
