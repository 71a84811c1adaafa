"""What a job leaves behind, read: its exit marker, its attempt record, and an end that was written down. Pure.

The runner writes one record per attempt among the results; once that holds `ended` it is the exit marker. Another
version may have written it, or a full disk may have cut it short: what cannot be understood counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.statusfile import Progress, parse_status
from prefect_tao.jobs.target import Target

EVIDENCE = "exit marker"
# The site of a job whose record was written before records named one, or is not whole.
UNNAMED = "a site that its record does not name"
LONGEST_SITE = 200
MAX_RECORD = 1 << 20  # a larger file is not one of a runner
Record = Mapping[str, Any]


def read_object(text: str | bytes | None) -> dict[str, Any] | None:
    """The object that a text holds; None for a text that is not whole, or not an object."""
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_record(text: str | bytes | None) -> dict[str, Any] | None:
    """The attempt record in a text; None where it tells of an end in words that we do not know."""
    found = read_object(text)
    return found if found and (not has_ended(found) or _is_sound(found)) else None


def _is_sound(record: Record) -> bool:
    return record.get("ended_by") in list(EndedBy) and isinstance(record.get("exit_code"), int)


def has_ended(record: Record | None) -> bool:
    """Whether the record is an exit marker."""
    return bool(record) and "ended" in (record or {})


def is_of(record: Record, native_id: str, site: str = "") -> bool:
    """Whether the record is of this very job; what is not known of either cannot deny it."""
    pairs = ((record.get("native_id"), native_id), (record.get("site"), site))
    return all(not told or not known or told == known for told, known in pairs)


def left_by(handle: JobHandle, record: Record | None, own_site: str) -> JobHandle:
    """The handle of a job of which only its record tells: it is where that says, and ours only if that says so.

    Jobs can write to their records, so what stands there is checked before a person gets to see it.
    """
    told = record or {}
    site = str(told.get("site") or "")
    if not site.isprintable() or len(site) > LONGEST_SITE:
        site = ""
    target = str(told.get("target") or "") if site != own_site else ""
    return handle.model_copy(
        update={
            "native_id": str(told.get("native_id") or handle.native_id),
            "site": site or UNNAMED,
            "target": target if Target.is_one(target) else handle.target,
        }
    )


def moment(seconds: Any) -> datetime | None:
    """A moment as records and schedulers write it down."""
    return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, (int, float)) else None


def end_state(ended_by: EndedBy, code: int | None, canceled: Collection[EndedBy] = (EndedBy.CANCEL,)) -> JobState:
    """The end of a job whose command ended with `code`; `canceled` are the endings that the platform calls Canceled."""
    if ended_by in canceled:
        return JobState.CANCELED
    return JobState.COMPLETE if code == 0 and ended_by is EndedBy.NONE else JobState.ERROR


def progress_in(record: Record | None) -> Progress | None:
    """How far the job came, where its record ends with the last lines of its status file."""
    lines = (record or {}).get("status")
    return parse_status("\n".join(map(str, lines))) if isinstance(lines, list) else None


def ended(
    record: Record, native_state: str, started: datetime | None = None, ended_at: datetime | None = None
) -> Observation:
    """The end as the exit marker tells it; times of the platform's own are more exact than the runner's."""
    ended_by, code = EndedBy(record["ended_by"]), int(record["exit_code"])
    return Observation(
        state=end_state(ended_by, code),
        native_state=native_state,
        reason=str(record.get("error") or ended_by.words),
        evidence=EVIDENCE,
        exit_code=code,
        ended_by=ended_by,
        started_at=started or moment(record.get("started")),
        ended_at=ended_at or moment(record["ended"]),
        progress=progress_in(record),
    )


def kept_end(text: str | bytes | None) -> Observation | None:
    """An end that was written down beside the job; None when there is none, or another version wrote it."""
    try:
        return Observation.model_validate_json(text) if text else None
    except ValidationError:
        return None
