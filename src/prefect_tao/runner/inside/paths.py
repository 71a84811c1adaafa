"""Names for files and folders that are safe, and places that must not be left."""

from __future__ import annotations

import os

from .failures import RunnerError


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
