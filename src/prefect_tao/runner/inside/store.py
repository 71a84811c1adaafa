"""The way to object storage, which jobs without S3 do not load."""

from __future__ import annotations

import _thread
import os

from .errors import NothingThere, RunnerError
from .log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_store: Any = None
_store_lock = _thread.allocate_lock()


def storage() -> Any:
    """The modules that speak S3."""
    from . import s3

    return s3


def store() -> Any:
    """The one store of this run; boto3 clients must not be made side by side."""
    global _store
    with _store_lock:
        if _store is None:
            _store = storage().connect(os.environ, say)
    return _store


def with_store(phase: str, work: Callable[[Any, Any], Any]) -> Any:
    """Do `work(module, store)`; what goes wrong there is a failure of `phase`."""
    try:
        return work(storage(), store())
    except storage().StorageError as error:
        problem = NothingThere if isinstance(error, storage().Missing) else RunnerError
        failure = problem(phase, str(error))
        failure.final = error.final
        raise failure


def fetch_s3(uri: str, target: str, names: Sequence[str] | None = None) -> None:
    """Download the object or the folder of objects at `uri` to `target`, of a folder only `names` where they are given.

    With TAO_CACHE_DIR, a folder that jobs share, the files are links into it.
    """
    cache = os.environ.get("TAO_CACHE_DIR")
    cache = os.path.abspath(cache) if cache else None
    shared = "NODE_RANK" in os.environ  # the nodes of one job may work in one folder
    with_store("inputs", lambda module, store: module.fetch(store, uri, target, cache, shared, names))


def upload(files: Sequence[Any]) -> None:
    """Put files into s3, as the storage module takes them."""
    if files:
        with_store("outputs", lambda module, store: module.send(store, files))
