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

from prefect_tao.jobs.byname import known_request
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import MAX_ENTRIES, NOT_RESULTS
from prefect_tao.jobs.platform import Platform
from prefect_tao.runner.inside.atomic import part_of
from prefect_tao.runner.inside.paths import is_below
from prefect_tao.runner.inside.pointers import get_pointer
from prefect_tao.runner.inside.schemes import local_path
from prefect_tao.storage import locations
from prefect_tao.storage.known_schemes import is_seen
from prefect_tao.storage.locations import Stored

DEEPEST = 12
LARGEST_READ = 256 * 1024 * 1024  # what goes through a driver is held in memory


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
        near = [file for file in files if self._is_near(file.uri)]
        await asyncio.to_thread(locations.download, near, folder, self.credentials, done)
        for file in files if len(near) < len(files) else ():
            if not self._is_near(file.uri):
                await self._read(file, locations.place_of(file, folder))
                done(file)

    async def _below(self, place: str) -> list[Stored]:
        if self._is_near(place):
            return await asyncio.to_thread(locations.listing, place, self.credentials, NOT_RESULTS)
        listed = await self.platform.list_files(place, DEEPEST, MAX_ENTRIES, NOT_RESULTS)
        return [Stored(str(PurePosixPath(path).relative_to(place)), path, root=place) for path in listed.files]

    def _is_near(self, place: str) -> bool:
        """Whether a location is read from here, with the rights of those who ask; what a job may have named is not."""
        if is_seen(place) or not self._is_here:
            return is_seen(place)
        return not self.platform.jobs_own_requests or is_below(os.path.normpath(place), self.handle.results)

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
        """Outputs that the launch itself put elsewhere. What the job has written down since could name any place.

        Where that cannot be told apart, storage is left out: it would be read with the keys of those who ask.
        """
        request = await known_request(self.platform, self.handle)
        if request is None or request.digest != self.handle.digest:
            return {}
        if not isinstance(request.outputs, dict):
            # Of plain paths only those beside the results stay where they are; others are carried to the results.
            above = str(PurePosixPath(self.handle.results).parent)
            return {path: path for path in request.outputs if self._is_kept_there(path) and is_below(path, above)}
        tree = request.specs if request.specs is not None else request.args or {}
        values = {key: get_pointer(tree, key) for key in request.outputs}
        found = {key: local_path(value) for key, value in values.items() if isinstance(value, str)}
        in_storage = not self.platform.jobs_own_requests
        return {
            key: place for key, place in found.items() if (is_seen(place) and in_storage) or self._is_kept_there(place)
        }

    def _is_kept_there(self, path: str) -> bool:
        """Whether an output stays at its path: with results in storage it is carried there."""
        return path.startswith("/") and not is_seen(self.handle.results)

    async def _read(self, file: Stored, target: Path) -> None:
        """Copy a file through the driver."""
        way = f"copy it with scp or rsync from {self.handle.target}: {file.uri}"
        if not await self.platform.within(file.root, [file.uri]):
            raise locations.leads_out(file)
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
