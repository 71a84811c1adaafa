"""The connections to storage, which jobs with plain paths do not load."""

from __future__ import annotations

import _thread
import os

from .failures import RunnerError, StorageError
from .log import say
from .schemes import find_scheme, scheme_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

_stores: dict[str, Any] = {}
_opening = _thread.allocate_lock()


def store_for(uri: str) -> Any:
    """The one connection of this run to the storage of `uri`; boto3 clients must not be made side by side."""
    name = scheme_of(uri)
    with _opening:
        if name not in _stores:
            scheme = find_scheme(name)
            if scheme is None:
                known = "paths, file://, s3://, hf_model://, hf_dataset://, ngc://"
                raise RunnerError("inputs", "%s: inputs can be %s" % (uri, known))
            _stores[name] = scheme.connect(os.environ, say)
    return _stores[name]


def with_store(phase: str, uri: str, work: Callable[[Any], Any]) -> Any:
    """Do `work(store)` with the storage of `uri`; what goes wrong there is a failure of `phase`."""
    try:
        return work(store_for(uri))
    except StorageError as error:
        error.phase = phase
        raise


def find(uri: str) -> Any:
    """What is at `uri`: {path below it: object}. Raises Missing."""
    return with_store("inputs", uri, lambda store: store.find(uri))


def fetch(uri: str, target: str, names: Sequence[str] | None = None) -> str:
    """Have what is at `uri` at `target`, of a folder only `names` where they are given; returns where it is.

    With TAO_CACHE_DIR, a folder that jobs share, the files are links into it.
    """
    cache = os.environ.get("TAO_CACHE_DIR")
    cache = os.path.abspath(cache) if cache else None
    shared = "NODE_RANK" in os.environ  # the nodes of one job may work in one folder
    return str(with_store("inputs", uri, lambda store: store.fetch(uri, target, cache, shared, names)))


def upload(files: Sequence[Any]) -> None:
    """Put files into storage: (path, uri, whether it must be steady, what to call when it is there)."""
    for scheme in sorted({scheme_of(file[1]) for file in files}):
        own = [file for file in files if scheme_of(file[1]) == scheme]
        with_store("outputs", own[0][1], lambda store, own=own: store.send(own))  # type: ignore[misc]
