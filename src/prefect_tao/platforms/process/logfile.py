"""Reads a job's log by byte offsets, never in the middle of a character."""

from __future__ import annotations

import os
from pathlib import Path

from prefect_tao.jobs.platform import LogChunk

CHUNK = 1 << 20
ENDING = 1 << 16
USUAL_LINE = 512


def read(path: Path, tail: int | None, since: str | None) -> LogChunk:
    """The last `tail` lines, or what follows the cursor `since`, at most a chunk of it at once."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = int(since or 0) if tail is None else max(0, size - USUAL_LINE * tail - ENDING)
            start = file.seek(min(start, size))
            data = file.read(CHUNK) if tail is None else file.read()
    except FileNotFoundError:
        return LogChunk("", since or "0")
    data = data[: _whole_characters(data)]
    cursor = str(start + len(data))
    text = data.decode(errors="replace")
    if tail is None:
        return LogChunk(text, cursor)
    return LogChunk("".join(text.splitlines(keepends=True)[-tail:]) if tail else "", cursor)


def ending(path: Path) -> str:
    """The end of the log, where the reason of a failure stands."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - ENDING))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _whole_characters(data: bytes) -> int:
    """How many bytes of `data` are whole characters: what is being written may end inside one."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if back >= need else len(data) - back
        if byte < 0x80:
            break
    return len(data)
