"""A search as it goes: what to try next, what came of it, and what was best. One Optuna storage, one writer."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, InMemoryStorage, get_storage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, Unreachable
from prefect_tao.searching import early_stop, fidelity
from prefect_tao.searching.advice import Advice, advice
from prefect_tao.searching.asha import Asha
from prefect_tao.searching.hyperband import Hyperband
from prefect_tao.searching.numbered_points import grid_size
from prefect_tao.searching.pbt import Pbt
from prefect_tao.searching.search_plan import SearchPlan
from prefect_tao.searching.space import Space
from prefect_tao.searching.suggesting import Suggestion, suggested
from prefect_tao.searching.trial_record import Slot, Standing, TrialRecord, slots_of
from prefect_tao.searching.whole_trials import Move, Schedule, WholeTrials

optuna.logging.set_verbosity(optuna.logging.WARNING)  # each look of a sampler would be a line
TRIALS = 20  # where a plan says nothing
WIDEST_GRID = 1000  # points of a grid that are tried without a number of trials
WHOLE = "is_whole"
_PROPOSED = ("values", "configuration", "origin", "rung", "epochs", "parent", "asked")
_STATES = {
    Standing.COMPLETE: TrialState.COMPLETE,
    Standing.PAUSED: TrialState.PRUNED,
    Standing.STOPPED: TrialState.PRUNED,
}


@dataclass(frozen=True)
class Proposal:
    """A trial to run."""

    number: int  # in the Optuna study
    configuration: int  # number of the first trial with these values; boards group by it
    values: Mapping[str, Any]  # spec key -> value
    rung: int
    epochs: int | None  # train up to this epoch in all; None: what the spec says
    parent: int | None  # trial whose checkpoint this one resumes


class Study:
    """What is asked and told. Everything it knows is in its storage, and can be rebuilt from the job records.

    Each proposal follows from the seed, its number and what was told by then. Telling twice is telling once, so that
    whoever follows a trial may say its end again after a restart.
    """

    def __init__(self, storage: BaseStorage, name: str, plan: SearchPlan, space: Space) -> None:
        self.name = name
        self.plan = plan
        self.space = space
        self.schedule = schedule_of(plan, space)
        self._storage = storage
        self._id = _study_id(storage, name, plan, space)
        self._records = [_record(one) for one in storage.get_all_trials(self._id)]

    @classmethod
    def open(cls, storage: str | None, name: str, plan: SearchPlan, space: Space) -> Study:
        """The study of this name, made where there is none. `storage` is a database's URL; None: in memory.

        Raises InvalidInput where the storage holds another search under this name, Unreachable where it gives no
        answer.
        """
        return cls(_opened(storage), name, plan, space)

    @classmethod
    def rebuild(
        cls, storage: str | None, name: str, plan: SearchPlan, space: Space, records: Iterable[TrialRecord]
    ) -> Study:
        """The study as it was when the last of `records` was written; what the storage held of it goes."""
        study = cls.open(storage, name, plan, space)
        study._storage.delete_study(study._id)
        study = cls(study._storage, name, plan, space)
        study._storage.set_study_user_attr(study._id, WHOLE, False)
        asked = [(when, 0, one) for when, one in _when_asked(records)]
        told = [(one.told, 1, one) for _, _, one in asked if one.told is not None]
        for _, is_told, record in sorted([*asked, *told], key=lambda event: (event[0], event[1], event[2].number)):
            if is_told:
                study._retell(record)
            else:
                study._ask_again(record)
        study._storage.set_study_user_attr(study._id, WHOLE, True)
        return study

    @property
    def is_whole(self) -> bool:
        """False where a process was killed while it rebuilt the study: it is to be rebuilt again."""
        return bool(self._storage.get_study_user_attrs(self._id).get(WHOLE, True))

    @property
    def history(self) -> tuple[TrialRecord, ...]:
        """All trials in the order in which they were asked for; `rebuild` makes the same study of them.

        They are read once, when a study is opened: there is no other writer.
        """
        return tuple(self._records)

    @property
    def running(self) -> tuple[Proposal, ...]:
        """What was asked for and not told: after a restart, the trials to look for."""
        return tuple(_proposal(one) for one in self._records if not one.is_told)

    @property
    def slots(self) -> list[Slot]:
        """The places of the search: each configuration with its way up the rungs."""
        return slots_of(self._records, self.plan.signs[0])

    def ask(self) -> Proposal | None:
        """What to run next; None: nothing now. The search has `finished`, or waits for trials that run."""
        slots = self.slots
        if self._is_out_of_luck(slots):
            return None
        lost = next((one for one in map(_to_repeat, slots) if one is not None), None)
        if lost is not None:
            return self._add(lost.values, lost.rung, lost.epochs, lost.parent, lost.origin)
        move = self.schedule.next(slots)
        return None if move is None else self._moved(move, slots)

    def report(self, number: int, epoch: int, value: float) -> bool:
        """The metric of a running trial after an epoch. False: stop it, it stays behind the others."""
        record = self._records[number]
        if record.is_told or not math.isfinite(value):
            return True
        self._write_value(record, epoch, value)
        if not self.plan.stops_early or len(self.plan.signs) > 1:
            return True
        record = self._records[number]
        if not early_stop.is_behind(record, epoch, self._records, self.plan):
            return True
        self._storage.set_trial_user_attr(self._trial(number), "stop", epoch)
        self._records[number] = replace(record, stop=epoch)
        return False

    def tell(
        self, number: int, value: float | tuple[float, ...] | None, failed: str = "", in_full: bool = False
    ) -> None:
        """How a trial ended. Without a value, with NaN or with words why it `failed` it is a failure, never a score.

        One that was to stop and came to its end before it was stopped has run `in_full`, and counts like any other.
        """
        result = () if value is None or failed else value if isinstance(value, tuple) else (value,)
        if result and len(result) != len(self.plan.metrics):
            raise InvalidInput(f"trial {number}: {len(result)} values for {len(self.plan.metrics)} metrics")
        if not result or not all(math.isfinite(one) for one in result):
            self._end(number, Standing.FAILED, None, failed or _unscored(result))
            return
        record = self._records[number]
        end = Standing.PAUSED if record.rung < self.schedule.top else Standing.COMPLETE
        self._end(number, end if in_full or record.stop is None else Standing.STOPPED, result)

    def withdraw(self, number: int, cause: str = "") -> None:
        """The machines failed, and not the trial: its values are proposed again, and no sampler hears of it."""
        self._end(number, Standing.WITHDRAWN, None, cause)

    @property
    def finished(self) -> bool:
        """Whether nothing runs and nothing is left to ask for."""
        slots = self.slots
        if any(slot.is_running for slot in slots):
            return False
        return self._is_out_of_luck(slots) or (not any(map(_to_repeat, slots)) and self.schedule.next(slots) is None)

    @property
    def verdict(self) -> str:
        """Why the search has ended, or what the fidelity guard found so far; empty where there is nothing to say."""
        slots = self.slots
        if self._is_out_of_luck(slots):
            failed = [slot.last for slot in slots if slot.is_failed]
            cause = f"; the last one: {failed[-1].failure}" if failed[-1].failure else ""
            return f"{len(failed)} trials failed, more than {self._failures_allowed}{cause}"
        return ""

    @property
    def fidelity(self) -> list[str]:
        """What was measured about rungs: where ranks at few epochs do not tell, and trials run in full."""
        rungs = self.plan.rungs if self.plan.schedule in ("asha", "hyperband") else ()
        return fidelity.words(self.slots, rungs) if rungs else []

    @property
    def best(self) -> TrialRecord | None:
        """The best of those that came furthest; with several metrics the first one decides."""
        return next(iter(self.leaders(1)), None)

    def leaders(self, count: int) -> list[TrialRecord]:
        """The best configurations of those that came furthest, best first; another search can start with them."""
        scored = [one for one in self._records if one.is_scored and one.end is not Standing.STOPPED]
        top = [one for one in scored if one.rung == max(other.rung for other in scored)]
        found: dict[int, TrialRecord] = {}
        for one in sorted(top, key=lambda one: (_losses(one, self.plan), one.number)):
            found.setdefault(one.configuration, one)
        return list(found.values())[:count]

    def advice(self, seconds: Sequence[float] = ()) -> Advice | None:
        """What the next trial is expected to gain; `seconds` are what trials took. None: too little is known."""
        return advice(self.plan, self.space, self.slots, seconds)

    @property
    def front(self) -> tuple[TrialRecord, ...]:
        """Those that no other one beats in every metric."""
        scored = [one for one in self._records if one.end is Standing.COMPLETE]
        losses = {one.number: _losses(one, self.plan) for one in scored}
        return tuple(
            one for one in scored if not any(_dominates(other, losses[one.number]) for other in losses.values())
        )

    @property
    def configurations(self) -> int:
        """How many different ones were asked for."""
        return len({one.configuration for one in self._records})

    @property
    def _failures_allowed(self) -> int:
        if self.plan.max_failures is not None:
            return self.plan.max_failures
        return max(3, (self.plan.max_trials or TRIALS) // 2)

    def _is_out_of_luck(self, slots: Sequence[Slot]) -> bool:
        return sum(slot.is_failed and _to_repeat(slot) is None for slot in slots) > self._failures_allowed

    def _moved(self, move: Move, slots: Sequence[Slot]) -> Proposal:
        if move.parent is None:
            found = suggested(self.plan, self.space, slots)
            return self._add(self.space.values(found.point), move.rung, move.epochs, None, None, found)
        values = move.parent.values if move.values is None else move.values
        origin = move.parent.origin if move.member is None else move.member
        return self._add(values, move.rung, move.epochs, move.parent.number, origin)

    def _add(
        self,
        values: Mapping[str, Any],
        rung: int,
        epochs: int | None,
        parent: int | None,
        origin: int | None,
        found: Suggestion | None = None,
    ) -> Proposal:
        """A new trial, written at once: a kill leaves it whole or not at all."""
        number = len(self._records)
        same = [one.configuration for one in self._records if one.values == values]
        record = TrialRecord(
            number=number,
            values=dict(values),
            configuration=same[0] if same else number,
            origin=number if origin is None else origin,
            rung=rung,
            epochs=epochs,
            parent=parent,
            asked=_events(self._records),
            notes=dict(found.notes) if found else {},
        )
        template = create_trial(
            state=TrialState.RUNNING,
            params=self.space.point(values),
            distributions=dict(self.space.axes),
            user_attrs={"proposal": {name: getattr(record, name) for name in _PROPOSED}},
            system_attrs=dict(record.notes),
        )
        self._storage.create_new_trial(self._id, template)
        self._records.append(record)
        return _proposal(record)

    def _ask_again(self, record: TrialRecord) -> None:
        """The trial of a record, under the same number; samplers that keep notes write them again."""
        history = self._records
        if record.number != len(history):
            cause = f"the records of this search have no trial {len(history)}, but {record.number}"
            raise InvalidInput(cause, "give all of its job records")
        is_new = record.parent is None and record.origin in (-1, record.number)
        found = suggested(self.plan, self.space, self.slots, notes_only=True) if is_new else None
        origin = None if record.origin < 0 else record.origin
        self._add(record.values, record.rung, record.epochs, record.parent, origin, found)

    def _retell(self, record: TrialRecord) -> None:
        for epoch, value in record.curve.items():
            self._write_value(self._records[record.number], int(epoch), value)
        self._end(record.number, record.end, record.result, record.failure)

    def _trial(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _write_value(self, record: TrialRecord, epoch: int, value: float) -> None:
        self._storage.set_trial_intermediate_value(self._trial(record.number), epoch, value)
        self._records[record.number] = replace(record, curve={**record.curve, epoch: value})

    def _end(self, number: int, end: Standing, result: tuple[float, ...] | None, failure: str = "") -> None:
        """Write an end: what it means first, and that it is one last, so that a kill leaves the trial running."""
        record = self._records[number]
        if record.is_told or end is Standing.RUNNING:
            return
        if end is Standing.PAUSED and result and record.epochs is not None and record.epochs not in record.curve:
            self._write_value(record, record.epochs, result[0])
        told = _events(self._records)
        trial = self._trial(number)
        self._storage.set_trial_user_attr(trial, "ending", {"end": end.value, "told": told, "failure": failure})
        self._storage.set_trial_state_values(trial, _STATES.get(end, TrialState.FAIL), result)
        record = self._records[number]
        self._records[number] = replace(record, end=end, told=told, failure=failure, result=result)


def _opened(storage: str | None) -> BaseStorage:
    if storage is None:
        return InMemoryStorage()
    scheme, mark, rest = storage.partition("://")
    if scheme in ("postgres", "postgresql"):
        scheme = "postgresql+psycopg"  # the driver that is installed with searches
    try:
        return get_storage(f"{scheme}{mark}{rest}")
    except ImportError as error:
        cause = f"the driver for {scheme} is not installed: {error}".splitlines()[0]
        raise MissingDependency(cause, "install it, or use a sqlite or postgresql address") from None
    except (SQLAlchemyError, StorageInternalError, OSError, RuntimeError) as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise Unreachable(f"the storage of the search does not answer: {rest.split('@')[-1]}: {cause}") from None


def _study_id(storage: BaseStorage, name: str, plan: SearchPlan, space: Space) -> int:
    mark = _mark(plan, space)
    found = next((one for one in storage.get_all_studies() if one.study_name == name), None)
    if found is None:
        directions = [StudyDirection[one.upper()] for one in plan.directions]
        made = storage.create_new_study(directions, name)
        storage.set_study_user_attr(made, "search", mark)
        return made
    if "search" not in found.user_attrs and not storage.get_n_trials(found._study_id):
        storage.delete_study(found._study_id)  # killed while it was made
        return _study_id(storage, name, plan, space)
    if found.user_attrs.get("search") != mark:
        cause = f"the storage holds another search under the name {name}: its plan or its ranges are others"
        raise InvalidInput(cause, "give this search a name or a storage of its own")
    return found._study_id


def _mark(plan: SearchPlan, space: Space) -> str:
    """What makes two searches the same one. How much they may use can change."""
    axes = {name: distribution_to_json(axis) for name, axis in space.axes.items()}
    own = [plan.algorithm, plan.directions, plan.metrics, plan.seed, plan.rungs, plan.eta, axes, dict(space.first)]
    own += [list(space.starts)] if space.starts else []
    return hashlib.sha256(json.dumps(own, sort_keys=True, default=str).encode()).hexdigest()[:16]


def schedule_of(plan: SearchPlan, space: Space) -> Schedule:
    """What decides how long trials run. Raises InvalidInput for a grid that is too wide to be tried unasked."""
    if plan.schedule == "asha":
        return Asha(plan.rungs, plan.eta, plan.max_trials or TRIALS)
    if plan.schedule == "hyperband":
        return Hyperband(plan.rungs, plan.eta, plan.max_trials)
    if plan.schedule == "pbt":
        return Pbt(plan, space)
    if plan.sampler != "grid":
        return WholeTrials(plan.max_trials or TRIALS, plan.max_epochs)
    size = grid_size(space)
    if plan.max_trials is None and size > WIDEST_GRID:
        raise InvalidInput(f"the grid has {size} points", "give max_trials, search fewer parameters, or use bayesian")
    return WholeTrials(min(size, plan.max_trials or size), plan.max_epochs)


def _record(trial: FrozenTrial) -> TrialRecord:
    own = trial.user_attrs
    ending = own["ending"] if trial.state.is_finished() else {}
    return TrialRecord(
        **own["proposal"],
        number=trial.number,
        end=Standing(ending.get("end", Standing.RUNNING)),
        result=tuple(trial.values) if ending and trial.values else None,
        failure=ending.get("failure", ""),
        curve=dict(trial.intermediate_values),
        told=ending.get("told"),
        stop=own.get("stop"),
        notes=trial.system_attrs,
    )


def _proposal(one: TrialRecord) -> Proposal:
    return Proposal(one.number, one.configuration, one.values, one.rung, one.epochs, one.parent)


def _to_repeat(slot: Slot) -> TrialRecord | None:
    return slot.to_repeat


def _events(history: Sequence[TrialRecord]) -> int:
    """How often was asked and told so far."""
    return len(history) + sum(one.is_told for one in history)


def _when_asked(records: Iterable[TrialRecord]) -> list[tuple[float, TrialRecord]]:
    """Each trial with when it was asked for, at the latest: before all later ones, whenever its job was launched."""
    found: list[tuple[float, TrialRecord]] = []
    latest = math.inf
    for one in sorted(records, key=lambda record: -record.number):
        latest = min(latest, one.number if one.asked < 0 else one.asked)
        found.append((latest, one))
    return found


def _unscored(result: tuple[float, ...]) -> str:
    return "its metric is not a number" if result else "it gave no metric"


def _losses(one: TrialRecord, plan: SearchPlan) -> tuple[float, ...]:
    return tuple(sign * value for sign, value in zip(plan.signs, one.result or (), strict=True))


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))
