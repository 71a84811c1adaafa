"""The outcome of a step: how it ended, why, and where its results are."""

from __future__ import annotations

import heapq
import posixpath
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Listing, Platform
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import POLICIES, Category, Verdict
from prefect_tao.runner.inside.checkpoints import CHECKPOINTS, NOT_OURS, checkpoint_rank

DEPTH = 4
MAX_FILES = 500
MAX_ENTRIES = 20_000
LAST_LINES, LAST_LENGTH = 10, 4000
OWN_LINES = "[prefect-tao]"  # the runner's
NOT_RESULTS = ("attempts", *NOT_OURS)


class Outcome(BaseModel):
    """What a step leaves behind, as JSON: the persisted result of its task, so `files` names a bounded part of them.

    `file_count` counts all files that were found; `all_listed` says whether every folder could be looked into.
    `last_words` are the last lines of a job that ended well and reported no progress: they may be all that it is for.
    """

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
    file_count: int = 0
    all_listed: bool = True
    earlier_seconds: float = 0.0
    last_words: str = ""

    @property
    def total_seconds(self) -> float:
        """How long all attempts ran, as far as it is known: what the step has cost."""
        return self.earlier_seconds + (self.seconds or 0.0)

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
    listing = await _listing(platform, handle.results.rstrip("/"))
    return Outcome(
        handle=handle,
        state=seen.state,
        verdict=verdict,
        progress=seen.progress,
        exit_code=seen.exit_code,
        started_at=seen.started_at,
        ended_at=seen.ended_at,
        results=handle.results,
        files=tuple(_kept(listing.files)),
        file_count=len(listing.files),
        all_listed=listing.whole,
        earlier_seconds=await _earlier_seconds(platform, handle),
    )


async def with_last_words(platform: Platform, outcome: Outcome) -> Outcome:
    """The outcome with the last lines of a job that may have run for them; for one of many they cost too much."""
    if outcome.verdict is not None or outcome.progress is not None:
        return outcome
    try:
        text = (await platform.logs(outcome.handle, tail=LAST_LINES)).text
    except (Unreachable, OSError):
        return outcome
    lines = [line for line in text.splitlines() if not line.startswith(OWN_LINES)]
    return outcome.model_copy(update={"last_words": "\n".join(lines)[-LAST_LENGTH:]})


async def _earlier_seconds(platform: Platform, handle: JobHandle) -> float:
    """How long the attempts before this one ran, as far as the platform still knows."""
    if handle.attempt == 1:
        return 0.0
    try:
        attempts = (await platform.find([handle.key])).get(handle.key, [])
        earlier = [one for one in attempts if one.attempt < handle.attempt]
        seen = await platform.observe(earlier) if earlier else {}
    except (Unreachable, OSError):
        return 0.0
    spans = [(one.started_at, one.ended_at) for one in seen.values()]
    return sum((end - start).total_seconds() for start, end in spans if start and end)


async def _listing(platform: Platform, results: str) -> Listing:
    try:
        return (
            await platform.list_files(results, DEPTH + 1, MAX_ENTRIES, NOT_RESULTS) if results else Listing((), False)
        )
    except (Unreachable, InvalidInput, OSError):
        return Listing((), False)  # the job is over either way; its results are still where the handle says


def _kept(files: Sequence[str]) -> list[str]:
    """The files worth naming: checkpoints first, of too many the newest, then the others, each in listing order."""
    checkpoints = [path for path in files if path.endswith(CHECKPOINTS)]
    newest = set(heapq.nlargest(MAX_FILES, checkpoints, key=_worth))
    others = (path for path in files if not path.endswith(CHECKPOINTS))
    return [*(path for path in checkpoints if path in newest), *others][:MAX_FILES]


def _worth(path: str) -> tuple[Any, ...]:
    """Orders checkpoints: by training position, but above all the best one and those that are called latest."""
    name = posixpath.basename(path).lower()
    known, *position = checkpoint_rank(name, path)
    return (not known or "best" in name, *position)


def judged(outcome: Outcome, action: str | None) -> Outcome:
    """The outcome of a job that is complete by its own account; an error where that account is in doubt."""
    verdict = doubt(outcome, action)
    return outcome.model_copy(update={"state": JobState.ERROR, "verdict": verdict}) if verdict else outcome


def doubt(outcome: Outcome, action: str | None) -> Verdict | None:
    """Why an exit code of 0 is not a success after all, or None. Only a training with a status file can be doubted."""
    progress = outcome.progress
    if action != "train" or progress is None:
        return None
    if progress.not_finite:
        return _program(
            f"the training ended with exit code 0, but {', '.join(progress.not_finite)} is not a number any more",
            "lower the learning rate or check the data; the last checkpoints are useless",
        )
    if not (progress.epoch or progress.step or progress.history):
        return _program(
            "the training ended with exit code 0 without a single step",
            "check that the dataset is not empty, that a batch fits in it, and that no finished checkpoint is resumed",
        )
    if not outcome.checkpoints and outcome.all_listed:  # what could not be listed may well be there
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
