"""Whether annotation files hold the fields that a training needs, judged by their first records.

Works on the first bytes of a file, read by this machine, from object storage or by a platform.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prefect_tao.jobs.finding import Finding, Level

# The first `limit` bytes of the file at a location. Raises a TaoError when it cannot be read.
Reader = Callable[[str, int], Awaitable[bytes]]

SAMPLE_RECORDS = 20
MAX_PROBLEMS = 5
READ_BYTES = 64 * 1024 * 1024
LIST_KEYS = ("annotations", "data", "samples", "items")
LINE_ENDINGS = (".jsonl", ".ndjson")
# Broken so near to where the reading stopped means cut off, not broken.
CUT_MARGIN = 8


@dataclass(frozen=True)
class AnnotationRecord:
    """One record and what a person calls it."""

    name: str
    value: Any


class BrokenFile(ValueError):
    """The text is not what its format promises; the message names the line."""


async def check_annotation(
    label: str,
    uri: str,
    fields: Sequence[str],
    read: Reader,
    *,
    limit: int = SAMPLE_RECORDS,
    read_bytes: int = READ_BYTES,
    checked_from: str = "here",
) -> Finding:
    """Whether the first `limit` records at `uri` hold all `fields`. Raises what `read` raises."""
    data = await read(uri, read_bytes + 1)
    whole, data = len(data) <= read_bytes, data[:read_bytes]
    return await asyncio.to_thread(_judge, label, uri, fields, data, whole, limit, checked_from)


def _judge(
    label: str, uri: str, fields: Sequence[str], data: bytes, whole: bool, limit: int, checked_from: str
) -> Finding:
    def answer(level: Level, message: str, remedy: str = "", evidence: str = "") -> Finding:
        return Finding(
            level=level,
            subject=f"annotation {label}",
            message=f"annotation {label}: {message}",
            checked_from=checked_from,
            evidence=evidence,
            remedy=remedy,
        )

    try:
        records = sample_records(data, whole=whole, lines=uri.lower().endswith(LINE_ENDINGS), limit=limit)
    except BrokenFile as error:
        return answer(Level.FAIL, f"{uri} is broken: {error}", "correct that line, or write the file again")
    if not records:
        level = Level.FAIL if whole else Level.UNKNOWN
        where = "it" if whole else f"its first {len(data)} bytes"
        return answer(
            level,
            f"{uri}: no record was found in {where}",
            f"give a JSON list, JSON lines, or an object with a list under {', '.join(LIST_KEYS)}",
        )
    if problems := field_problems(records, fields):
        more = len(problems) - MAX_PROBLEMS
        shown = "; ".join(problems[:MAX_PROBLEMS]) + (f"; and {more} more" if more > 0 else "")
        return answer(
            Level.FAIL, f"{uri}: {shown}", f"add {', '.join(fields)} to every record", f"{len(records)} records sampled"
        )
    return answer(Level.OK, f"{uri} has {', '.join(fields)}", evidence=f"{len(records)} records sampled")


def field_problems(records: Sequence[AnnotationRecord], fields: Sequence[str]) -> list[str]:
    """What the records lack, one sentence a record. A field that is null is not there."""
    problems = []
    for record in records:
        if not isinstance(record.value, dict):
            problems.append(f"{record.name} is not an object")
        elif lacking := [field for field in fields if record.value.get(field) is None]:
            problems.append(f"{record.name} lacks {', '.join(lacking)}")
    return problems


def sample_records(
    data: bytes, *, whole: bool = True, lines: bool = False, limit: int = SAMPLE_RECORDS
) -> list[AnnotationRecord]:
    """The first records of a JSON list, of an object that holds one, or of JSON lines; an object else is one record.

    With `whole` false the text may end anywhere. Raises BrokenFile.
    """
    text = _decoded(data, whole)
    try:
        return _sampled(text, whole, lines, limit)
    except RecursionError:
        raise BrokenFile("its lists or objects are nested too deep to be records") from None


def _sampled(text: str, whole: bool, lines: bool, limit: int) -> list[AnnotationRecord]:
    if lines or _looks_like_lines(text):
        return _from_lines(text, whole, limit)
    if not whole:
        return _from_beginning(text, limit)
    try:
        loaded = json.loads(text) if text.strip() else []
    except json.JSONDecodeError as error:
        raise _broken(_lines_of(error), error) from None
    return _numbered(_listed(loaded)[:limit])


def _decoded(data: bytes, whole: bool) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if not whole and error.start >= len(data) - 3:  # a character cut in two
            return data[: error.start].decode("utf-8-sig")
        line = data.count(b"\n", 0, error.start) + 1
        raise BrokenFile(f"line {line} is not UTF-8 text") from None


def _lines_of(error: json.JSONDecodeError) -> str:
    """Where to look: an error at the very beginning of a line is as often a slip at the end of the one before."""
    begun = error.doc[: error.pos].rpartition("\n")[2].strip()
    return f"line {error.lineno}" if begun or error.lineno == 1 else f"line {error.lineno - 1} or {error.lineno}"


def _broken(where: str, error: json.JSONDecodeError) -> BrokenFile:
    return BrokenFile(f"{where}: {error.msg[:1].lower()}{error.msg[1:]} (column {error.colno})")


def _listed(loaded: Any) -> list[Any]:
    if isinstance(loaded, dict):
        return next((loaded[key] for key in LIST_KEYS if isinstance(loaded.get(key), list)), [loaded])
    return loaded if isinstance(loaded, list) else [loaded]


def _numbered(values: Sequence[Any]) -> list[AnnotationRecord]:
    return [AnnotationRecord(f"record {number}", value) for number, value in enumerate(values, 1)]


def _looks_like_lines(text: str) -> bool:
    """Whether the first line is an object by itself and another line follows."""
    first, _, rest = text.lstrip().partition("\n")
    if not first.startswith("{") or not rest.strip():
        return False
    try:
        json.loads(first)
    except json.JSONDecodeError:
        return False
    return True


def _from_lines(text: str, whole: bool, limit: int) -> list[AnnotationRecord]:
    """Every line is parsed, so that a broken one is found wherever it is; the first records are kept."""
    rows = text.split("\n")
    if not whole:
        rows = rows[:-1]
    records: list[AnnotationRecord] = []
    for number, row in enumerate(rows, 1):
        if not row.strip():
            continue
        try:
            value = json.loads(row)
        except json.JSONDecodeError as error:
            raise _broken(f"line {number}", error) from None
        if len(records) < limit:
            records.append(AnnotationRecord(f"line {number}", value))
    return records


# -- a file of which only the beginning was read -----------------------------------------------------------------------

_DECODER = json.JSONDecoder()


def _from_beginning(text: str, limit: int) -> list[AnnotationRecord]:
    place, values = _list_start(text), list[Any]()
    while place is not None and len(values) < limit:
        place = _skip(text, place, ", ")
        if place >= len(text) or text[place] == "]":
            break
        value, place = _value(text, place)
        if place is not None:
            values.append(value)
    return _numbered(values)


def _list_start(text: str) -> int | None:
    """Where the records begin, or None when that part was not read."""
    place = _skip(text, 0)
    if text[place : place + 1] == "[":
        return place + 1
    while text[place : place + 1] in ("{", ","):
        key, end = _value(text, _skip(text, place, "{,"))
        if end is None:
            return None
        place = _skip(text, end, ":")
        if key in LIST_KEYS and text[place : place + 1] == "[":
            return place + 1
        _, end = _value(text, place)
        if end is None:
            return None
        place = _skip(text, end)
    return None


def _skip(text: str, place: int, also: str = "") -> int:
    while place < len(text) and (text[place].isspace() or text[place] in also):
        place += 1
    return place


def _value(text: str, place: int) -> tuple[Any, int | None]:
    """The value at `place` and where it ends; no end when it was cut off. Raises BrokenFile when it is broken."""
    try:
        return _DECODER.raw_decode(text, place)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated") or error.pos >= len(text) - CUT_MARGIN:
            return None, None
        raise _broken(_lines_of(error), error) from None
