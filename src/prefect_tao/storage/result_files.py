"""The results of one job: its files wherever they are kept, and copies of them here."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from prefect_tao.jobs.errors import InvalidInput, TaoError
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import MAX_ENTRIES, NOT_RESULTS
from prefect_tao.jobs.platform import Platform
from prefect_tao.runner.inside.atomic import part_of
from prefect_tao.runner.inside.paths import is_below
from prefect_tao.storage import locations
from prefect_tao.storage.known_schemes import is_seen
from prefect_tao.storage.locations import Stored
from prefect_tao.storage.objects import ObjectStore

DEEPEST = 12
LARGEST_READ = 256 * 1024 * 1024  # what goes through a driver is held in memory
LARGEST_RECORD = 1024 * 1024


class Results:
    """What one job has left. `credentials` open the storage that it used."""

    def __init__(self, platform: Platform, handle: JobHandle, credentials: Mapping[str, str] | None = None) -> None:
        self.platform = platform
        self.handle = handle
        self.credentials = credentials

    async def files(self) -> list[Stored]:
        """All files, those of outputs that are kept elsewhere too. Raises InvalidInput, Unreachable."""
        root = self.handle.results.rstrip("/")
        found = await self._below(root)
        for key, place in (await self._outputs()).items():
            # A container may know the results folder by another name; the job's key is part of both.
            if not is_below(root, place) and f"/{self.handle.key}/" not in f"{place}/":
                found += [replace(file, name=f"{_folder(key)}/{file.name}") for file in await self._below(place)]
        return found

    async def download(
        self, files: Sequence[Stored], folder: Path, done: Callable[[Stored], None] = lambda file: None
    ) -> None:
        """Copy files here, each whole or not at all. Raises InvalidInput for those that are too far away for it."""
        near = [file for file in files if self._is_here or is_seen(file.uri)]
        await asyncio.to_thread(locations.download, near, folder, self.credentials, done)
        for file in files if len(near) < len(files) else ():
            if not is_seen(file.uri):
                await self._read(file, locations.place_of(file, folder))
                done(file)

    async def _below(self, place: str) -> list[Stored]:
        if is_seen(place) or self._is_here:
            return await asyncio.to_thread(locations.listing, place, self.credentials, NOT_RESULTS)
        listed = await self.platform.list_files(place, DEEPEST, MAX_ENTRIES, NOT_RESULTS)
        return [Stored(str(PurePosixPath(path).relative_to(place)), path) for path in listed.files]

    @cached_property
    def _is_here(self) -> bool:
        """Whether the job's folder is on this machine: only then is its record in it, and not another job's."""
        return self.platform.runs_here or ("://" not in self.handle.results and self._own(self._record_here()))

    def _own(self, record: Mapping[str, Any]) -> bool:
        return record.get("key") == self.handle.key and record.get("attempt") == self.handle.attempt

    def _record_here(self) -> dict[str, Any]:
        try:
            return _parsed(Path(self.handle.results, "attempts", f"{self.handle.attempt}.json").read_bytes())
        except OSError:
            return {}

    async def _outputs(self) -> dict[str, str]:
        """Where the job says that it keeps its outputs; nothing when it has not said so."""
        record = await self._record()
        outputs = record.get("outputs") if self._own(record) else None
        return {str(key): str(place) for key, place in outputs.items()} if isinstance(outputs, dict) else {}

    async def _record(self) -> dict[str, Any]:
        uri = f"{self.handle.results.rstrip('/')}/attempts/{self.handle.attempt}.json"
        try:
            if is_seen(uri):
                return _parsed(await asyncio.to_thread(ObjectStore(self.credentials).read, uri, LARGEST_RECORD))
            if self._is_here:
                return self._record_here()
            return _parsed(await self.platform.read_path(uri, LARGEST_RECORD))
        except (TaoError, OSError):
            return {}

    async def _read(self, file: Stored, target: Path) -> None:
        """Copy a file through the driver."""
        way = f"copy it with scp or rsync from {self.handle.target}: {file.uri}"
        data = await self.platform.read_path(file.uri, LARGEST_READ + 1)
        if len(data) > LARGEST_READ:
            raise InvalidInput(f"{file.name} is larger than {LARGEST_READ >> 20} MiB", way)
        with locations.on_disk():
            await asyncio.to_thread(_write, target, data)


def _write(target: Path, data: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(part_of(str(target)))
    try:
        temporary.write_bytes(data)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _folder(key: str) -> str:
    return key.replace("/", "_").strip(".") or "output"
