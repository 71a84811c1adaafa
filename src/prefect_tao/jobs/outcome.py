"""The outcome of a step: how it ended, why, and where its results are."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import POLICIES, Category, Verdict
from prefect_tao.runner.program import CHECKPOINTS

DEPTH = 4
NOT_RESULTS = ("attempts", "inputs", "ptm")


class Outcome(BaseModel):
    """What a step leaves behind, as JSON: the persisted result of its task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    handle: JobHandle
    state: JobState
    verdict: Verdict | None = None
    progress: Progress | None = None
    exit_code: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    results: str = ""
    files: tuple[str, ...] = ()

    @property
    def seconds(self) -> float | None:
        """How long the last attempt ran."""
        return (self.ended_at - self.started_at).total_seconds() if self.started_at and self.ended_at else None

    @property
    def checkpoints(self) -> list[str]:
        """The checkpoint files among the results."""
        return [path for path in self.files if path.endswith(CHECKPOINTS)]

    @property
    def metrics(self) -> dict[str, float]:
        """The last metrics that the job reported."""
        return self.progress.metrics if self.progress else {}


async def collect(platform: Platform, handle: JobHandle, seen: Observation, verdict: Verdict | None = None) -> Outcome:
    """What the job left, once it is over."""
    files: list[str] = []
    try:
        if handle.results and await platform.check_path(handle.results):
            files = await _files(platform, handle.results.rstrip("/"), DEPTH)
    except Unreachable:
        pass  # the job is over either way; its results are still where the handle says
    return Outcome(
        handle=handle,
        state=JobState.ERROR if verdict and seen.state is JobState.COMPLETE else seen.state,
        verdict=verdict,
        progress=seen.progress,
        exit_code=seen.exit_code,
        started_at=seen.started_at,
        ended_at=seen.ended_at,
        results=handle.results,
        files=tuple(files),
    )


async def _files(platform: Platform, folder: str, depth: int) -> list[str]:
    found = []
    for entry in await platform.list_path(folder):
        if not entry.endswith("/"):
            found.append(entry)
        elif depth and entry.rstrip("/").rpartition("/")[2] not in NOT_RESULTS:
            found += await _files(platform, entry.rstrip("/"), depth - 1)
    return found


def doubt(request: JobRequest, outcome: Outcome) -> Verdict | None:
    """Why an exit code of 0 is no success after all, or None. Only a training with a status file can be doubted."""
    progress = outcome.progress
    if request.action != "train" or progress is None:
        return None
    if progress.not_finite:
        return _program(
            f"the training ended with exit code 0, but {', '.join(progress.not_finite)} is not a number any more",
            "lower the learning rate or check the data; the last checkpoints are of no use",
        )
    if not (progress.epoch or progress.step or progress.history):
        return _program(
            "the training ended with exit code 0 without a single step",
            "check that the dataset is not empty, that a batch fits in it, and that no finished checkpoint is resumed",
        )
    if not outcome.checkpoints:
        return _program(
            "the training ended with exit code 0 but left no checkpoint",
            "check the checkpoint interval against the number of epochs",
        )
    return None


def _program(cause: str, remedy: str) -> Verdict:
    policy = POLICIES[Category.PROGRAM]
    return Verdict(
        category=Category.PROGRAM,
        err_class=policy.err_class,
        cause=cause,
        remedy=remedy,
        retryable=policy.retryable,
        exit_code=0,
        evidence="status file",
    )
