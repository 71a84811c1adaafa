"""What can be seen of SLURM jobs: one look's answer, read, and what it means for each job. Pure.

Evidence in this order: an end that was written down; the queue; a clean exit marker; accounting; any other marker of
the last run, because a marker cannot tell a preemption from a scancel by hand. SLURM's word alone makes no job
Complete: its marker or its runner's record must say so. A job is gone only when the queue has denied it for long and
nothing else tells of it.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.platforms.markers import EVIDENCE, end_state, kept_end, moment, read_object
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.layout import Layout
from prefect_tao.platforms.slurm.questions import Answer, question
from prefect_tao.platforms.slurm.queue import (
    COLUMNS,
    DECISIVE,
    MAY_REQUEUE,
    OVER,
    SACCT_FIELDS,
    Row,
    account_rows,
    queue_rows,
)
from prefect_tao.platforms.surplus import bearer

# For so long after its end a job may still be put back into the queue by SLURM itself.
REQUEUE_SECONDS = 30.0
NO_ACCOUNTING = "accounting storage is disabled"
# What accounting calls a job of which it has not yet heard all.
_UNNAMED = "allocation"
_MARKED = {"native_id", "restarts", "exit_code", "started", "ended"}
# Of a longer status file only the end is read.
STATUS_BYTES = 1 << 19


@dataclass(frozen=True)
class Wanted:
    """One job to look at: its name, the results of its key, and from when on changes of its status file are new."""

    name: str
    results: str
    native_id: str = ""
    since: int = 0


def look_question(place: Layout, wanted: Sequence[Wanted]) -> str:
    """What to ask a login node about these jobs, in one trip."""
    return question(
        "look",
        jobs=place.jobs,
        wanted=[part for one in wanted for part in (one.name, str(one.since), one.native_id or "-", one.results)],
        queue_format=",".join(f"{name}:{width}" for name, width in COLUMNS.items()),
        id_width=COLUMNS["JobID"],
        name_width=COLUMNS["Name"],
        state_width=COLUMNS["State"],
        over=" ".join(sorted(OVER)),
        accounting_format=",".join(SACCT_FIELDS),
        status_bytes=STATUS_BYTES,
    )


@dataclass
class QueueAnswer:
    """The answer to one look, by job name."""

    now: float = 0.0
    queue_answers: bool = False
    queue_words: str = ""
    accounting_answers: bool = False
    no_accounting: bool = False
    has_base: bool = True
    rows: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    accounted: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    files: dict[tuple[str, str], str] = field(default_factory=dict)
    stops: set[str] = field(default_factory=set)
    staged: set[str] = field(default_factory=set)
    claims: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    ours: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    statuses: dict[str, str] = field(default_factory=dict)

    def rows_of(self, handle: JobHandle) -> list[Row]:
        """The queue's rows of a job. Anybody may use its name: an unknown id counts only when its script is ours."""
        return [row for row in self.rows.get(handle.name, []) if row.id == handle.native_id or row.id in self.ours]

    def id_of(self, handle: JobHandle) -> str:
        """The id of the job that has the name: the one that claimed it, else the first that was noted."""
        return self.claims.get(handle.name) or self.ids.get(handle.name) or handle.native_id


def read_look(answer: Answer) -> QueueAnswer:
    """What a login node has said about jobs, taken apart."""
    look = QueueAnswer()
    for word, fields in answer:
        match word, fields:
            case "now", [seconds]:
                look.now = float(seconds)
            case "queue", [code, rows]:
                look.queue_answers, look.queue_words = code == "0", " ".join(rows.split())
                for row in queue_rows(rows.split("\n")) if look.queue_answers else ():
                    look.rows[row.name].append(row)
            case "accounting", [code, ids, rows]:
                look.accounting_answers = code == "0"
                look.no_accounting = NO_ACCOUNTING in rows
                look.asked.update(ids.split(","))
                for row in account_rows(rows.split("\n")) if look.accounting_answers else ():
                    look.accounted[row.id].append(row)
            case "file", [path, line]:
                look.files[_whose(path)] = line
            case "claim", [name, id]:
                look.claims[name] = id
            case "id", [name, id]:
                look.ids[name] = id
            case "status", [name, text]:
                look.statuses[name] = text
            case "stop", [name]:
                look.stops.add(name)
            case "staged", [name]:
                look.staged.add(name)
            case "ours", [id]:
                look.ours.add(id)
            case "nobase", _:
                look.has_base = False
    return look


def _whose(path: str) -> tuple[str, str]:
    """(job name, file) of a job's file; (key, attempts/n.json) of a record among the results."""
    folder, name = posixpath.split(path)
    if posixpath.basename(folder) == "attempts":
        return posixpath.basename(posixpath.dirname(folder)), name
    return posixpath.basename(folder), name


@dataclass(frozen=True)
class Judged:
    """What a look means for one job. `keep`: this end stands nowhere yet and must be written down."""

    observation: Observation
    keep: bool = False
    surplus: tuple[str, ...] = ()
    nodes: str = ""


def judge(handle: JobHandle, look: QueueAnswer, requeue: bool, denied_for: float, gone_seconds: float) -> Judged | None:
    """The job as it is, or None when nothing is known of it. `denied_for`: how long the queue has not listed it."""
    name = handle.name
    if kept := kept_end(look.files.get((name, layout.END))):
        return Judged(kept)
    marker = _marker(look.files.get((name, layout.EXIT)))
    record = read_object(look.files.get((handle.key, f"{handle.attempt}.json"))) or {}
    record = record if not handle.site or record.get("site") in ("", None, handle.site) else {}
    if not look.queue_answers:
        # A clean end is not undone by a silent queue; anything else may be waiting to be started again.
        return Judged(_ended(None, marker, record)) if marker and _is_clean(marker, record) else None
    row, surplus = bearer(look.rows_of(handle), look.claims.get(name), look.ids.get(name))
    if row is not None:
        return _listed(row, surplus, look, name, marker, record, requeue, gone_seconds)
    if marker and _is_clean(marker, record):
        return Judged(_ended(None, marker, record))
    return _unlisted(handle, look, marker, record, denied_for, gone_seconds)


def _listed(
    row: Row,
    surplus: tuple[str, ...],
    look: QueueAnswer,
    name: str,
    marker: Mapping[str, Any] | None,
    record: Mapping[str, Any] | None,
    requeue: bool,
    gone_seconds: float,
) -> Judged | None:
    state = row.job_state
    if state is None:
        return None
    if not state.terminal:
        asked = name in look.stops
        return Judged(
            Observation(
                state=JobState.CANCELING if asked else state,
                native_state=row.state,
                reason="asked to end" if asked else row.why,
                evidence="squeue",
                started_at=moment(row.started) if state is not JobState.PENDING else None,
                restarts=row.restarts or 0,
            ),
            surplus=surplus,
            nodes=row.nodes,
        )
    if requeue and row.state in MAY_REQUEUE and look.now - (row.ended or look.now) < REQUEUE_SECONDS:
        words = f"{row.state}: SLURM may start it again"
        waiting = Observation(state=JobState.PENDING, native_state=row.state, reason=words, evidence="squeue")
        return Judged(waiting, nodes=row.nodes)
    if marker and (marker.get("native_id") != row.id or marker.get("restarts") != row.restarts):
        marker = None  # of an earlier run of the same job
    if _awaits_proof(row, marker, record, look, gone_seconds):
        words = "over; its exit marker is not visible yet"
        late = Observation(state=JobState.RUNNING, native_state=row.state, reason=words, evidence="squeue")
        return Judged(late, nodes=row.nodes)
    seen = _noted(_ended(row, marker, record, "squeue"), marker, record)
    return Judged(seen.observation, seen.keep, surplus, row.nodes)


def _awaits_proof(
    row: Row, marker: Mapping[str, Any] | None, record: Mapping[str, Any] | None, look: QueueAnswer, gone_seconds: float
) -> bool:
    """Whether the proof that a COMPLETED job has run may still come: shared file systems show news late."""
    proven = _code(marker, record if record and _same_run(record, marker, row) else {}) is not None
    return row.state == "COMPLETED" and not proven and look.now - (row.ended or look.now) < gone_seconds


def _unlisted(
    handle: JobHandle,
    look: QueueAnswer,
    marker: Mapping[str, Any] | None,
    record: Mapping[str, Any] | None,
    denied_for: float,
    gone_seconds: float,
) -> Judged | None:
    """Neither in the queue nor with a clean marker: only accounting can know."""
    if handle.name in look.staged:
        return Judged(
            Observation(
                state=JobState.PENDING,
                native_state="staged",
                reason="its launcher ended before it was submitted; launch again to submit it",
                evidence="the job's folder",
            )
        )
    id, long = look.id_of(handle), denied_for >= gone_seconds
    # By name too, because ids are used again.
    runs = [row for row in look.accounted.get(id, []) if row.name in (handle.name, _UNNAMED)]
    if runs and runs[-1].job_state is not None and runs[-1].job_state.terminal:
        last = runs[-1]
        if marker and (marker["native_id"] != last.id or marker["restarts"] < len(runs) - 1):
            marker = None  # of an earlier run of the same job
        if _awaits_proof(last, marker, record, look, gone_seconds):
            return None
        return Judged(_ended(last, marker, record, "sacct"), keep=True, nodes=last.nodes)
    if marker and (look.no_accounting or not _stopped_from_outside(marker, record)):
        return _noted(_ended(None, marker, record), marker, record)
    denied = look.no_accounting or (look.accounting_answers and id in look.asked)
    if not denied or not long or not handle.site:  # what names no site may be another cluster's
        return None
    if marker:
        return _noted(_ended(None, marker, record), marker, record)
    if runs:
        return None  # accounting is behind
    stopped = handle.name in look.stops
    return Judged(
        Observation(
            state=JobState.CANCELED if stopped else JobState.ERROR,
            native_state="gone",
            reason="SLURM does not know the job any more, and it left no exit marker",
            evidence="squeue and sacct" if look.accounting_answers else "squeue; accounting is off",
            ended_by=EndedBy.CANCEL if stopped else EndedBy.NONE,
            started_at=moment((record or {}).get("started")),
        ),
        keep=True,
    )


def _ended(
    row: Row | None, marker: Mapping[str, Any] | None, record: Mapping[str, Any] | None, evidence: str = ""
) -> Observation:
    record = record if record and _same_run(record, marker, row) else {}
    code = _code(marker, record)
    proven = code is not None
    if not marker and row and row.state != "COMPLETED":
        code = row.exit_code
    ended_by = _ended_by(row, marker, record)
    times = marker or {"started": row.started if row else None, "ended": row.ended if row else None}
    return Observation(
        state=_end_state(ended_by, code, row),
        native_state=row.state if row else "COMPLETED" if code == 0 else "FAILED",
        reason=_reason(row, record, ended_by, proven),
        evidence=EVIDENCE if marker else evidence,
        exit_code=code,
        ended_by=ended_by,
        started_at=moment(times["started"]),
        ended_at=moment(times["ended"]),
        restarts=int(marker["restarts"]) if marker else (row.restarts or 0) if row else 0,
    )


def _code(marker: Mapping[str, Any] | None, record: Mapping[str, Any]) -> int | None:
    """The exit code of the command, as the job itself has left it."""
    code = marker["exit_code"] if marker else record.get("exit_code")
    return code if isinstance(code, int) else None


def _stopped_from_outside(marker: Mapping[str, Any], record: Mapping[str, Any] | None) -> bool:
    """Whether somebody ended the job, of whom only SLURM knows who it was."""
    ended = _ended(None, marker, record)
    return ended.ended_by is EndedBy.PREEMPT or (ended.ended_by is EndedBy.NONE and (ended.exit_code or 0) > 128)


def _same_run(record: Mapping[str, Any], marker: Mapping[str, Any] | None, row: Row | None) -> bool:
    id, restarts = record.get("native_id"), record.get("restarts")
    if marker:
        return bool(id == marker["native_id"] and restarts == marker["restarts"])
    return row is not None and id == row.id and row.restarts in (None, restarts)


def _ended_by(row: Row | None, marker: Mapping[str, Any] | None, record: Mapping[str, Any]) -> EndedBy:
    """SLURM's own word first, then the runner's, which knows why it stopped the command."""
    if row and row.state in DECISIVE:
        return row.ended_by
    for source in (record, marker or {}):
        if source.get("ended_by", "none") != "none":
            return EndedBy(source["ended_by"])
    return EndedBy.NONE


def _end_state(ended_by: EndedBy, code: int | None, row: Row | None) -> JobState:
    state = end_state(ended_by, code, canceled=(EndedBy.CANCEL, EndedBy.PREEMPT))
    failed = row is not None and row.job_state is not JobState.COMPLETE
    return JobState.ERROR if failed and state is JobState.COMPLETE else state


def _reason(row: Row | None, record: Mapping[str, Any], ended_by: EndedBy, proven: bool) -> str:
    if record.get("error"):
        return str(record["error"])
    if row and row.state == "COMPLETED" and not proven:
        return "SLURM calls it COMPLETED, but it left no exit marker: nothing shows that its command has run"
    said = row.reason if row and row.reason not in ("None", "NonZeroExitCode") else ""
    return said or ended_by.words


def _is_clean(marker: Mapping[str, Any], record: Mapping[str, Any] | None) -> bool:
    ended = _ended(None, marker, record)
    return ended.state is JobState.COMPLETE


def _noted(seen: Observation, marker: Mapping[str, Any] | None, record: Mapping[str, Any] | None) -> Judged:
    """An end that the marker alone tells in full needs no further note."""
    return Judged(seen, keep=not (marker and seen.state is JobState.COMPLETE))


def _marker(text: str | None) -> dict[str, Any] | None:
    found = read_object(text)
    return found if found and found.keys() >= _MARKED else None
