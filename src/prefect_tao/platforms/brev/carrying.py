"""Carries the results of a job from the disk of its instance to a folder here, over the login that is there anyway.

Each file is compared by its checksum: what is here already stays, so that a copy that broke off goes on where it was.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.ssh.connection import Connection, Stream
from prefect_tao.runner.inside.atomic import part_of

# Checksums of large checkpoints take their time.
SUMS_SECONDS = 3600.0
# As many names as surely fit on the way while nobody reads what comes back.
NAMES_AT_ONCE = 200
BLOCK = 1 << 20
AGAIN = "what is here already is not copied again"


def carry(there: Connection, folder: str, target: Path) -> int:
    """Copy all files below a folder there; returns how many that are. Raises Unreachable while one is missing here."""
    wanted = _sums(there, folder)
    missing = [name for name in wanted if _sum(target / name) != wanted[name]]
    try:
        for start in range(0, len(missing), NAMES_AT_ONCE):
            _fetch(there, folder, missing[start : start + NAMES_AT_ONCE], target, wanted)
    except (OSError, tarfile.TarError) as error:
        raise Unreachable(f"{folder} could not be copied to {target}: {error}", AGAIN) from error
    return len(wanted)


def _sums(there: Connection, folder: str) -> dict[str, str]:
    """The checksum of every file there, by its name below the folder."""
    quoted = shlex.quote(folder)
    answer = there.run(
        f"[ -d {quoted} ] || exit 0; cd {quoted} && find . -type f -exec sha256sum -z {{}} +", timeout=SUMS_SECONDS
    )
    if answer.code:
        raise Unreachable(f"the files in {folder} could not be listed: {answer.words}", "try again in a while")
    rows = [os.fsdecode(row).partition("  ./") for row in answer.stdout.split(b"\0") if row]
    # A name that leads out of the folder is none that find gives: whoever rules the instance made it up.
    return {name: checksum for checksum, _, name in rows if not {"..", "/"} & {*Path(name).parts}}


def _sum(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(there: Connection, folder: str, names: Sequence[str], target: Path, wanted: Mapping[str, str]) -> None:
    """Write some files here, each whole or not at all."""
    stream = there.stream(f"cd {shlex.quote(folder)} && tar -cf - --no-recursion --null -T -")
    left = set(names)
    try:
        stream.send(b"".join(os.fsencode(f"./{name}") + b"\0" for name in names))
        stream.end_input()
        with tarfile.open(fileobj=io.BufferedReader(_Arriving(stream), BLOCK), mode="r|") as archive:
            for member in archive:
                name, data = member.name.removeprefix("./"), archive.extractfile(member)
                if name in left and data:
                    _write(target / name, data, wanted[name])
                    left.discard(name)
    finally:
        stream.close()
    if left:
        raise Unreachable(f"{len(left)} files of {folder} did not arrive, {min(left)} among them", AGAIN)


def _write(path: Path, data: IO[bytes], checksum: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part, seen = Path(part_of(str(path))), hashlib.sha256()
    try:
        with part.open("wb") as file:
            while block := data.read(BLOCK):
                seen.update(block)
                file.write(block)
        if seen.hexdigest() != checksum:
            raise Unreachable(f"{path.name} changed while it was copied", AGAIN)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class _Arriving(io.RawIOBase):
    """What a command there prints, as a file."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._rest = stream, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self._rest = self._rest or self._stream.receive()
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
