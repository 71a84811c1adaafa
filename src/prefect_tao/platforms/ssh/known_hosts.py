"""known_hosts files, read as OpenSSH reads them: hashed names, patterns, [host]:port, authorities, revoked keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
from binascii import Error as NotBase64
from collections.abc import Iterator, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

DEFAULT_PORT = 22
AUTHORITY, REVOKED = "@cert-authority", "@revoked"


class Trust(Enum):
    """What the files say of a key that a host has shown."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


class KnownKey(NamedTuple):
    """One line about a host."""

    marker: str
    kind: str
    key: str


def name_of(hostname: str, port: int) -> str:
    """The name of a host in such files."""
    return hostname.lower() if port == DEFAULT_PORT else f"[{hostname.lower()}]:{port}"


def judge(files: Sequence[Path], name: str, kind: str, key: str) -> Trust:
    """Whether the host may be trusted that shows the key `key`, in base64."""
    lines, on_any_port = list(_lines(files, name)), list(_lines(files, _without_port(name)))
    if any(line.marker == REVOKED and line.key == key for line in (*lines, *on_any_port)):
        return Trust.REVOKED
    plain = [line for line in lines if not line.marker]
    if any(line.key == key for line in plain):
        return Trust.KNOWN
    if any(line.kind == kind for line in plain):
        return Trust.CHANGED
    # As OpenSSH does: one that is known without a port is known on every port, if it shows the same key.
    if any(not line.marker and line.key == key for line in on_any_port):
        return Trust.KNOWN
    return Trust.UNKNOWN


def kinds(files: Sequence[Path], name: str) -> list[str]:
    """The kinds of keys that the host is known by, so that it is asked for one of those."""
    lines = [*_lines(files, name), *_lines(files, _without_port(name))]
    return list(dict.fromkeys(line.kind for line in lines if not line.marker))


def has_authority(files: Sequence[Path], name: str) -> bool:
    """Whether the host is known by the authority that signs its certificate."""
    return any(line.marker == AUTHORITY for known in (name, _without_port(name)) for line in _lines(files, known))


def _without_port(name: str) -> str:
    return name[1 : name.rindex("]")] if name.startswith("[") else name


def _lines(files: Sequence[Path], name: str) -> Iterator[KnownKey]:
    for file in files:
        try:
            text = file.read_text(errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            words = line.split()
            marker = words.pop(0) if words and words[0].startswith("@") else ""
            if len(words) < 3 or words[0].startswith("#") or not _names(words[0], name):
                continue
            yield KnownKey(marker, words[1], words[2])


def _names(patterns: str, name: str) -> bool:
    """Whether the first field of a line means the host; a pattern with ! that fits takes the line away from it."""
    if patterns.startswith("|1|"):
        return _is_hash_of(patterns, name)
    parts = patterns.lower().split(",")
    if any(part.startswith("!") and _fits(part[1:], name) for part in parts):
        return False
    return any(_fits(part, name) for part in parts)


def _fits(pattern: str, name: str) -> bool:
    # In ssh's patterns only * and ? are special.
    return fnmatchcase(name.lower(), pattern.replace("[", "[[]"))


def _is_hash_of(hashed: str, name: str) -> bool:
    try:
        _, _, salt, digest = hashed.split("|")
        made = hmac.new(base64.b64decode(salt), name.lower().encode(), hashlib.sha1).digest()
        return hmac.compare_digest(made, base64.b64decode(digest))
    except (ValueError, NotBase64):
        return False
