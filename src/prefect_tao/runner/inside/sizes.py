"""Sizes of things, for machines and for people."""

from __future__ import annotations

MIB = 1 << 20


def human(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return "%.3g %s" % (size, unit)
        size /= 1000
    return "%.3g TB" % size
