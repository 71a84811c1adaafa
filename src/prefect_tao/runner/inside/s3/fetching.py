"""Fetches what is at a place in S3: every object to its path, by way of a cache where there is one."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext

from ..errors import ROOM
from ..files import write_atomic
from .awscli import CliStore
from .bulk import download_bulk
from .cache import entry_of, link
from .downloads import download
from .errors import Changed, StorageError
from .listing import find, find_named
from .persistence import TRIES
from .sizes import human
from .turns import turn
from .wholeness import discard, is_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .connecting import Store
    from .ways import Item


def fetch(
    store: Store,
    uri: str,
    target: str,
    cache: str | None = None,
    shared: bool = False,
    names: Sequence[str] | None = None,
) -> int:
    """Download the object or the folder of objects at `uri` to `target`, or of a folder only `names`; returns how many.

    `cache` is a folder that several jobs share; `shared` says that several nodes do this with one `target`.
    Raises Missing, StorageError.
    """
    for _ in range(TRIES):
        found = find(store, uri) if names is None else find_named(store, uri, names)
        try:
            _fetch(store, uri, found, names is None, target, cache, shared)
            return len(found)
        except Changed:
            store.tell("%s changes while it is being downloaded; looking again" % uri)
    raise StorageError("%s changes all the time while it is being downloaded; launch when it is complete" % uri)


def _fetch(
    store: Store, uri: str, found: dict[str, Item], is_all: bool, target: str, cache: str | None, shared: bool
) -> None:
    places = _places(uri, found, target)
    if "" not in found:
        _remove_gone(target, places)
    if cache:
        entries = {path: entry_of(store, cache, item) for path, item in places.items()}
        try:
            with turn(cache, uri, store.tell):
                _download(store, uri, {entries[path]: item for path, item in places.items()}, is_all, cache)
        except (StorageError, OSError) as error:
            if isinstance(error, StorageError) and not error.local:
                raise
            store.tell("the cache cannot take %s (%s); downloading it for this job alone" % (uri, error))
        else:
            for path, entry in entries.items():
                link(entry, path)
            return
    with turn(os.path.dirname(target), target, store.tell) if shared else nullcontext():
        _download(store, uri, places, is_all, os.path.dirname(target))


def _remove_gone(target: str, places: Iterable[str]) -> None:
    """What an earlier attempt fetched into this folder and is not there any more goes; files of others stay."""
    import json

    log, names = target + ".fetched", {os.path.relpath(path, target) for path in places}
    try:
        with open(log, encoding="utf-8") as file:
            before = json.load(file)
    except (OSError, ValueError):
        before = []
    for name in set(before) - names:
        discard(os.path.join(target, name))
    try:
        write_atomic(log, json.dumps(sorted(names)).encode())
    except OSError:
        pass


def _places(uri: str, found: dict[str, Item], target: str) -> dict[str, Item]:
    """Where each object goes. Raises StorageError for names that no folder can hold."""
    places: dict[str, Item] = {}
    for below, item in found.items():
        parts = [part for part in below.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in below or (below and not parts):
            raise StorageError("%s holds %r, which would leave its folder; refused" % (uri, below))
        path = os.path.join(target, *parts)
        if path in places:
            raise StorageError("%s holds %r and %r, which are one file here" % (uri, places[path].key, item.key))
        places[path] = item
    for path in places:
        above = os.path.dirname(path)
        if above != target and above in places:
            raise StorageError("%s holds %r both as a file and as a folder; refused" % (uri, places[above].key))
    return places


def _download(store: Store, uri: str, places: dict[str, Item], is_all: bool, beside: str) -> None:
    """Have every object at its place; what is there, whole and unchanged, stays. `is_all`: `uri` has no more."""
    wanted = {path: item for path, item in places.items() if not is_whole(path, item)}
    size, started = sum(item.size for item in wanted.values()), time.monotonic()
    os.makedirs(beside, exist_ok=True)
    free = os.statvfs(beside)
    if size > free.f_bavail * free.f_frsize:
        room = human(free.f_bavail * free.f_frsize)
        text = "%s needs %s, and the disk of %s has %s free; %s"
        raise StorageError(text % (uri, human(size), beside, room, ROOM), local=True)
    if isinstance(store, CliStore):
        wanted = download_bulk(store, uri, wanted, places.values() if is_all else None, beside)
    download(store, uri, wanted)
    seconds = time.monotonic() - started
    store.tell("%s: %d objects, %s new, in %.1f s" % (uri, len(places), human(size), seconds))
