"""What is at an s3:// or file:// location or a plain path: whether it exists, its files, and copies of them here.

Drivers and commands call these for storage that can be reached from here. They block; async callers use a thread.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, TaoError, Unreachable
from prefect_tao.runner import storage
from prefect_tao.runner.program import LOCAL_SCHEMES, part_of

COPIES = 4  # at once: more of them only make a disk seek


@dataclass(frozen=True)
class Stored:
    """One file: its name below the location that was listed, where it is, and how long."""

    name: str
    uri: str
    size: int | None = None
    item: Any = None  # what storage calls it


def exists(uri: str, credentials: Mapping[str, str] | None = None) -> bool:
    """Whether there is a file, an object or a folder of them. Raises InvalidInput, MissingDependency, Unreachable."""
    if not is_s3(uri):
        return local_path(uri).exists()
    bucket, key = _split(uri)
    with _translated():
        store = open_store(credentials)
        found = storage.persist(f"listing {uri}", lambda: store.items(bucket, key.rstrip("/"), 1))
        if found and found[0].key.startswith(f"{key.rstrip('/')}/" if key else ""):
            return True
        return any(item.key == key for item in found) or bool(key and store.items(bucket, f"{key.rstrip('/')}/", 1))


def listing(uri: str, credentials: Mapping[str, str] | None = None, skip: Collection[str] = ()) -> list[Stored]:
    """All files below `uri`, or the one that it is; none when there is nothing. Folders named in `skip` are left out.

    Raises InvalidInput, MissingDependency, Unreachable.
    """
    if not is_s3(uri):
        return _local_files(local_path(uri), skip)
    _split(uri)
    try:
        with _translated():
            found = storage.find(open_store(credentials), uri)
    except _Nothing:
        return []
    files = [
        Stored(below or uri.rpartition("/")[2], f"s3://{item.bucket}/{item.key}", item.size, item)
        for below, item in found.items()
        if not set(below.split("/")[:-1]) & set(skip)
    ]
    return sorted(files, key=lambda file: file.name)


def download(
    files: Sequence[Stored],
    folder: Path,
    credentials: Mapping[str, str] | None = None,
    done: Callable[[Stored], None] = lambda file: None,
) -> None:
    """Copy files that `listing` found to their names below `folder`, each whole or not at all; `done` hears of each.

    What is there already, unchanged, stays. Raises InvalidInput, Unreachable.
    """
    places = {str(place_of(file, folder)): file for file in files}
    if len(places) < len(files):
        raise InvalidInput("two of the files would have one name", "download the outputs one by one")
    remote = {path: file.item for path, file in places.items() if file.item}
    with _translated():
        folder.mkdir(parents=True, exist_ok=True)
        kept = {path for path, item in remote.items() if storage.is_whole(path, item)}
        for path in kept:
            done(places[path])
        wanted = {path: item for path, item in remote.items() if path not in kept}
        if wanted:
            storage.download(open_store(credentials), "results", wanted, lambda path: done(places[path]))
        with ThreadPoolExecutor(COPIES) as pool:
            copies = [pool.submit(_copy, path, file) for path, file in places.items() if not file.item]
            for copy in copies:
                done(copy.result())


def read(uri: str, credentials: Mapping[str, str] | None = None) -> bytes:
    """A small object or file. Raises InvalidInput, MissingDependency, Unreachable."""
    if not is_s3(uri):
        return local_path(uri).read_bytes()
    bucket, key = _split(uri)
    store = open_store(credentials)
    with _translated():
        item = storage.persist(f"reading {uri}", lambda: store.head(bucket, key))
        return b"".join(store.read(item, 0, item.size, "")[1])


def place_of(file: Stored, folder: Path) -> Path:
    """Where a file goes below `folder`. Raises InvalidInput for a name that would leave it."""
    parts = [part for part in file.name.split("/") if part not in ("", ".")]
    if ".." in parts or not parts or "\0" in file.name:
        raise InvalidInput(f"{file.uri} has a name that would leave {folder}", "fetch it by hand")
    return folder.joinpath(*parts)


def is_s3(uri: str) -> bool:
    return uri.startswith("s3://")


def local_path(uri: str) -> Path:
    """The path that `uri` means here. Raises InvalidInput for a location elsewhere."""
    scheme, marker, rest = uri.partition("://")
    if marker and scheme not in LOCAL_SCHEMES:
        raise InvalidInput(f"{uri} is neither a path nor in S3", "give a path, file:// or s3://")
    return Path("/" + rest.lstrip("/")) if marker else Path(uri).expanduser()


def open_store(credentials: Mapping[str, str] | None = None) -> Any:
    """S3 with these credentials (ACCESS_KEY, SECRET_KEY, S3_ENDPOINT_URL, CLOUD_REGION), else those around us."""
    try:
        boto3 = import_module("boto3")
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"looking into S3 needs the package {error.name}", "pip install 'prefect-tao[aws]'"
        ) from None
    with _translated():
        return storage.BotoStore(boto3, {**os.environ, **(credentials or {})})


def _split(uri: str) -> tuple[str, str]:
    bucket, key = storage.split(uri)
    if not bucket:
        raise InvalidInput(f"{uri} names no bucket", "write s3://<bucket>/<path>")
    return bucket, key


def _local_files(path: Path, skip: Collection[str]) -> list[Stored]:
    if path.is_file():
        return [Stored(path.name, str(path), path.stat().st_size)]
    found = []
    for base, below, names in os.walk(path):
        below[:] = sorted(name for name in below if name not in skip)
        for name in sorted(names):
            file = Path(base, name)
            try:
                facts = file.stat()
            except OSError:  # a link to what is gone
                continue
            if stat.S_ISREG(facts.st_mode):
                found.append(Stored(str(file.relative_to(path)), str(file), facts.st_size))
    return sorted(found, key=lambda file: file.name)


def _copy(target: str, file: Stored) -> Stored:
    here, there = Path(target), os.stat(file.uri)
    if here.is_file() and (here.stat().st_size, here.stat().st_mtime_ns) == (there.st_size, there.st_mtime_ns):
        return file
    here.parent.mkdir(parents=True, exist_ok=True)
    temporary = part_of(target)
    try:
        shutil.copy2(file.uri, temporary)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return file


class _Nothing(TaoError):
    """There is nothing at that place."""


@contextmanager
def _translated() -> Iterator[None]:
    """The errors of storage and of the disk as ours."""
    try:
        yield
    except storage.Missing as error:
        raise _Nothing(str(error)) from None
    except storage.Changed:
        raise Unreachable("an object changed while it was being downloaded", "download again") from None
    except storage.StorageError as error:
        cause, _, remedy = str(error).rpartition("; ")
        kind = InvalidInput if error.final else Unreachable
        raise kind(cause or remedy, remedy if cause else "try again in a while") from None
    except OSError as error:
        raise InvalidInput(f"the files cannot be copied: {error}", "choose another folder, or free space") from None
