"""What is at a location in storage or at a path: whether it exists, its files, and copies of them here.

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
from pathlib import Path
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.runner.inside.atomic import part_of
from prefect_tao.runner.inside.failures import Missing
from prefect_tao.runner.inside.paths import is_below
from prefect_tao.runner.inside.schemes import is_local, local_path, scheme_of
from prefect_tao.runner.inside.transfers import downloads
from prefect_tao.storage.known_schemes import is_seen
from prefect_tao.storage.objects import ObjectStore, connect, split, typed

COPIES = 4  # at once: more of them only make a disk seek


@dataclass(frozen=True)
class Stored:
    """One file: its name below the location that was listed, where it is, and how long."""

    name: str
    uri: str
    size: int | None = None
    item: Any = None  # what storage calls it
    root: str = ""  # the folder that it must not be outside of, whatever links there are


def nearest(path: Path) -> Path:
    """The path itself or the first above it that is there; what lies in a folder that may not be entered is not."""
    # os.path, because pathlib raises for a folder that may not be entered.
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))


def exists(uri: str, credentials: Mapping[str, str] | None = None) -> bool:
    """Whether there is a file, an object or a folder of them. Raises InvalidInput, MissingDependency, Unreachable."""
    return ObjectStore(credentials).exists(uri) if is_seen(uri) else os.path.exists(path_here(uri))


def listing(uri: str, credentials: Mapping[str, str] | None = None, skip: Collection[str] = ()) -> list[Stored]:
    """All files below `uri`, or the one that it is; none when there is nothing. Folders named in `skip` are left out.

    So are links of a folder here that lead out of it: a job must not choose what else of this machine is read.
    Raises InvalidInput, MissingDependency, Unreachable.
    """
    if not is_seen(uri):
        return _local_files(path_here(uri), skip)
    split(uri)
    store = connect(scheme_of(uri), credentials)
    with typed(store, "listing"):
        try:
            found = store.find(uri)
        except Missing:
            return []
    files = [
        Stored(below or uri.rpartition("/")[2], store.uri(item.bucket, item.key), item.size, item)
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
    remote = {path: file for path, file in places.items() if file.item}
    with on_disk():
        folder.mkdir(parents=True, exist_ok=True)
        kept = {path for path, file in remote.items() if downloads.is_whole(path, file.item)}
        for path in kept:
            done(places[path])
        for scheme in sorted({scheme_of(file.uri) for path, file in remote.items() if path not in kept}):
            own = {path for path, file in remote.items() if scheme_of(file.uri) == scheme}
            wanted = {path: remote[path].item for path in own - kept}
            store = connect(scheme, credentials)
            with typed(store, "download"):
                downloads.download(store, "results", wanted, lambda path: done(places[path]))
        with ThreadPoolExecutor(COPIES) as pool:
            copies = [pool.submit(_copy, path, file) for path, file in places.items() if not file.item]
            for copy in copies:
                done(copy.result())


def place_of(file: Stored, folder: Path) -> Path:
    """Where a file goes below `folder`. Raises InvalidInput for a name that would leave it."""
    parts = [part for part in file.name.split("/") if part not in ("", ".")]
    if ".." in parts or not parts or "\0" in file.name:
        raise InvalidInput(f"{file.uri} has a name that would leave {folder}", "fetch it by hand")
    return folder.joinpath(*parts)


def path_here(uri: str) -> Path:
    """The path that `uri` means here. Raises InvalidInput for a location elsewhere."""
    if not is_local(uri):
        raise InvalidInput(f"{uri} is neither a path nor in a known storage", "give a path, file:// or s3://")
    return Path(local_path(uri)).expanduser()


def _local_files(path: Path, skip: Collection[str]) -> list[Stored]:
    if path.is_file():
        return [Stored(path.name, str(path), path.stat().st_size)]
    found, root = [], os.path.realpath(path)
    for base, below, names in os.walk(path):
        below[:] = sorted(name for name in below if name not in skip)
        for name in sorted(names):
            file = Path(base, name)
            # A job may plant a link to a file that only the person who fetches its results can read.
            if file.is_symlink() and not file.resolve().is_relative_to(root):
                continue
            try:
                facts = file.stat()
            except OSError:  # a link to what is gone
                continue
            if stat.S_ISREG(facts.st_mode):
                found.append(Stored(str(file.relative_to(path)), str(file), facts.st_size, root=root))
    return sorted(found, key=lambda file: file.name)


def _copy(target: str, file: Stored) -> Stored:
    source = os.path.realpath(file.uri)
    if file.root and not is_below(source, file.root):
        raise leads_out(file)
    here, there = Path(target), os.stat(source)
    if here.is_file() and (here.stat().st_size, here.stat().st_mtime_ns) == (there.st_size, there.st_mtime_ns):
        return file
    here.parent.mkdir(parents=True, exist_ok=True)
    temporary = part_of(target)
    try:
        shutil.copy2(source, temporary)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return file


def leads_out(file: Stored) -> InvalidInput:
    """Why a file is not fetched that is a link by now."""
    return InvalidInput(f"{file.uri} leads out of the results", "fetch it by hand, if it is meant to be there")


@contextmanager
def on_disk() -> Iterator[None]:
    """The errors of the disk as ours."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"the files cannot be copied: {error}", "choose another folder, or free space") from None
