"""What an engine remembers of the ends of containers: its events, as long as it has not been restarted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.platforms.docker.render import name_of
from prefect_tao.platforms.markers import moment

DEADLY = ("2", "3", "9", "15")
NO_RECORD = "the container ended well, but there is no record that it ran the job"
REMOVED_BY_HAND = "somebody stopped and removed the container while the job ran (docker rm -f, or docker stop)"
EngineEvent = Mapping[str, Any]


def by_events(handle: JobHandle, record: Mapping[str, Any], events: Sequence[EngineEvent]) -> Observation | None:
    """How the container ended, as long as the engine remembers."""
    own = own_events(handle, events)
    ends = [event for event in own if event["Action"] == "die"]
    if not ends:
        return None
    code = int(ends[-1]["Actor"]["Attributes"].get("exitCode") or 0)
    was_oom = any(event["Action"] == "oom" for event in own)
    by_hand = code != 0 and not was_oom and was_stopped(own)
    ended = JobState.COMPLETE if code == 0 and record else JobState.ERROR
    return Observation(
        state=JobState.CANCELED if by_hand else ended,
        native_state="OOMKilled" if was_oom else "removed",
        reason=NO_RECORD if code == 0 and not record else REMOVED_BY_HAND if by_hand else "",
        evidence="docker events",
        exit_code=code,
        ended_by=EndedBy.CANCEL if by_hand else EndedBy.NONE,
        started_at=moment(record.get("started")),
        ended_at=datetime.fromtimestamp(ends[-1]["timeNano"] / 1e9, UTC),
    )


def own_events(handle: JobHandle, events: Sequence[EngineEvent]) -> list[EngineEvent]:
    """The events of one job's container."""
    if handle.native_id:
        return [event for event in events if event["Actor"]["ID"] == handle.native_id]
    return [event for event in events if _name_in(event) == name_of(handle.key, handle.attempt)]


def was_stopped(own: Sequence[EngineEvent]) -> bool:
    """Whether a person ended the container, by its events; only an engine that remembers its start can tell."""
    return any(event["Action"] == "start" for event in own) and any(map(is_deadly, own))


def is_deadly(event: EngineEvent) -> bool:
    """Whether the engine was asked to end the container: docker stop, docker kill and their like."""
    return event["Action"] == "kill" and event["Actor"]["Attributes"].get("signal") in DEADLY


def _name_in(event: EngineEvent) -> str:
    return str(event["Actor"]["Attributes"].get("name"))
