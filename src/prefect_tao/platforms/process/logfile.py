"""Reads a job's log by byte offsets, never in the middle of a character."""

from __future__ import annotations

import os
from pathlib import Path

from prefect_tao.jobs.platform import LogChunk
from prefect_tao.platforms.logtext import CHUNK, ENDING, last_lines, tail_start, whole_characters


def read(path: Path, tail: int | None, since: str | None) -> LogChunk:
    """The last `tail` lines, or what follows the cursor `since`, at most a chunk of it at once."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = int(since or 0) if tail is None else tail_start(size, tail)
            start = file.seek(min(start, size))
            data = file.read(CHUNK) if tail is None else file.read()
    except FileNotFoundError:
        return LogChunk("", since or "0")
    data = data[: whole_characters(data)]
    cursor = str(start + len(data))
    text = data.decode(errors="replace")
    if tail is None:
        return LogChunk(text, cursor)
    return LogChunk(last_lines(text, tail), cursor)


def ending(path: Path) -> str:
    """The end of the log, where the reason of a failure stands."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - ENDING))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
