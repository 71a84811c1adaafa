"""What Lepton shows of a job, and what that means: its state, what it waits for, and why it ended. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.verdict import Evidence, NodeEvent
from prefect_tao.platforms import markers
from prefect_tao.platforms.lepton.render import owner_of_secret
from prefect_tao.platforms.markers import Record, has_ended

EVIDENCE = "Lepton's list of jobs"
STATES = {
    **dict.fromkeys(("Awaiting", "Queueing", "Starting", "PendingRetry", "Restarting"), JobState.PENDING),
    **dict.fromkeys(("Stopping", "Deleting", "Terminating"), JobState.CANCELING),
    **dict.fromkeys(("Stopped", "Deleted"), JobState.CANCELED),
    "Running": JobState.RUNNING,
    "Completed": JobState.COMPLETE,
    "Failed": JobState.ERROR,
}
ARCHIVED = "Archived"
WAITING = {
    "Awaiting": "waiting for the time it is scheduled for",
    "Queueing": "waiting in the queue of its node group",
    "PendingRetry": "Lepton is about to restart it",
    "Restarting": "Lepton is restarting it",
}
STOPPED = "stopped or deleted on Lepton (prefect-tao cancel, lep job stop, or the workspace's page)"
# What keeps a worker from starting, the worst first, and what a person can do about it.
ISSUES = {
    "ConfigError": "a mount or a setting of the job does not fit the node",
    "Failed": "the worker cannot start",
    "SystemError": "Lepton itself has a problem",
    "NoCapacity": "no node has room for it",
    "Queueing": "waiting in the queue",
    "InProgress": "",
}
# A job that waits for room is in nobody's way: it is left in line as long as it has nowhere else to go.
NO_ROOM = "NoCapacity"
IN_QUEUE = f"{NO_ROOM}: waiting in the queue of its node group"
# Lepton's words for what happened to a node, as every platform says it.
_NODE_WORDS = {"OOM": "OOMKilled"}
_TURNED_AWAY = re.compile(r"^\[prefect-tao\] job (\S+) has this name; nothing to do$", re.MULTILINE)
_END = '{"name": "tao-'


@dataclass(frozen=True)
class LeptonRow:
    """One job as Lepton lists it; counts and times that are missing are zero."""

    id: str
    name: str
    state: str = ""
    ready: int = 0
    active: int = 0
    failed: int = 0
    succeeded: int = 0
    created: int = 0
    completed: int = 0
    restarts: int = 0
    stopped: bool = False
    secrets: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def read(cls, raw: Any) -> LeptonRow | None:
        """The row that a JSON object is; None for what is none."""
        metadata = raw.get("metadata") if isinstance(raw, dict) else None
        if not isinstance(metadata, dict) or not metadata.get("id"):
            return None
        status, spec = raw.get("status") or {}, raw.get("spec") or {}
        refs = (one.get("value_from") for one in spec.get("envs") or () if isinstance(one, dict))
        names = (str(ref.get("secret_name_ref")) for ref in refs if ref)
        name = str(metadata.get("name") or "")
        return cls(
            id=str(metadata["id"]),
            name=name,
            state=str(status.get("state") or ""),
            **{count: _number(status.get(count)) for count in ("ready", "active", "failed", "succeeded")},
            created=_number(metadata.get("created_at") or status.get("creation_time")),
            completed=_number(status.get("completion_time")),
            restarts=len(status.get("job_history") or ()),
            stopped=bool(spec.get("stopped")),
            secrets=tuple(one for one in names if owner_of_secret(one) == name),
            raw=raw,
        )

    @property
    def job_state(self) -> JobState | None:
        """Where it stands; None for a word that is not known here."""
        if self.state == ARCHIVED:
            return self._archived_state()
        state = STATES.get(self.state)
        # Lepton calls a job running as soon as one of its workers does.
        return JobState.PENDING if state is JobState.RUNNING and self.ready < self.active else state

    def _archived_state(self) -> JobState:
        """Archived says only that it is over; the counts of its workers tell how."""
        if self.failed:
            return JobState.ERROR
        if self.succeeded:
            return JobState.COMPLETE
        return JobState.CANCELED if self.stopped else JobState.ERROR

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.job_state is not None and self.job_state.terminal


def _number(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0


def rows(found: Any) -> list[LeptonRow] | None:
    """The jobs of an answer, which is a list or holds one; None for an answer that is no list of jobs."""
    if isinstance(found, dict) and "jobs" in found:
        found = found["jobs"] or []
    if not isinstance(found, list):
        return None
    read = [row for raw in found if (row := LeptonRow.read(raw))]
    return read if read or not found else None


def oldest(named: Iterable[LeptonRow]) -> LeptonRow | None:
    """Of jobs with one name the one that everybody takes for the job as long as none has claimed the name."""
    return min(named, key=lambda row: (row.created, row.id), default=None)


# -- where it stands ---------------------------------------------------------------------------------------------------


def seen(row: LeptonRow, record: Record | None = None, issue: str = "", before: JobState | None = None) -> Observation:
    """What a look at a job says; `record` is what its runner wrote, `before` what was seen of it last."""
    state = row.job_state
    if state is not None and state.terminal:
        return _end(row, state, record)
    reason = issue or WAITING.get(row.state, "")
    if row.state == "Running" and row.ready < row.active:
        reason = issue or f"{row.ready} of {row.active} workers have started"
    if state is None:  # a new job may have no state for a while; and no word that is not known ends a job
        state = before if before and not before.terminal else JobState.PENDING
        reason = (
            f"Lepton says {row.state!r}, which is not known here" if row.state else "Lepton has not looked at it yet"
        )
    started = markers.moment((record or {}).get("started")) if state is JobState.RUNNING else None
    if state is JobState.RUNNING and not started:
        started = moment(row.created)
    return Observation(
        state=state,
        native_state=row.state,
        reason=reason,
        evidence=EVIDENCE,
        started_at=started,
        restarts=row.restarts,
    )


def _end(row: LeptonRow, state: JobState, record: Record | None) -> Observation:
    """The end as the runner wrote it down, unless Lepton knows better: who stopped it, or a worker that failed."""
    if record and has_ended(record) and markers.is_of(record, row.id):
        end = markers.ended(record, row.state)
        if state is JobState.CANCELED and end.ended_by is EndedBy.PREEMPT:
            return end.model_copy(update={"state": state, "ended_by": EndedBy.CANCEL, "reason": STOPPED})
        if (row.failed or row.state == "Failed") and end.state is JobState.COMPLETE:
            return end.model_copy(update={"state": JobState.ERROR, "reason": "another worker of the job failed"})
        return end
    canceled = state is JobState.CANCELED
    unknown = row.state == ARCHIVED and state is JobState.ERROR and not row.failed
    reason = "Lepton has archived the job, and there is no record of how it ended" if unknown else ""
    return Observation(
        state=state,
        native_state=row.state,
        reason=STOPPED if canceled else reason,
        evidence=EVIDENCE,
        exit_code=0 if state is JobState.COMPLETE else None,
        ended_by=EndedBy.CANCEL if canceled else EndedBy.NONE,
        started_at=markers.moment((record or {}).get("started")) or moment(row.created),
        ended_at=moment(row.completed),
        restarts=row.restarts,
    )


def gone(record: Record | None) -> Observation:
    """A job that the workspace does not know any more."""
    if record and has_ended(record):
        return markers.ended(record, "gone")
    return Observation(
        state=JobState.ERROR,
        native_state="gone",
        reason="the workspace does not know the job any more, and there is no record of how it ended",
        evidence=EVIDENCE,
        started_at=markers.moment((record or {}).get("started")),
    )


def moment(milliseconds: int) -> datetime | None:
    """A moment as Lepton writes it."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


# -- why it does not start ---------------------------------------------------------------------------------------------


def issues(replicas: Any) -> Iterator[tuple[str, str, str]]:
    """The workers of a job as the raw answer has them: name, reason and message of what keeps each from running."""
    for one in replicas if isinstance(replicas, list) else ():
        if not isinstance(one, dict):
            continue
        name = one.get("id") or (one.get("metadata") or {}).get("id") or ""
        issue = (one.get("status") or {}).get("readiness_issue") or {}
        yield str(name), str(issue.get("reason") or ""), str(issue.get("message") or "")


def explained(replicas: Any) -> str:
    """Why a job does not start, by the worker that is worst off; empty where none says."""
    order = list(ISSUES)
    found = [(reason, message) for _, reason, message in issues(replicas) if reason]
    if not found:
        return ""
    reason, message = min(found, key=lambda one: order.index(one[0]) if one[0] in order else 0)
    return ": ".join(part for part in (reason, message or ISSUES.get(reason, "")) if part)


def bad_nodes(replicas: Any) -> list[str]:
    """The nodes on which a worker cannot start."""
    listed = (
        [one.get("status") or {} for one in replicas if isinstance(one, dict)] if isinstance(replicas, list) else []
    )
    names = [str((one.get("node") or {}).get("id") or "") for one in listed if one.get("readiness_issue")]
    return sorted({name for name in names if name})


def stuck(row: LeptonRow, issue: str) -> Observation:
    """The end of a job that was stopped because it would never have started where it was."""
    return Observation(
        state=JobState.ERROR,
        native_state="Stuck",
        reason=f"{issue}; it was stopped because it could not start",
        evidence=EVIDENCE,
        ended_at=moment(row.completed),
        restarts=row.restarts,
    )


# -- why it ended ------------------------------------------------------------------------------------------------------


def end_in_log(text: str) -> dict[str, Any] | None:
    """The end that the runner of the first worker printed, where no place for results can be looked into."""
    for line in reversed(text.splitlines()):
        start = line.rfind(_END)
        if start < 0:
            continue
        try:
            found, _ = json.JSONDecoder().raw_decode(line[start:])
        except ValueError:
            continue
        if not found.get("rank") and (record := markers.read_record(json.dumps(found))):
            return record
    return None


def turned_away_by(text: str) -> str | None:
    """The job that has the name, where this one printed that it left because of that."""
    found = _TURNED_AWAY.search(text)
    return found[1] if found else None


def evidence(
    end: Observation, record: Record | None, log: str, analysis: Any, events: Any, replicas: Any = ()
) -> Evidence:
    """All that is known about a job that is over: Lepton's own analysis, its events, the runner's record, the log."""
    facts = record or {}
    stuck = explained(replicas) if end.state is JobState.ERROR and not has_ended(facts) else ""
    told = [*_node_events(analysis), *_warnings(events)]
    return Evidence(
        exit_code=end.exit_code,
        ended_by=end.ended_by,
        native_state=end.native_state,
        reason=". ".join(part for part in (end.reason, stuck) if part),
        oom_killed=any(event.name == "OOMKilled" for event in told) and end.exit_code != 0,
        phase=str(facts.get("phase") or "") if has_ended(facts) else "",
        runner_error=str(facts.get("error") or ""),
        log_tail=log,
        node_events=tuple(told),
    )


def _node_events(analysis: Any) -> Iterator[NodeEvent]:
    listed = analysis.get("job_failure_by_node_event") if isinstance(analysis, dict) else None
    for one in listed or ():
        if isinstance(one, dict) and one.get("node_event_name"):
            name = str(one["node_event_name"])
            node = str(one["node_name"]) if one.get("node_name") else None
            yield NodeEvent(name=_NODE_WORDS.get(name, name), message=str(one.get("message") or ""), node=node)


def _warnings(events: Any) -> Sequence[NodeEvent]:
    listed = [one for one in events or () if isinstance(one, dict)] if isinstance(events, list) else []
    return [
        NodeEvent(name=str(one["reason"]), message=str(one.get("note") or one.get("message") or ""))
        for one in listed
        if one.get("type") == "Warning" and one.get("reason")
    ]
