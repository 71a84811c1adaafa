"""Many small files with few processes, where each call of the aws command is one."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial

from .checksums import file_md5, is_md5
from .downloads import RANGED
from .persistence import persist
from .sizes import MIB
from .ways import split
from .wholeness import discard, give_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from .awscli import CliStore
    from .ways import Item

FEW, BULK = 4, MIB  # so many, and each at most so large, and the aws command moves them in bulk


def download_bulk(
    store: CliStore, uri: str, wanted: dict[str, Item], there: Iterable[Item] | None, beside: str
) -> dict[str, Item]:
    """Fetch small objects with few processes; returns what is still to be fetched, one by one.

    `there` is all that is at `uri`, or None where only a part of it is known.
    """
    # What came in bulk can be compared with an MD5 only.
    small = {item.key for item in wanted.values() if item.size <= RANGED and is_md5(item.etag)}
    if len(small) < FEW:
        return wanted
    bucket, key = split(uri)
    base = key.rstrip("/") + "/" if key else ""
    others = None if there is None else [item.key for item in there if item.key not in small]
    folder = tempfile.mkdtemp(prefix=".tao-", dir=beside)
    try:
        for words in _filters(base, sorted(small), others):
            words = ["s3", "cp", "--recursive", "--only-show-errors", "s3://%s/%s" % (bucket, base), folder, *words]
            persist("download of %s" % uri, partial(store.run, *words))
        return {
            path: item
            for path, item in wanted.items()
            if not _take(os.path.join(folder, item.key[len(base) :]), path, item)
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _filters(base: str, keys: Sequence[str], others: Sequence[str] | None) -> list[list[str]]:
    """The options that make the aws command move `keys`; `others` are all that is there beside them, where known."""
    if others is not None and len(others) <= 100 and len(keys) > 100:
        return [[word for key in others for word in ("--exclude", _pattern(key[len(base) :]))]]
    names = [_pattern(key[len(base) :]) for key in keys]
    return [
        ["--exclude", "*", *(word for name in names[at : at + 100] for word in ("--include", name))]
        for at in range(0, len(names), 100)
    ]


def _take(source: str, path: str, item: Item) -> bool:
    """Give a file that came in bulk its place, if it is what was listed."""
    try:
        if os.path.getsize(source) != item.size or file_md5(source) != item.etag:
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        give_name(source, path, item)
        return True
    except OSError:
        return False


def _pattern(name: str) -> str:
    return name.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


def send_bulk(store: CliStore, files: Sequence[Any]) -> list[Any]:
    """Send small files with one process per bucket; returns what is still to be sent, one by one."""
    small = [file for file in files if _size(file[0]) <= BULK and _is_path("/" + split(file[1])[1])]
    if len(small) < FEW:
        return list(files)
    sent: set[str] = set()
    for bucket in {split(uri)[0] for _, uri, _, _ in small}:
        folder = tempfile.mkdtemp(prefix="tao-")
        try:
            sent |= _send_folder(store, bucket, [file for file in small if split(file[1])[0] == bucket], folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return [file for file in files if file[1] not in sent]


def _send_folder(store: CliStore, bucket: str, files: Sequence[Any], folder: str) -> set[str]:
    """One call for many files, by way of copies that nobody writes to; returns the URIs where they have arrived."""
    sums = {}
    for path, uri, steady, _ in files:
        copy = os.path.join(folder, split(uri)[1])
        try:
            before = os.stat(path)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(path, copy)
            if steady and os.stat(path).st_mtime_ns != before.st_mtime_ns:
                os.unlink(copy)
            else:
                sums[uri] = file_md5(copy)
        except OSError:  # a copy that is not whole must not go
            discard(copy)
    words = ["s3", "cp", "--recursive", "--only-show-errors", folder, "s3://%s/" % bucket]
    persist("saving %d files to s3://%s" % (len(files), bucket), partial(store.run, *words))
    prefix = os.path.commonpath([os.path.dirname("/" + split(uri)[1]) for uri in sums] or ["/"])[1:]
    there = persist("listing s3://%s/%s" % (bucket, prefix), partial(store.items, bucket, prefix))
    arrived = {"s3://%s/%s" % (bucket, item.key) for item in there if sums.get("s3://%s/%s" % item[:2]) == item.etag}
    for _, uri, _, done in files:
        if uri in arrived:
            done()
    return arrived


def _is_path(key: str) -> bool:
    """Whether a file can have this very name: with `..` in it, it would be another one, anywhere."""
    return os.path.normpath(key) == key


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return BULK + 1
