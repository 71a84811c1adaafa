"""Reads a log whose lines bear the moment they came, in pieces that neither lose nor double a line.

An engine gives out the log from a moment on, but two streams are written side by side, so moments are not in order.
A cursor therefore names a moment a little in the past and how many entries since then were given out already.
"""

from __future__ import annotations

import codecs
import heapq
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from prefect_tao.jobs.platform import LogChunk

CHUNK = 1 << 22
# How late an entry of the other stream may still come: nanoseconds, and entries where many come at once.
OVERLAP = 5_000_000_000
MOST_LATE = 1000
_SECOND = 1_000_000_000


class LogEntry(NamedTuple):
    """A line, or a piece of a very long one, and when the engine took it, in nanoseconds."""

    moment: int
    data: bytes


class Cursor(NamedTuple):
    """`given` entries since `anchor` were given out; the last of them is of `last`."""

    anchor: int = 0
    given: int = 0
    last: int = 0

    @classmethod
    def parse(cls, text: str | None) -> Cursor:
        try:
            anchor, given, last = map(int, (text or "0:0:0").split(":"))
        except ValueError:
            return cls()
        return cls(anchor, given, last)

    def __str__(self) -> str:
        return f"{self.anchor}:{self.given}:{self.last}"

    @property
    def since(self) -> str:
        """The moment as the engine wants it."""
        return f"{self.anchor // _SECOND}.{self.anchor % _SECOND:09}"


def nanoseconds(stamp: str) -> int:
    """2026-01-02T03:04:05.123456789Z in nanoseconds; Python's own times have no room for the last three digits."""
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    return _seconds(whole) * _SECOND + int(fraction.ljust(9, "0")[:9] or 0)


@lru_cache(maxsize=64)
def _seconds(whole: str) -> int:
    return int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())


def after(found: Iterator[LogEntry], cursor: Cursor, limit: int = CHUNK) -> LogChunk:
    """What `found`, read from the cursor's moment on, has beyond the cursor."""
    known: list[int] = []
    fresh: list[LogEntry] = []
    size = 0
    for entry in found:
        # What is later than all that was given out is new, even where the engine has thrown old entries away.
        if len(known) < cursor.given and entry.moment <= cursor.last:
            known.append(entry.moment)
            continue
        fresh.append(entry)
        size += len(entry.data)
        if size >= limit:
            break
    while fresh and _is_torn(fresh[-1].data):
        fresh.pop()
    if not fresh:
        return LogChunk("", str(cursor))
    moments = [*known, *(entry.moment for entry in fresh)]
    last = max(moments)
    anchor = max(cursor.anchor, last - OVERLAP, heapq.nlargest(MOST_LATE, moments)[-1])
    text = b"".join(entry.data for entry in fresh).decode(errors="replace")
    return LogChunk(text, str(Cursor(anchor, sum(moment >= anchor for moment in moments), last)))


def _is_torn(data: bytes) -> bool:
    """Whether the entry ends inside a character whose rest is to come."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return bool(decoder.getstate()[0])


def ending(found: list[LogEntry], tail: int) -> LogChunk:
    """The last `tail` lines of `found`, and a cursor behind all of them."""
    if not found:
        return LogChunk("", str(Cursor()))
    text = b"".join(entry.data for entry in found).decode(errors="replace")
    last = max(entry.moment for entry in found)
    cursor = Cursor(last, sum(entry.moment == last for entry in found), last)
    return LogChunk("".join(text.splitlines(keepends=True)[-tail:]) if tail else "", str(cursor))
