"""Which site has taken an attempt, noted beside the results before its job is submitted.

A job keeps a record of its own from its start on. Until then only this note tells another site, which shares the
results and cannot see the job, that the key is taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from prefect_tao.jobs.errors import TaoError
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import refusal
from prefect_tao.platforms.files import Files
from prefect_tao.platforms.markers import UNNAMED, left_by, read_object

FOLDER = ".prefect-tao-sites"
MAX_NOTE = 4096


def leave(files: Files, handle: JobHandle) -> None:
    """Note that the attempt is its site's. Raises Elsewhere where another site was first.

    Where no note can be left nothing is refused: the job itself looks again when it starts.
    """
    own = json.dumps({"site": handle.site, "target": handle.target}).encode()
    kept: bytes | None = None
    with suppress(TaoError):
        kept = files.put_first(_path(handle), own)
    if far := _foreign(handle, kept):
        raise refusal(far)


def drop(files: Files, handle: JobHandle) -> None:
    """Take the note back: the platform refused the job."""
    with suppress(TaoError):
        files.remove(_path(handle))


def others(files: Files, keys: Sequence[JobHandle]) -> list[JobHandle]:
    """The attempts of some keys that sites other than theirs have taken. Raises Unreachable when that is not known.

    Each key is given as a handle with its results and our site.
    """
    by_folder = {_folder(one.results): one for one in keys if files.keeps_notes and one.results}
    there = files.names(list(by_folder)) if by_folder else {}
    noted = [
        by_folder[folder].model_copy(update={"attempt": int(stem)})
        for folder, names in there.items()
        for name in names
        if (stem := name.removesuffix(".json")).isdigit()
    ]
    notes = files.read_all([_path(handle) for handle in noted], MAX_NOTE)
    return [far for handle, note in zip(noted, notes, strict=True) if (far := _foreign(handle, note))]


def _foreign(handle: JobHandle, note: bytes | None) -> JobHandle | None:
    """The attempt as another site has noted it; None where the note is ours, or tells nothing."""
    told = left_by(handle, read_object(note), handle.site)
    return told if told.site not in (handle.site, UNNAMED) else None


def _folder(results: str) -> str:
    root, _, key = results.rpartition("/")
    return f"{root}/{FOLDER}/{key}"


def _path(handle: JobHandle) -> str:
    return f"{_folder(handle.results)}/{handle.attempt}.json"
