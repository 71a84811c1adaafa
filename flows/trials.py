"""The trials of one search: asked for as soon as there is room, told to the study as they end, stopped by budgets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prefect import get_run_logger

from prefect_tao.flows.evaluations import evaluation_of
from prefect_tao.flows.pool import Pool, Trial, TrialEnd
from prefect_tao.flows.search_place import SearchPlace
from prefect_tao.flows.steps import together
from prefect_tao.flows.trial_launches import trial_of
from prefect_tao.jobs.chain_outcome import StepState, gpu_hours
from prefect_tao.jobs.clock import now
from prefect_tao.jobs.errors import InvalidInput, JobFailed, TaoError
from prefect_tao.jobs.events import Event, Progressed, StateChanged
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.listening import Listener
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.scoring import Score, chosen, curve
from prefect_tao.jobs.search_outcome import TrialOutcome
from prefect_tao.preflight.plans.searches import PlannedSearch
from prefect_tao.preflight.plans.sweep_plan import Point
from prefect_tao.preflight.resolve.handoffs import whole_file
from prefect_tao.runner.inside.checkpoints import CHECKPOINTS
from prefect_tao.tasks.artifacts.search_page import SearchPage
from prefect_tao.tasks.stopping import why_stopped
from prefect_tao.tasks.study_records import NOT_ITS_FAULT
from prefect_tao.tasks.trial_scores import read_scores

if TYPE_CHECKING:
    from prefect_tao.searching.study import Proposal, Study

LOOK_SECONDS, ASK_SECONDS = 1.0, 5.0


@dataclass
class _Life:
    """A trial that runs: its proposal, its job once there is one, and what its curve has told so far."""

    proposal: Proposal
    key: str
    evaluation: str = ""  # the key of the job that it is judged by, once that is launched
    handle: JobHandle | None = None
    started_at: float | None = None
    told: dict[int, float] = field(default_factory=dict)
    is_behind: bool = False


class Trials(Listener):
    """Leads a search to its end. `outcomes` are what the trials of this process left, by number."""

    def __init__(self, search: PlannedSearch, study: Study, board: SearchPage, place: SearchPlace) -> None:
        self.search = search
        self.study = study
        self.board = board
        self.place = place
        self.pool = Pool(place.target, self.note, place.minutes)
        self.outcomes: dict[int, Outcome] = {}
        self.fault: JobFailed | None = None
        self._lives: dict[str, _Life] = {}
        self._endings: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._is_reported = any(one.is_scored for one in study.history)

    @property
    def why_stopped(self) -> str:
        """Why no further trial begins, where anything but the study says so."""
        return self.pool.why_stopped

    async def run(self) -> None:
        """All trials: those that an earlier process has begun first, then what the study proposes."""
        await self.pool.limit(self.search.budget.concurrent)
        async with self._guarded(), together() as group:
            for proposal in self.study.running:
                self._start(group, proposal)
            while self._ask(group) or self._lives:
                self._changed.clear()
                await self._changed.wait()

    def _ask(self, group: asyncio.TaskGroup) -> bool:
        """Begin as many as there is room for: each proposal knows all that was told before it."""
        begun = False
        while len(self._lives) < self.search.budget.concurrent and not self.why_stopped:
            proposal = self.study.ask()
            if proposal is None:
                break
            self._start(group, proposal)
            begun = True
        return begun

    def _start(self, group: asyncio.TaskGroup, proposal: Proposal) -> None:
        step, known = self.place.trial_step(proposal.number), self.study.history[proposal.number]
        self._lives[step] = _Life(proposal, "", told=dict(known.curve), is_behind=known.stop is not None)
        group.create_task(self._live(step))

    async def _live(self, step: str) -> None:
        life = self._lives[step]
        try:
            one = life.proposal
            checkpoint = None if one.parent is None else await self._checkpoint(one.parent)
            trial = trial_of(self.search, self.place, one, self.study.history[one.number].origin, checkpoint)
            life.key = trial.key
            end = await self.pool.run(trial)
            life.is_behind &= end.state is not StepState.COMPLETE  # it was faster than its end
            judge = await self._evaluated(life, end.outcome) if self._is_evaluated(end) else end
            await self._tell(life, end, judge)
            await self.board.note(self._row(life, end, judge))
        except InvalidInput as error:  # a proposal that the schema refuses after all
            self.study.tell(life.proposal.number, None, str(error))
        finally:
            del self._lives[step]
            self._changed.set()

    def _is_evaluated(self, end: TrialEnd) -> bool:
        return bool(self.search.given["evaluate_trials"]) and end.state is StepState.COMPLETE

    async def _evaluated(self, life: _Life, left: Outcome | None) -> TrialEnd:
        """The end of the evaluation that a trial is judged by."""
        assert left is not None  # noqa: S101 - it is complete
        one = life.proposal
        step = self.place.evaluation_step(one.number)
        try:
            job = evaluation_of(self.search, left, one.values, self.place, step)
        except InvalidInput as error:  # wrong for one trial is wrong for all
            self._give_up(f"trials cannot be evaluated: {error.cause}", error.remedy)
            return TrialEnd(StepState.SKIPPED, message=error.cause)
        life.evaluation = job.key
        return await self.pool.run(job)

    async def _checkpoint(self, parent: int) -> str | None:
        """The newest checkpoint of the trial that is gone on from; without one, the epochs are paid for again."""
        outcome = await self.outcome(parent)
        newest = whole_file(outcome, CHECKPOINTS) if outcome else None
        if newest is None:
            get_run_logger().warning("trial %d left no checkpoint, so its successor starts from scratch", parent)
        return newest

    async def outcome(self, number: int) -> Outcome | None:
        """What a trial left, also one of an earlier process."""
        if number not in self.outcomes and (found := await self.board.collected(number, self.place.platform)):
            self.outcomes[number] = found
        return self.outcomes.get(number)

    # -- what becomes of it --------------------------------------------------------------------------------------------

    async def note(self, trial: Trial, end: TrialEnd | None) -> None:
        """Show a trial that begins; its end is shown when it is told."""
        life = self._lives.get(trial.name)  # an evaluation is part of its trial
        if end is None and life is not None:
            self.board.keys[trial.name] = trial.key
            await self.board.note(self._new_row(life, trial).running())

    def _new_row(self, life: _Life, trial: Trial) -> TrialOutcome:
        one = life.proposal
        return TrialOutcome(
            name=trial.name,
            label=Point(dict(one.values)).label,
            overrides=dict(one.values),
            gpus=trial.request.resources.total_gpus,
            number=one.number,
            configuration=one.configuration,
            rung=one.rung,
            epochs=one.epochs,
            parent=one.parent,
        )

    def _row(self, life: _Life, end: TrialEnd, judge: TrialEnd) -> TrialOutcome:
        """The trial's row at its end, as the study knows it; its evaluation is part of what it took."""
        name = self.place.trial_step(life.proposal.number)
        row = self.board.trial(name).ended(end.state, end.message, end.outcome)
        if judge is not end and judge.outcome is not None:
            row = row.model_copy(update={"total_seconds": row.total_seconds + judge.outcome.total_seconds})
        return self.board.scored(row, self.study.history[life.proposal.number])  # type: ignore[arg-type]

    async def _tell(self, life: _Life, end: TrialEnd, judge: TrialEnd) -> None:
        """Tell the study: a score, a failure, or nothing where the machines or a person ended it."""
        number = life.proposal.number
        if end.outcome is not None:
            self.outcomes[number] = end.outcome
        if judge.state is StepState.COMPLETE and judge.outcome is not None:
            self._report(life, end.outcome or judge.outcome)
            await self._tell_score(number, judge.outcome)
        elif life.is_behind and life.told and judge.state is StepState.CANCELED:
            self.study.tell(number, self._score(life))
        elif judge.state is StepState.ERROR and not not_its_fault(judge):
            self.study.tell(number, None, judge.message.splitlines()[0])
        elif judge.state is StepState.CANCELED and not self.why_stopped:
            self.study.tell(number, None, "cancelled by a person")
        else:
            self.study.withdraw(number, judge.message.partition("\n")[0])

    async def _tell_score(self, number: int, outcome: Outcome) -> None:
        scores = await read_scores(self.place.platform, outcome, self.search)
        missing = [metric for metric, score in scores.items() if score is None]
        if missing:
            self.study.tell(number, None, f"it did not report {', '.join(missing)}")
            if not self._is_reported:  # what the first trial does not report will not come from the last one either
                known = ", ".join(sorted(outcome.metrics)) or "no metric at all"
                words = f"the first trial that ended reported {known}, and not {', '.join(missing)}"
                self._give_up(words, "name what trials report with --metric, or where it is with --metric-file")
            return
        self._is_reported = True
        values = tuple(score.value for score in scores.values() if score is not None)
        self.study.tell(number, values if len(values) > 1 else values[0], in_full=True)

    def _give_up(self, cause: str, remedy: str) -> None:
        self.fault = JobFailed(cause, remedy)
        self.stop(cause)

    # -- while trials run ----------------------------------------------------------------------------------------------

    async def hear(self, event: Event) -> None:
        """Which job a trial has, and how its metric goes; one that stays behind is ended."""
        if not isinstance(event, StateChanged | Progressed):
            return
        key = event.handle.key
        life = next((one for one in self._lives.values() if key in (one.key, one.evaluation)), None)
        if life is None:
            return
        life.handle = event.handle
        if key != life.key:
            return
        if isinstance(event, StateChanged):
            seen = event.seen
            life.started_at = seen.started_at.timestamp() if seen.started_at else life.started_at
            return
        outcome = Outcome(handle=event.handle, state="Running", progress=event.progress)
        if not self._report(life, outcome) and not life.is_behind:
            life.is_behind = True  # it is ended by the guard: a platform may take longer for it than a listener has
            get_run_logger().info("trial %d falls behind and is stopped", life.proposal.number)

    def _report(self, life: _Life, outcome: Outcome) -> bool:
        """Tell the study of new epochs; False as soon as it wants no more of them."""
        objective, wanted = self.search.objectives[0], True
        for value, epoch in curve(outcome.progress, objective.metric):
            if epoch is not None and epoch not in life.told:
                life.told[epoch] = value
                wanted = self.study.report(life.proposal.number, epoch, value) and wanted
        return wanted

    def _score(self, life: _Life) -> float:
        scores = [Score(value, epoch) for epoch, value in life.told.items()]
        counts = chosen(scores, self.search.objectives[0].direction, self.search.given["score_epoch"])
        assert counts is not None  # noqa: S101 - the caller has looked
        return counts.value

    def stop(self, why: str) -> None:
        """Begin nothing more, and end what runs."""
        if not self.why_stopped:
            get_run_logger().warning("the search stops: %s", why)
        self.pool.stop(why)
        self._changed.set()

    @asynccontextmanager
    async def _guarded(self) -> AsyncIterator[None]:
        """Within the block budgets are looked at; once one is spent, or a person says so, the trials that run end."""
        guard = asyncio.create_task(self._guard())
        try:
            yield
        finally:
            for task in (guard, *self._endings.values()):
                task.cancel()

    async def _guard(self) -> None:
        asked = 0.0
        while True:
            if not self.why_stopped and (why := self._spent()):
                self.stop(why)
            if not self.why_stopped and time.monotonic() - asked > ASK_SECONDS:
                asked = time.monotonic()
                if why := await why_stopped():
                    self.stop(why)
            self._end_those_due()
            await asyncio.sleep(LOOK_SECONDS)

    def _end_those_due(self) -> None:
        """Begin to end what is behind, and all that runs once the search stops; what ends already is left to that."""
        due = [life.handle for life in self._lives.values() if life.handle and (self.why_stopped or life.is_behind)]
        fresh = [one for one in due if one.name not in self._endings or self._endings[one.name].done()]
        if fresh:
            self._endings |= dict.fromkeys((one.name for one in fresh), asyncio.create_task(self._end(fresh)))

    async def _end(self, handles: Sequence[JobHandle]) -> None:
        """End jobs; what could not be ended now is looked at again, as long as its trial runs."""
        try:
            await self.place.platform.cancel(handles)
        except TaoError as error:
            get_run_logger().warning("trials could not be ended: %s", error.cause)

    def _spent(self) -> str:
        """Which budget is used up, in words; empty while none is."""
        budget, used = self.search.budget, self.gpu_hours()
        if budget.hours and self.board.seconds > budget.hours * 3600:
            return f"the {budget.hours:g} hours are over"
        if budget.gpu_hours and used >= budget.gpu_hours:
            return f"the {budget.gpu_hours:g} GPU hours are used"
        if budget.cost and budget.price and used * budget.price >= budget.cost:
            return f"the budget of {budget.cost:g} is used"
        return ""

    def gpu_hours(self) -> float:
        """What all trials have used, those that run included."""
        done = sum(point.gpu_hours for point in self.board.points.values())
        running = [life for life in self._lives.values() if life.started_at is not None]
        gpus = self.search.base.request.resources.total_gpus if self.search.base.request else 0
        return done + sum(gpu_hours(now().timestamp() - (life.started_at or 0.0), gpus) for life in running)


def not_its_fault(end: TrialEnd) -> bool:
    """Whether the machines failed, and not the values that were tried; without an outcome there was no job."""
    verdict = end.outcome.verdict if end.outcome else None
    return end.outcome is None or (verdict is not None and verdict.err_class in NOT_ITS_FAULT)
