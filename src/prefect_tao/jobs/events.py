"""What happens to jobs, chains and sweeps, as small facts that listeners hear in the order in which they happen."""

from __future__ import annotations

from dataclasses import dataclass

from prefect_tao.jobs.chain_outcome import StepOutcome
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.points import PointOutcome, SweepOutcome
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import Verdict


@dataclass(frozen=True)
class RunBegan:
    """A flow run has begun; everything that follows belongs to it, or to one that it has begun itself."""

    flow_run_id: str


@dataclass(frozen=True)
class StateChanged:
    """The job's state, or what is known of it, is another one."""

    handle: JobHandle
    seen: Observation


@dataclass(frozen=True)
class Progressed:
    """Training went on."""

    handle: JobHandle
    progress: Progress


@dataclass(frozen=True)
class LogWritten:
    """New output of the job; sent only when a listener wants logs."""

    handle: JobHandle
    text: str


@dataclass(frozen=True)
class JobFound:
    """Something to know about a job that was found instead of launched."""

    handle: JobHandle
    finding: Finding


@dataclass(frozen=True)
class RetryPlanned:
    """The attempt ended, and another one follows in `delay` seconds."""

    handle: JobHandle
    verdict: Verdict
    delay: float


@dataclass(frozen=True)
class JobEnded:
    """All attempts of the job are over, and this is what came of it."""

    outcome: Outcome


@dataclass(frozen=True)
class StepChanged:
    """A step of a chain started, ended or was skipped."""

    step: StepOutcome


@dataclass(frozen=True)
class SweepStarted:
    """A sweep begins with these points."""

    board: SweepOutcome


@dataclass(frozen=True)
class PointChanged:
    """A point of a sweep started, ended or was skipped."""

    point: PointOutcome


Event = (
    RunBegan
    | StateChanged
    | Progressed
    | LogWritten
    | JobFound
    | RetryPlanned
    | JobEnded
    | StepChanged
    | SweepStarted
    | PointChanged
)
