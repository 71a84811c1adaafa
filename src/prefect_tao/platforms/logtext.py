"""Log text out of bytes that may end in the middle of a character."""

from __future__ import annotations

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
