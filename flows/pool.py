"""A pool of trials: jobs of one target, as many at once as there is room for, and new ones at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.utilities.annotations import quote

from prefect_tao.flows.steps import together, told
from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.errors import Detached, JobCanceled, JobFailed
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.verdict import Category
from prefect_tao.launch.parameters.declared import OnFailure
from prefect_tao.tasks.actions import task_of
from prefect_tao.tasks.cancellation import canceling, root_id
from prefect_tao.tasks.targets.opening import open_target


@dataclass(frozen=True)
class Trial:
    """One job to run; `after` are the tasks that it is drawn after in the run graph.

    `page_seconds` is how often its page is drawn; with 0 it has none.
    A trial that goes on from another one's checkpoint is a request whose spec names that checkpoint.
    """

    name: str
    request: JobRequest
    key: str
    label: str
    after: tuple[State[Any], ...] = ()
    page_seconds: float = 0.0


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended: Complete, Error, Canceled, or Skipped when it never began; and what there is of its job."""

    state: StepState
    outcome: Outcome | None = None
    message: str = ""

    @property
    def category(self) -> Category | None:
        """Why its job failed, where that is known: one that was preempted says nothing about the values it tried."""
        return self.outcome.verdict.category if self.outcome and self.outcome.verdict else None


# Hears of each trial when it begins, and how it ended.
Note = Callable[[Trial, TrialEnd | None], Awaitable[None]]


class Pool:
    """Runs trials, one Prefect task each. Once it is stopped, trials that wait do not begin; those that run go on."""

    def __init__(self, target: str, note: Note, minutes: float = 5.0, on_failure: OnFailure = "continue") -> None:
        self._target = target
        self._note = note
        self._minutes = minutes
        self._on_failure = on_failure
        self._room: AbstractAsyncContextManager[Any] = nullcontext()
        self._failed: dict[str, Trial] = {}
        self.why_stopped = ""

    async def limit(self, most: int | None) -> None:
        """Run at most so many at once; None leaves that to the target."""
        most = most or (await open_target(self._target)).platform.jobs_at_once
        self._room = asyncio.Semaphore(most) if most else nullcontext()

    def stop(self, why: str) -> None:
        """Begin no further trial; the first reason counts."""
        self.why_stopped = self.why_stopped or why

    async def run(self, trial: Trial) -> TrialEnd:
        """Run one trial to its end when there is room. May be called at any time, while others run."""
        async with self._room:
            if self.why_stopped:
                end = TrialEnd(StepState.SKIPPED, message=f"not begun, because {self.why_stopped}")
            else:
                await self._note(trial, None)
                end = await self._run(trial)
            self._judge(trial, end)
            await self._note(trial, end)
        return end

    async def run_all(self, trials: list[Trial]) -> None:
        """Run all of these, and with the policy `retry` those that failed once more when all are over."""
        await self._together(trials)
        again = list(self._failed.values())
        if again and self._on_failure == "retry" and not self.why_stopped:
            get_run_logger().info("%d failed and are tried once more", len(again))
            await self._together(again)

    async def _together(self, trials: list[Trial]) -> None:
        async with together() as group:
            for trial in trials:
                group.create_task(self.run(trial))

    async def _run(self, trial: Trial) -> TrialEnd:
        try:
            # Quoted, so that Prefect does not look for the results of other tasks in it: that takes its time.
            state: State[Outcome] = await task_of(trial.request)(
                quote(trial.request),
                self._target,
                trial.key,
                trial.label,
                self._minutes,
                page_seconds=trial.page_seconds,
                why_not=self._why_not,
                wait_for=list(trial.after),
                return_state=True,
            )
            outcome = await state.aresult()
        except Detached:
            raise
        except JobCanceled as error:
            if not error.begun:
                return TrialEnd(StepState.SKIPPED, message=str(error))
            # One job that was cancelled by its name is one trial; a run that is cancelled is all of them.
            await self._why_not()
            return TrialEnd(StepState.CANCELED, message=str(error))
        except Exception as error:
            left = error.outcome if isinstance(error, JobFailed) else None
            return TrialEnd(StepState.ERROR, left, told(error))
        return TrialEnd(StepState.COMPLETE, outcome)

    def _judge(self, trial: Trial, end: TrialEnd) -> None:
        self._failed.pop(trial.name, None)
        if end.state is StepState.ERROR:
            self._failed[trial.name] = trial
            if self._on_failure == "stop":
                self.stop("another point failed")

    async def _why_not(self) -> str:
        """Why a trial that waits for room is not to begin any more."""
        if not self.why_stopped and await canceling(root_id())():
            self.stop("the run was cancelled")
        return self.why_stopped
