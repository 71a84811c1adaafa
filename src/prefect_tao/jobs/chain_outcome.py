"""How the steps of a chain ended, as JSON: the persisted result of the flow."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from prefect_tao.jobs.clock import now
from prefect_tao.jobs.errors import JobFailed
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.verdict import Verdict


class StepState(StrEnum):
    """Where a step stands."""

    WAITING = "Waiting"
    RUNNING = "Running"
    COMPLETE = "Complete"
    ERROR = "Error"
    CANCELED = "Canceled"
    SKIPPED = "Skipped"


def gpu_hours(seconds: float, gpus: int) -> float:
    """What a job has cost."""
    return seconds * gpus / 3600


def waited(begun_at: datetime | None, outcome: Outcome | None) -> float | None:
    """Seconds between a launch and the start of its job; nothing is known of one that was attached to."""
    if begun_at is None or outcome is None or outcome.started_at is None or outcome.started_at < begun_at:
        return None
    return (outcome.started_at - begun_at).total_seconds()


class StepOutcome(BaseModel):
    """One step: its state, what came of it, and why it failed or was skipped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    target: str
    after: tuple[str, ...] = ()
    state: StepState = StepState.WAITING
    outcome: Outcome | None = None
    message: str = ""
    verdict: Verdict | None = None
    gpus: int = 0
    begun_at: datetime | None = None

    @property
    def gpu_hours(self) -> float:
        """What all its attempts have cost, as far as it is known."""
        return gpu_hours(self.outcome.total_seconds if self.outcome else 0.0, self.gpus)

    @property
    def waited(self) -> float | None:
        """Seconds from the launch to the start of its job."""
        return waited(self.begun_at, self.outcome)

    @property
    def ended_well(self) -> bool:
        """Whether others can go on from it."""
        return self.state is StepState.COMPLETE

    def running(self, gpus: int = 0) -> StepOutcome:
        """The step, now at work with so many GPUs in all."""
        return self.model_copy(update={"state": StepState.RUNNING, "gpus": gpus, "begun_at": now()})

    def complete(self, outcome: Outcome) -> StepOutcome:
        """The step, ended well."""
        return self.model_copy(update={"state": StepState.COMPLETE, "outcome": outcome})

    def failed(self, error: Exception, state: StepState = StepState.ERROR, message: str = "") -> StepOutcome:
        """The step, and what went wrong, in other words than its own where they are given."""
        verdict, outcome = (error.verdict, error.outcome) if isinstance(error, JobFailed) else (None, None)
        words = message or str(error)
        return self.model_copy(update={"state": state, "message": words, "verdict": verdict, "outcome": outcome})

    def skipped(self, because_of: list[str]) -> StepOutcome:
        """The step, not begun because of others."""
        words = f"not begun, because {', '.join(because_of)} did not end well"
        return self.model_copy(update={"state": StepState.SKIPPED, "message": words})


class ChainOutcome(BaseModel):
    """All steps, in the order in which they were planned."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: tuple[StepOutcome, ...]

    def __getitem__(self, name: str) -> StepOutcome:
        return next(step for step in self.steps if step.name == name)

    @property
    def bad(self) -> list[StepOutcome]:
        """Those that did not end well."""
        return [step for step in self.steps if not step.ended_well]
