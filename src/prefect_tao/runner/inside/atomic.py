"""Files that are whole or not there: a file gets its name as the last act."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def part_of(path: str) -> str:
    """A temporary name beside `path` for this writer alone: process numbers are alike in all containers."""
    return "%s.%s.part" % (path, os.urandom(4).hex())


def discard(path: str) -> None:
    """Remove a file if it is there and can be removed."""
    try:
        os.unlink(path)
    except OSError:
        pass


def write_whole(path: str, write: Callable[[str], None]) -> None:
    """Let `write(temporary name)` make a file and give it its name when it is whole; a part is never left behind."""
    temporary = part_of(path)
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException:
        discard(temporary)
        raise


def write_atomic(path: str, data: bytes) -> None:
    """Write a whole file or nothing."""

    def write(temporary: str) -> None:
        with open(temporary, "wb") as file:
            file.write(data)

    write_whole(path, write)


def rename_once(source: str, target: str) -> None:
    """Rename, or accept that another rank was quicker with the same content."""
    try:
        os.rename(source, target)
    except OSError:
        if not os.path.exists(target):
            raise
