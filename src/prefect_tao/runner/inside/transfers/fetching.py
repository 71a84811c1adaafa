"""Fetches what is at a location: every object to its path, by way of a cache where there is one."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import nullcontext
from functools import partial

from ..atomic import discard, part_of, write_atomic
from ..failures import ROOM, Changed, Missing, StorageError
from ..lock import locked
from ..retry import TRIES
from ..sizes import human
from ..stores import split
from . import Carrier, Transfer
from .downloads import download, is_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..stores import Item, Store


def find(store: Store, uri: str) -> dict[str, Item]:
    """What is at `uri`: {path below it: object}; the path of an object itself is empty. Raises Missing."""
    bucket, key = split(uri)
    if key and not key.endswith("/"):
        # An object comes before all others whose names begin with its own.
        for item in store.retry("listing %s" % uri, partial(store.items, bucket, key, 1)):
            if item.key == key:
                return {"": item}
    prefix = key.rstrip("/") + "/" if key else ""
    items = store.retry("listing %s" % uri, partial(store.items, bucket, prefix))
    found = {item.key[len(prefix) :]: item for item in items if not item.key.endswith("/")}  # consoles mark folders so
    if not found:
        raise Missing("there is nothing at %s" % uri, remedy="correct the path, or upload the data there")
    return found


def find_named(store: Store, uri: str, names: Sequence[str]) -> dict[str, Item]:
    """The objects that `names` names below the folder `uri`. Raises Missing."""
    found: dict[str, Item] = {}
    if len(names) >= store.few:
        there, wanted = find(store, uri.rstrip("/") + "/"), set(names)
        found = {name: there[name] for name in wanted if name in there}
        names = [name for name in names if name not in found]

    def search(name: str) -> None:
        for below, item in find(store, "%s/%s" % (uri.rstrip("/"), name)).items():
            found["/".join(filter(None, (name, below)))] = item

    what = "looking for %d files below %s" % (len(names), uri)
    Carrier(what, store).carry(Transfer(0, partial(search, name)) for name in names)
    return found


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
            store.say("%s changes while it is being downloaded; looking again" % uri)
    text = "%s changes all the time while it is being downloaded" % uri
    raise StorageError(text, remedy="launch when it is complete")


def _fetch(
    store: Store, uri: str, found: dict[str, Item], is_all: bool, target: str, cache: str | None, shared: bool
) -> None:
    places = _places(uri, found, target)
    if "" not in found:
        _remove_gone(target, places)
    if cache:
        entries = {path: entry_of(store, cache, item) for path, item in places.items()}
        try:
            with locked(cache, uri, store.say):
                _download(store, uri, {entries[path]: item for path, item in places.items()}, is_all, cache)
        except (StorageError, OSError) as error:
            if isinstance(error, StorageError) and not error.local:
                raise
            store.say("the cache cannot take %s (%s); downloading it for this job alone" % (uri, error))
        else:
            for path, entry in entries.items():
                link(entry, path)
            return
    with locked(os.path.dirname(target), target, store.say) if shared else nullcontext():
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
        text = "%s needs %s, and the disk of %s has %s free"
        raise StorageError(text % (uri, human(size), beside, room), local=True, remedy=ROOM)
    wanted = store.download_bulk(uri, wanted, list(places.values()) if is_all else None, beside)
    download(store, uri, wanted)
    seconds = time.monotonic() - started
    store.say("%s: %d objects, %s new, in %.1f s" % (uri, len(places), human(size), seconds))


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
