"""Where a job stands, and what said so."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from prefect_tao.jobs.clock import now
from prefect_tao.jobs.statusfile import Progress


class JobState(StrEnum):
    """The states a job can be in, the same words on every platform."""

    PENDING = "Pending"
    RUNNING = "Running"
    PAUSED = "Paused"
    CANCELING = "Canceling"
    COMPLETE = "Complete"
    ERROR = "Error"
    CANCELED = "Canceled"
    UNREACHABLE = "Unreachable"

    @property
    def terminal(self) -> bool:
        """Whether the job is over; a terminal state never changes again."""
        return self in (JobState.COMPLETE, JobState.ERROR, JobState.CANCELED)


class EndedBy(StrEnum):
    """Why the command was stopped from outside; it outranks the exit code."""

    NONE = "none"
    TIME_LIMIT = "time_limit"
    CANCEL = "cancel"
    PREEMPT = "preempt"

    @property
    def words(self) -> str:
        """As a person reads it."""
        return _ENDED_WORDS[self]


_ENDED_WORDS = {
    EndedBy.NONE: "",
    EndedBy.TIME_LIMIT: "stopped at its time limit",
    EndedBy.CANCEL: "cancelled on request",
    EndedBy.PREEMPT: "stopped to make room",
}


class Observation(BaseModel):
    """What was seen of one job at one moment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: JobState
    native_state: str = ""
    reason: str = ""
    evidence: str = ""
    since: datetime = Field(default_factory=now)
    exit_code: int | None = None
    ended_by: EndedBy = EndedBy.NONE
    started_at: datetime | None = None
    ended_at: datetime | None = None
    restarts: int = 0
    # Made and never started: its launcher may be gone, and to submit under its name again completes it.
    unstarted: bool = False
    progress: Progress | None = None

    def same_as(self, other: Observation | None) -> bool:
        """Whether nothing a person would notice differs, times of looking apart."""
        return other is not None and self.model_dump(exclude={"since"}) == other.model_dump(exclude={"since"})
