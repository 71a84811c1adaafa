"""Files that are whole: a download gets its name and its time as the last act."""

from __future__ import annotations

import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ways import Item


def discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


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
