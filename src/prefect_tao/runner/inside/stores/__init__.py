"""Storage by scheme. A module of this folder is named like its scheme and has it as SCHEME; jobs load what they use.

`Scheme` says what the product knows of one kind of location, `Source` is a connection to it. A `Store` of objects gives
the handful of calls that are abstract below; searching, parallel downloads with resume, the cache, uploads, retries and
everything that the launcher asks before a launch come with it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import namedtuple
from contextlib import contextmanager
from functools import partial

from ..failures import ROOM, Missing, StorageError, is_full, is_local
from ..retry import retry
from ..sizes import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

Item = namedtuple("Item", "bucket key size modified etag")  # one object; `modified` in seconds since 1970
PIECE = 16 * MIB


class Scheme(ABC):
    """One kind of location."""

    name = ""
    title = ""  # for people
    keys: tuple[str, ...] = ()  # the credentials that open it, all of them secret
    settings: tuple[str, ...] = ()  # what else a connection may need, none of it secret
    belonging: tuple[str, ...] = ()  # variables around us that do not go with keys that are supplied by hand
    package = ""  # what has to be installed where the launcher looks into it,
    extra = ""  # and the extra of prefect-tao that brings it
    is_seen = True  # whether it can be looked into with the keys alone; else only the job's image can
    keeps = True  # whether results can be kept there
    is_everywhere = False  # whether a job fetches such a location wherever a spec names it, declared or not

    @abstractmethod
    def connect(self, env: Mapping[str, str], say: Callable[[str], None], quick: bool = False) -> Source:
        """A connection; `quick` where a person waits for the answer. Raises StorageError."""


class Source(ABC):
    """What jobs fetch from."""

    @abstractmethod
    def fetch(
        self, uri: str, target: str, cache: str | None = None, shared: bool = False, names: Sequence[str] | None = None
    ) -> str:
        """Have what is at `uri` at `target`, or of a folder only `names`; returns the path that a spec is given.

        `cache` is a folder that several jobs share; `shared` says that several nodes do this with one `target`.
        Raises Missing, StorageError.
        """


class Parts(ABC):
    """An object that is uploaded in parts, and that is there when all of them are."""

    @abstractmethod
    def put(self, number: int, data: Any, digest: Any) -> None:
        """Send one part; they are counted from 1, and `digest` is the MD5 of `data`."""

    @abstractmethod
    def complete(self, size: int) -> None:
        """Let the parts be the object, which is `size` bytes long."""

    @abstractmethod
    def abort(self) -> None:
        """Remove what was sent."""


class Store(Source):
    """A connection to a storage of objects."""

    scheme = ""
    place = ""  # which storage of its kind it is: part of the cache's names
    piece = 8 * MIB  # the length of a part that is uploaded
    few = 1 << 30  # from so many names on, one listing is quicker than a look for each

    def __init__(self, hands: int = 6) -> None:
        self.hands = threading.BoundedSemaphore(hands)
        self.rooms: list[bytearray] = []
        self.say: Callable[[str], None] = lambda text: None

    # -- what each store of objects has to give ------------------------------------------------------------------------

    @abstractmethod
    def items(self, bucket: str, prefix: str, limit: int | None = None) -> list[Item]:
        """The objects whose keys begin with `prefix`, in order."""

    @abstractmethod
    def head(self, bucket: str, key: str) -> Item:
        """One object. Raises Missing, or whatever its library raises."""

    @abstractmethod
    def read(self, item: Item, start: int, stop: int, scratch: str) -> tuple[Any, Iterator[bytes]]:
        """The checksum of the object, where there is one, and its bytes from `start` to `stop`. Raises Changed."""

    @abstractmethod
    def put(self, bucket: str, key: str, data: Any, digest: Any = None) -> str:
        """Store an object and return its version, if it has one; `digest` is the MD5 of `data`, where there is one."""

    @abstractmethod
    def remove(self, bucket: str, key: str, version: str = "") -> None:
        """Delete an object, as if it had never been there."""

    # -- what a store may know better ----------------------------------------------------------------------------------

    def pages(self, bucket: str, prefix: str, delimiter: str = "") -> Iterator[tuple[list[Item], list[str]]]:
        """As `items`, page by page; with a delimiter what is below it comes as names of folders."""
        found, folders = [], set()
        for item in self.items(bucket, prefix):
            inside, mark, _ = item.key[len(prefix) :].partition(delimiter) if delimiter else (item.key, "", "")
            folders.add(prefix + inside + mark) if mark else found.append(item)
        yield found, sorted(folders)

    def step(self, item: Item) -> int:
        """The length of the pieces in which a large object comes."""
        return PIECE

    def check(self, item: Item, checksum: Any, md5: Callable[[], str], parts: Sequence[bytes] = ()) -> bool:
        """Whether bytes with this MD5, or with these MD5s of their pieces, are the object. Raises StorageError."""
        return True

    def is_refuted(self, item: Item) -> bool:
        """Whether an object that was taken although its checksum differs has turned out to be damaged."""
        return False

    def refutation(self, item: Item) -> StorageError:
        return StorageError("%s is damaged" % self.uri(item.bucket, item.key), final=False)

    def claim(self, uri: str, text: str) -> str:
        """Put `text` at `uri` unless something is there; returns what is there then, nothing where that cannot be."""
        return ""

    def begin(self, bucket: str, key: str) -> Parts | None:
        """Begin an upload in parts; None where objects come in one piece only."""
        return None

    def download_bulk(
        self, uri: str, wanted: dict[str, Item], there: Sequence[Item] | None, beside: str
    ) -> dict[str, Item]:
        """Fetch many small objects at once; returns what is still to be fetched, one by one."""
        return wanted

    def send_bulk(self, files: Sequence[Any]) -> Sequence[Any]:
        """Send many small files at once; returns what is still to be sent, one by one."""
        return files

    def is_final(self, error: Exception) -> bool:
        """Whether the storage said no, so that asking again is of no use."""
        return error.final if isinstance(error, StorageError) else is_local(error)

    def code(self, error: Exception) -> str:
        """The storage's own word for what its library raised."""
        return type(error).__name__

    def remedy(self, code: str, text: str) -> str:
        """What to do about an error, if that is known."""
        return ""

    # -- what all of them have -----------------------------------------------------------------------------------------

    def explained(self, what: str, error: Exception) -> StorageError:
        """What the storage's library raised, in words that say what to do."""
        text, local = str(error) or type(error).__name__, is_local(error)
        code = "" if local else self.code(error)
        remedy = ROOM if is_full(error) else self.remedy(code, text)
        kind = Missing if code in ("404", "NoSuchKey") else StorageError
        return kind("%s failed: %s" % (what, text), self.is_final(error), local, what, code, remedy)

    def uri(self, bucket: str, key: str) -> str:
        return "%s://%s/%s" % (self.scheme, bucket, key)

    def retry(self, what: str, action: Callable[[], Any], position: Callable[[], int] = lambda: 0) -> Any:
        """Do `action` for as long as trying helps. Raises StorageError."""
        return retry(action, partial(self.explained, what), self.is_final, position)

    def find(self, uri: str) -> dict[str, Item]:
        """What is at `uri`: {path below it: object}; the path of an object itself is empty. Raises Missing."""
        from ..transfers.fetching import find

        return find(self, uri)

    def fetch(
        self, uri: str, target: str, cache: str | None = None, shared: bool = False, names: Sequence[str] | None = None
    ) -> str:
        from ..transfers.fetching import fetch

        fetch(self, uri, target, cache, shared, names)
        return target

    def send(self, files: Sequence[tuple[str, str, bool, Callable[[], None]]]) -> None:
        """Upload files: (path, uri, whether it must be steady, what to call when it is there). Raises StorageError."""
        from ..transfers.uploads import send

        send(self, files)

    @contextmanager
    def room(self, length: int) -> Iterator[bytearray]:
        """Memory for a part. So many at once and no more, and used again: what is freed is not always given back."""
        if length <= MIB:
            yield bytearray(length)
            return
        with self.hands:
            room = self.rooms.pop() if self.rooms else bytearray()
            room = room if len(room) >= length else bytearray(max(length, self.piece))
            try:
                yield room
            finally:
                self.rooms.append(room)


def split(uri: str) -> tuple[str, str]:
    """Bucket and key; a slash at the end belongs to the key."""
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key.lstrip("/")
