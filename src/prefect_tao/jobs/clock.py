"""What time it is. Whatever waits asks its event loop; whatever writes a moment down asks here.

A test that lets time pass without waiting for it has an event loop with a time of its own, and keeps this clock by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime


def _of_this_machine() -> datetime:
    return datetime.now(UTC)


_source: Callable[[], datetime] = _of_this_machine


def now() -> datetime:
    """The present moment, always with its zone."""
    return _source()


@contextmanager
def kept_by(source: Callable[[], datetime]) -> Iterator[None]:
    """Let `source` say what time it is, for a while."""
    global _source
    before, _source = _source, source
    try:
        yield
    finally:
        _source = before
