"""Small matters of files: written whole or not at all, and named safely."""

from __future__ import annotations

import os

from .errors import RunnerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def part_of(path: str) -> str:
    """A temporary name beside `path` for this writer alone: process numbers are alike in all containers."""
    return "%s.%s.part" % (path, os.urandom(4).hex())


def write_whole(path: str, write: Callable[[str], None]) -> None:
    """Let `write(temporary name)` make a file and give it its name when it is whole; a part is never left behind."""
    temporary = part_of(path)
    try:
        write(temporary)
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
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


def safe_name(text: str) -> str:
    """`text` as one folder name."""
    return "".join(char if char.isalnum() or char in "._-" else "_" for char in text).strip(".") or "_"


def own_name(text: str, taken: set[str]) -> str:
    """`text` as a folder name that is not `taken`; the same in every attempt."""
    name = safe_name(text)
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def is_below(path: str, folder: str) -> bool:
    return (path.rstrip("/") + "/").startswith(folder.rstrip("/") + "/")


def refuse_outside(archive: str, folder: str, member: str) -> None:
    target = os.path.realpath(os.path.join(folder, member))
    if target != os.path.realpath(folder) and not target.startswith(os.path.realpath(folder) + os.sep):
        raise RunnerError("inputs", "%s holds %r, which would leave its folder; refused" % (archive, member))
