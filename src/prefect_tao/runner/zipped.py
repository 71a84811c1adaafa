"""The runner as one file that Python imports from: an engine takes a file as fast as another, whatever its size."""

from __future__ import annotations

import importlib.util
import io
import marshal
import zipfile
from functools import cache
from pathlib import Path

from prefect_tao.runner.entrypoint import is_for_every_job, program_files


def zipped(*beside: Path) -> bytes:
    """The program, and modules that stand beside it; not packed, because to unpack it would take a job's time."""
    files = {**program_files(), **{path.name: path.read_bytes() for path in beside}}
    return _zipped(tuple(files.items()))


@cache
def _zipped(files: tuple[tuple[str, bytes], ...]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, source in files:
            if is_for_every_job(name) or "/" not in name:
                archive.writestr(zipfile.ZipInfo(f"{name}c"), _compiled(name, source))
            archive.writestr(zipfile.ZipInfo(name), source)
    return stream.getvalue()


def _compiled(name: str, source: bytes) -> bytes:
    """A module as Python keeps it once imported: an image with our version of Python starts sooner with it.

    Any other version finds it unfit by its first bytes and takes the source. The 1 says that the hash is not checked.
    """
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + importlib.util.source_hash(source)
    return head + marshal.dumps(compile(source, name, "exec"))
