"""What Prefect can store and show again. A single value beyond it makes every list of runs an error, for all people.

Its server answers with a JSON writer that knows numbers of 64 bits, whole characters and some 250 levels. It drops
numbers that are not finite, and Postgres refuses the NUL character. Everybody who sees a run sees its parameters, so
no secret is stored either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect_tao.jobs.finding import Finding

LEAST, MOST = -(2**63), 2**63 - 1
DEEPEST = 50
# NUL, and halves of characters; spelt with escapes, because a schema is stored too.
UNSTORABLE = r"[\u0000\ud800-\udfff]"
WITHIN_64_BITS = {"minimum": LEAST, "maximum": MOST}
BROKEN_TEXT = "text with a NUL character or half a character; correct it"


def check_storable(given: Mapping[str, Any]) -> None:
    """Raises InvalidInput with all that cannot be stored, at every depth."""
    from prefect_tao.jobs.errors import InvalidInput

    if found := list(_findings(given, (), 0)):
        raise InvalidInput.of(found)


def _findings(value: Any, where: tuple[str, ...], depth: int) -> Iterator[Finding]:
    if depth > DEEPEST:
        yield _finding(where[:1], f"is nested deeper than {DEEPEST} levels", "give it with fewer levels")
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _text(str(key), where)
            yield from _findings(inner, (*where, str(key)), depth + 1)
    elif isinstance(value, list | tuple | Set):
        for number, inner in enumerate(value):
            yield from _findings(inner, (*where, str(number)), depth + 1)
    elif isinstance(value, str):
        yield from _text(value, where)
    elif isinstance(value, int) and not LEAST <= value <= MOST:
        remedy = f"give a whole number from {LEAST} to {MOST}, or write it as text"
        yield _finding(where, "is a whole number of more than 64 bits", remedy)
    elif isinstance(value, float) and not math.isfinite(value):
        yield _finding(where, f"is {value}", "give a finite number")


def _text(text: str, where: tuple[str, ...]) -> Iterator[Finding]:
    from prefect_tao.jobs.request import masked

    if "\0" in text or not _is_whole(text):
        yield _finding(where, "holds a NUL character or half a character", "correct the text")
    elif masked(text) != text:
        remedy = "give its name under secrets; the password of a database goes into PGPASSWORD or ~/.pgpass"
        yield _finding(where, "holds what looks like a secret", remedy)


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _finding(where: tuple[str, ...], what: str, remedy: str) -> Finding:
    from prefect_tao.jobs.finding import Finding, Level
    from prefect_tao.jobs.request import masked

    name = masked(".".join(where).encode(errors="replace").decode().replace("\0", "?")) or "a name"
    return Finding(subject=name, level=Level.FAIL, message=f"{name} {what}", remedy=remedy)
