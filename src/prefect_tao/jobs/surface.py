"""How options are written in a text, by where it is read: as typed on the command line, or as parameters elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_write: ContextVar[Callable[[str], str]] = ContextVar("write", default=str)


def worded(text: str) -> str:
    """A text that names options as the command line does, for whom it is read by here."""
    return _write.get()(text)


@contextmanager
def written_by(write: Callable[[str], str]) -> Iterator[None]:
    """Within the block errors and findings are written so."""
    token = _write.set(write)
    try:
        yield
    finally:
        _write.reset(token)
