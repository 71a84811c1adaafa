"""Jobs that the cluster positively has no more: by what is left, kept and recorded of them, else by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from prefect_tao.jobs.clock import now
from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.platforms import markers
from prefect_tao.platforms.base import Denials
from prefect_tao.platforms.kubernetes import kept_ends
from prefect_tao.platforms.kubernetes.client import ClusterApi, Manifest
from prefect_tao.platforms.kubernetes.kept_ends import KeptEnd
from prefect_tao.platforms.kubernetes.observe import is_over, own_record
from prefect_tao.platforms.kubernetes.runner_records import RunnerRecords
from prefect_tao.platforms.markers import Record, has_ended
from prefect_tao.storage.known_schemes import is_seen

GONE_SECONDS = 5.0
DELETED = "somebody deleted the Job"
FORGOTTEN = "the Job is gone, and there is no record of how it ended"


@dataclass
class ForgottenJobs:
    """Tells how they ended. Raises Unreachable where that is not known."""

    api: ClusterApi
    target: str
    records: RunnerRecords
    denials: Denials = field(default_factory=Denials)

    async def seen(
        self, handles: Sequence[JobHandle], pods: Mapping[JobHandle, Sequence[Manifest]]
    ) -> dict[JobHandle, Observation]:
        """What is known of jobs without a Job; left out is one that was there a moment ago."""
        if not handles:
            return {}
        kept = await kept_ends.kept(self.api, self.target)
        found = {one: _leaving(pods[one]) for one in handles if not all(map(is_over, pods.get(one, ())))}
        records = await self._records([one for one in handles if one not in found], pods)
        told = {one for one, record in records.items() if has_ended(record)}
        gone = [one for one in handles if one not in found and (one in kept or one in told or self._is_gone(one))]
        unseen = [one for one in gone if one not in records and _may_tell_more(one, kept.get(one))]
        if unseen:
            with suppress(Unreachable):  # what is known without them is not in doubt
                records |= await self.records.on_volumes(unseen)
        for handle in gone:
            found[handle] = await self._end(handle, kept.get(handle), records.get(handle))
        return found

    def _is_gone(self, handle: JobHandle) -> bool:
        return self.denials.seconds(handle) >= GONE_SECONDS

    async def _records(
        self, handles: Sequence[JobHandle], pods: Mapping[JobHandle, Sequence[Manifest]]
    ) -> dict[JobHandle, Record]:
        """What jobs say of their ends: in Pods that were left, in storage, in folders of this machine."""
        found: dict[JobHandle, Record] = {}
        for handle in handles:
            record = own_record(pods.get(handle, ()), handle.native_id) or await self.records.of(handle)
            found |= {handle: record} if record else {}
        return found

    async def _end(self, handle: JobHandle, kept: KeptEnd | None, record: Record | None) -> Observation:
        ended = record if record and has_ended(record) else None
        is_own = ended is not None and ended.get("ended_by") == EndedBy.NONE
        if kept and not (is_own and kept.end.ended_by is EndedBy.CANCEL):
            end = kept.end
        elif ended and ended.get("ended_by") != EndedBy.PREEMPT:
            end = markers.ended(ended, "deleted")
        elif is_seen(handle.results) and record is None:
            return Observation(state=JobState.ERROR, native_state="gone", reason=FORGOTTEN, evidence="Jobs")
        else:
            end = deleted(DELETED)
        if kept is None:
            await kept_ends.keep(self.api, handle, end)
        elif not kept.is_checked and (end is not kept.end or _may_tell_more(handle, kept)):
            await kept_ends.correct(self.api, handle, end)
        return end


def deleted(reason: str, begun: Observation | None = None) -> Observation:
    """The end of a job whose Job is deleted; `begun` is what was seen of it before."""
    return Observation(
        state=JobState.CANCELED,
        native_state="deleted",
        reason=reason,
        evidence="Jobs",
        ended_by=EndedBy.CANCEL,
        started_at=begun.started_at if begun else None,
        ended_at=now(),
    )


def _may_tell_more(handle: JobHandle, kept: KeptEnd | None) -> bool:
    """Whether a record on a volume can change what is known: a job may have ended just before it was cancelled."""
    if is_seen(handle.results):
        return False
    return kept is None or (kept.end.ended_by is EndedBy.CANCEL and bool(kept.end.started_at) and not kept.is_checked)


def _leaving(pods: Sequence[Manifest]) -> Observation:
    [pod, *_] = [one for one in pods if not is_over(one)]
    where = pod["spec"].get("nodeName")
    said = f"{DELETED}, and its Pod {pod['metadata']['name']} is still there{f' on {where}' if where else ''}"
    return Observation(state=JobState.CANCELING, native_state="Terminating", reason=said, evidence="Pods")
