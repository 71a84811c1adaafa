"""Checkpoints: which files they are, which is the newest, and whether it is whole."""

from __future__ import annotations

import os

from .log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

CHECKPOINTS = (".pth", ".pt", ".ckpt", ".tlt", ".hdf5")
NOT_OURS = ("inputs", "ptm", "__pycache__")  # folders whose checkpoints no attempt of this job has written


def checkpoint_rank(name: str, modified: Any) -> tuple[Any, ...]:
    """Newest training position first: by epoch and step in the name, else by time."""
    import re

    found = [int(number) for number in re.findall(r"(?:epoch|step|iter|iteration)[_=-]?(\d+)", name.lower())]
    return (1, tuple(found), modified) if found else (0, (), modified)


def valid_checkpoint(path: str) -> bool:
    """Whether a checkpoint file is whole, as far as its format shows: a job may have died while it wrote it."""
    import zipfile

    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            head = file.read(64)
    except OSError:
        return False
    if head[:2] == b"PK":  # torch.save and numpy write zip files: their directory stands at the very end
        try:
            with zipfile.ZipFile(path) as archive:
                return bool(archive.namelist())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            return False
    if head[:8] == b"\x89HDF\r\n\x1a\n" and len(head) == 64:  # the header of HDF5 says how long the file is
        start = {0: 40, 1: 44}.get(head[8], 28)
        return size >= int.from_bytes(head[start : start + 8], "little")
    return size >= 64


def newest_checkpoint(folders: Sequence[str]) -> str | None:
    """The newest whole checkpoint in the job's own output folders, or None."""
    found = []
    for folder in folders:
        for base, names_below, names in os.walk(folder):
            names_below[:] = [name for name in names_below if name not in NOT_OURS]
            found += [os.path.join(base, name) for name in names if name.endswith(CHECKPOINTS)]
    found = [path for path in found if os.path.isfile(path)]  # a link may point at what is gone
    # A "latest" link or copy has no position in its name; it comes after those that have one.
    for path in sorted(found, key=lambda p: checkpoint_rank(os.path.basename(p), os.path.getmtime(p)), reverse=True):
        if valid_checkpoint(path):
            return path
        say("checkpoint %s is incomplete; trying the one before" % path)
    return None
