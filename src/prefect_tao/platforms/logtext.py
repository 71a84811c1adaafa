"""Logs that are read by byte offsets: text out of bytes that may end in the middle of a character."""

from __future__ import annotations

import os
from pathlib import Path

from prefect_tao.jobs.platform import LogChunk

CHUNK = 1 << 20
ENDING = 1 << 16
USUAL_LINE = 512


def tail_start(size: int, lines: int) -> int:
    """From where on a log of `size` bytes surely holds its last `lines` lines, as lines usually are."""
    return max(0, size - USUAL_LINE * lines - ENDING)


def last_lines(text: str, lines: int) -> str:
    """The last `lines` lines of `text`; the last one may be unfinished."""
    return "".join(text.splitlines(keepends=True)[-lines:]) if lines else ""


def whole_characters(data: bytes) -> int:
    """How many bytes of `data` are whole characters: what is being written may end inside one."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if back >= need else len(data) - back
        if byte < 0x80:
            break
    return len(data)


def chunk(start: int, data: bytes, tail: int | None) -> tuple[str, int]:
    """The text of `data`, which was read from `start` on, and the offset from which to go on; only its last lines."""
    data = data[: whole_characters(data)]
    text = data.decode(errors="replace")
    return text if tail is None else last_lines(text, tail), start + len(data)


def read_file(path: Path, tail: int | None, since: str | None) -> LogChunk:
    """The last `tail` lines, or what follows the cursor `since`, at most a chunk of it at once."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = int(since or 0) if tail is None else tail_start(size, tail)
            start = file.seek(min(start, size))
            data = file.read(CHUNK) if tail is None else file.read()
    except FileNotFoundError:
        return LogChunk("", since or "0")
    text, cursor = chunk(start, data, tail)
    return LogChunk(text, str(cursor))


def ending(path: Path) -> str:
    """The end of a log, where the reason of a failure stands."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - ENDING))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
