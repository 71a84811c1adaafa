"""Amounts as people write them: memory such as 16G, durations such as 4h or 1-02:00:00."""

from __future__ import annotations

import re
from typing import Literal

ALL_GPUS = -1
# Which way a metric is better.
Direction = Literal["minimize", "maximize"]
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d{2})(?::(\d{2}))?")
_AMBIGUOUS = re.compile(r"\d+:\d{2}")
_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.IGNORECASE)


def parse_bytes(text: str | int) -> int:
    """Bytes in `text` (16G, 512Mi, 1.5GB; powers of 1024; a bare number is bytes). Raises ValueError."""
    match = _MEMORY.fullmatch(str(text).strip())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not an amount of memory; write for example 16G or 512M")
    return int(float(match[1]) * 1024 ** _POWERS[match[2].upper()])


def parse_seconds(text: str | float) -> float:
    """Seconds in `text` (90, 30m, 4h, 1h30m, 1-02:00:00, 3:30:00). Raises ValueError."""
    plain = str(text).strip()
    if _AMBIGUOUS.fullmatch(plain):
        raise ValueError(f"{text!r} may mean hours and minutes or minutes and seconds; write {plain}:00, 4h or 30m")
    if clock := _CLOCK.fullmatch(plain):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        total = float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    elif plain and not _PARTS.sub("", plain).strip():
        total = sum(float(amount) * _UNITS[unit.lower()] for amount, unit in _PARTS.findall(plain))
    else:
        try:
            total = float(plain)
        except ValueError:
            total = 0.0
    if not 0 < total < float("inf"):
        raise ValueError(f"{text!r} is not a duration; write for example 30m, 4h or 1-00:00:00")
    return total


def format_seconds(seconds: float) -> str:
    """A duration as a person reads it: 8 s, 3 min 20 s, 2 h 05 min, 1 d 04 h."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"
