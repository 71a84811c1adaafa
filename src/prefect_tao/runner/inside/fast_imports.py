"""`signal`, `partial` and JSON, straight from the parts of Python that are written in C.

The modules that people import load `enum`, `re` and `collections` first, which take longer than all of the runner: a
job that does nothing would spend half of its time on them.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from functools import partial
    from typing import Any

    make_scanner: Any
    make_encoder: Any
    encode_basestring: Any
else:
    import _signal as signal
    from _functools import partial

    try:
        from _json import encode_basestring, make_encoder, make_scanner
    except ImportError:  # a Python that is not CPython
        make_scanner = make_encoder = encode_basestring = None

__all__ = ["dumps", "loads", "partial", "signal"]


class _Plain:
    """How `make_scanner` is to read: as `json.loads` does by default."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def loads(text: str) -> Any:
    """What a JSON text holds that this product has written itself."""
    if make_scanner:
        try:
            return make_scanner(_Plain)(text, 0)[0]
        except StopIteration:  # there is nothing in it, which the real one says in words
            pass
    import json

    return json.loads(text)


def dumps(value: Any) -> str:
    """Plain values as one line of JSON."""
    if make_encoder:
        write = make_encoder(None, None, encode_basestring, None, ": ", ", ", False, False, True)
        return "".join(write(value, 0))
    import json

    return json.dumps(value, ensure_ascii=False)
