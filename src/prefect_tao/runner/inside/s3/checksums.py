"""MD5 and ETag: how S3 tells one content from another."""

from __future__ import annotations

import base64
import hashlib
import sys
from functools import partial

from .sizes import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def md5(data: Any = b"") -> Any:
    """MD5 as S3 uses it, against accidents; None where this Python is forbidden to."""
    words: dict[str, Any] = {"usedforsecurity": False} if sys.version_info[:2] > (3, 8) else {}
    try:
        return hashlib.md5(data, **words)
    except ValueError:
        return None


def md5_words(digest: Any) -> dict[str, str]:
    return {"ContentMD5": base64.b64encode(digest.digest()).decode()} if digest else {}


def file_md5(path: str) -> str:
    digest = md5()
    with open(path, "rb") as file:
        for chunk in iter(partial(file.read, MIB), b""):
            if digest:
                digest.update(chunk)
    return digest.hexdigest() if digest else ""


def is_md5(etag: str) -> bool:
    return len(etag) == 32 and all(char in "0123456789abcdef" for char in etag)


def of_parts(digests: Sequence[bytes]) -> str:
    """The ETag of an object that was uploaded in parts of these MD5s."""
    whole = md5(b"".join(digests))
    return "%s-%d" % (whole.hexdigest(), len(digests)) if whole else ""
