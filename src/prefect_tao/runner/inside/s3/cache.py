"""A cache that jobs share."""

from __future__ import annotations

import hashlib
import os

from ..files import part_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .connecting import Store
    from .ways import Item


def entry_of(store: Store, cache: str, item: Item) -> str:
    """Where the cache has an object. Its ETag is part of the name, so another content is another entry."""
    mark = hashlib.sha256(repr((store.place, tuple(item))).encode()).hexdigest()
    name = os.path.basename(item.key)
    return os.path.join(cache, mark[:2], mark[2:26] + "-" + name.encode()[-150:].decode(errors="ignore"))


def link(entry: str, path: str) -> None:
    """Let `path` be the cached file, without a moment in which it is nothing."""
    if os.path.islink(path) and os.readlink(path) == entry:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = part_of(path)
    os.symlink(entry, temporary)
    os.replace(temporary, path)
