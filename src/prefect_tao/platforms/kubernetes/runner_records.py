"""What runners wrote among results: in storage, on a volume that this machine has too, or as a Pod sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.statusfile import Progress, parse_status
from prefect_tao.platforms import markers, site_notes
from prefect_tao.platforms.files import BucketFiles, Files, LocalFiles
from prefect_tao.platforms.kubernetes.volume_looks import VolumeLooks
from prefect_tao.platforms.progress import ProgressReader
from prefect_tao.storage.known_schemes import is_seen

P = ParamSpec("P")
T = TypeVar("T")
Found = dict[str, Any]


@dataclass
class RunnerRecords:
    """Reads records and status files of jobs. A file of this machine counts only if it is surely of that very job."""

    bucket: BucketFiles
    volumes: VolumeLooks
    here: Files = field(default_factory=LocalFiles)
    _progress: ProgressReader = field(default_factory=ProgressReader)

    async def of(self, handle: JobHandle) -> Found | None:
        """The record of a job, without a Pod; None where there is none or it cannot be seen. Raises Unreachable."""
        if is_seen(handle.results):
            return _own(handle, await _asked(self.bucket.read, _path(handle), markers.MAX_RECORD))
        return await asyncio.to_thread(self._here, handle)

    def _here(self, handle: JobHandle) -> Found | None:
        if not handle.results or not handle.native_id:
            return None
        try:
            found = _own(handle, self.here.read(_path(handle), markers.MAX_RECORD))
        except Unreachable:
            return None
        # Another machine may have a folder of that name; the record in ours must name the very job.
        return found if found and found.get("native_id") == handle.native_id else None

    def _all_here(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Found]:
        return {handle: record for handle in handles if (record := self._here(handle))}

    async def on_volumes(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Found]:
        """Records on volumes, by one look of one Pod at those that this machine does not have. Raises Unreachable."""
        found = await asyncio.to_thread(self._all_here, handles)
        unseen = {_path(one): one for one in handles if one not in found and self.volumes.is_mounted(_path(one))}
        if unseen:
            for path, data in (await self.volumes.read_many(list(unseen), markers.MAX_RECORD)).items():
                if record := _own(unseen[path], data):
                    found[unseen[path]] = record
        return found

    async def attempts(self, keys: Sequence[JobHandle]) -> list[JobHandle]:
        """The attempts of some keys that left a record in storage. Raises Unreachable."""
        places = {f"{one.results}/attempts": one for one in keys if is_seen(one.results)}
        return [
            places[folder].model_copy(update={"attempt": int(stem), "site": ""})
            for folder, names in (await _asked(self.bucket.names, list(places))).items()
            for name in names
            if (stem := name.removesuffix(".json")).isdigit()
        ]

    # -- notes of sites: volumes are out of reach until there is a Pod -------------------------------------------------

    async def leave_note(self, handle: JobHandle) -> None:
        """Note in storage that the attempt is its site's. Raises Elsewhere where another site was first."""
        if is_seen(handle.results):
            await asyncio.to_thread(site_notes.leave, self.bucket, handle)

    async def drop_note(self, handle: JobHandle) -> None:
        """Take the note back: there is no job."""
        if is_seen(handle.results):
            await asyncio.to_thread(site_notes.drop, self.bucket, handle)

    async def noted_elsewhere(self, keys: Sequence[JobHandle]) -> list[JobHandle]:
        """The attempts of some keys that other sites have noted in storage. Raises Unreachable."""
        return await _asked(site_notes.others, self.bucket, [one for one in keys if is_seen(one.results)])

    async def progress(
        self, begun: Sequence[JobHandle], ended: Collection[JobHandle], goes_on: Collection[JobHandle]
    ) -> dict[JobHandle, Progress | None]:
        """How far jobs are, where their status files can be read without a Pod; those in `goes_on` by one Pod."""
        stored = [one for one in begun if is_seen(one.results)]
        near = await asyncio.to_thread(self._all_here, [one for one in begun if not is_seen(one.results)])
        for files, some in ((self.bucket, stored), (self.here, list(near))):
            folders, over = [one.results for one in some], {one.results for one in some if one in ended}
            if folders:
                try:
                    await asyncio.to_thread(self._progress.refresh, files, folders, over)
                except (Unreachable, InvalidInput, MissingDependency):
                    continue  # where a job stands is known without it
        known = {one: self._progress.of(one.results) for one in (*stored, *near)}
        far = {one.results: one for one in goes_on if one not in known and self.volumes.is_mounted(one.results)}
        with suppress(Unreachable):
            texts = await self.volumes.statuses(list(far)) if far else {}
            known |= {far[folder]: parse_status(data.decode(errors="replace")) for folder, data in texts.items()}
        return known


def _path(handle: JobHandle) -> str:
    return f"{handle.results}/attempts/{handle.attempt}.json"


def _own(handle: JobHandle, data: bytes | None) -> Found | None:
    found = markers.read_record(data)
    return found if found and markers.is_of(found, handle.native_id, handle.site) else None


async def _asked(question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await asyncio.to_thread(question, *args, **kwargs)
    except (InvalidInput, MissingDependency) as error:
        raise Unreachable(error.cause, error.remedy, retryable=False) from error
