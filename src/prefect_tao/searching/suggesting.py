"""A new configuration, as the sampler proposes it from what the search knows at the rung that tells most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from prefect_tao.searching.fidelity import FEWEST, lowest_that_decides
from prefect_tao.searching.samplers import KEEPING_NOTES, sampler_of
from prefect_tao.searching.search_plan import SearchPlan
from prefect_tao.searching.space import Space
from prefect_tao.searching.trial_record import Slot, Standing, TrialRecord


@dataclass(frozen=True)
class Suggestion:
    """A point, and what the sampler wrote down for the next ones."""

    point: Mapping[str, Any]
    notes: Mapping[str, Any]


def suggested(plan: SearchPlan, space: Space, slots: Sequence[Slot], notes_only: bool = False) -> Suggestion:
    """The next point. It follows from the seed, the number of places begun and what they are known to be."""
    number = len(slots)
    starts = [space.first, *space.starts] if plan.sampler != "grid" else []
    if number < len(starts) or (notes_only and plan.sampler not in KEEPING_NOTES):
        return Suggestion(starts[number] if number < len(starts) else {}, {})
    view = seen(plan, space, slots)
    view.sampler = sampler_of(plan, space, number)
    trial = view.ask(dict(space.axes))
    return Suggestion(trial.params, view.get_trials(deepcopy=False)[-1].system_attrs)


def seen(plan: SearchPlan, space: Space, slots: Sequence[Slot]) -> optuna.Study:
    """What a sampler sees: one trial for each place, and never one that was withdrawn.

    A value is the one at the highest rung with enough results for a model of its own. A Gaussian process, which knows
    noise, sees more: once enough trials have reached the top, the others with what their value is worth there.
    """
    view = optuna.create_study(directions=[StudyDirection[one.upper()] for one in plan.directions], study_name="seen")
    rung = _telling(slots, plan.min_points or len(space.axes) + 1)
    expected = at_the_top(slots, len(plan.rungs) - 1) if plan.algorithm == "asha" else {}
    for slot in slots:
        found = slot.at(rung)
        own = None if found is None else found.result
        value = expected.get(slot.origin) if expected else own
        view.add_trial(_shown(slot, value, space))
    return view


def _telling(slots: Sequence[Slot], enough: int) -> int:
    """The highest rung with enough results for a model of its own; the lowest one where none has."""
    rungs = [one.rung for slot in slots for one in slot.trials if one.is_scored]
    return max((rung for rung in set(rungs) if rungs.count(rung) >= enough), default=min(rungs, default=0))


def at_the_top(slots: Sequence[Slot], top: int) -> dict[int, tuple[float]]:
    """The value of each place at the top: its own, or what those with both values tell from one at a lower rung.

    A rung whose ranks do not agree with those at the top tells nothing. Empty while there is nothing to tell by.
    """
    found: dict[int, tuple[float]] = {}
    told = False
    for rung in reversed(range(lowest_that_decides(slots, top), top + 1)):
        line = (1.0, 0.0) if rung == top else _line(slots, rung, top)
        told = told or (rung < top and line is not None)
        for slot in slots:
            own = slot.at(rung)
            if line is not None and own is not None and own.result is not None:
                found.setdefault(slot.origin, (line[0] * own.result[0] + line[1],))
    return found if told else {}


def _line(slots: Sequence[Slot], rung: int, top: int) -> tuple[float, float] | None:
    """Slope and height of the line from values at a rung to those at the top."""
    both = [(low.result[0], high.result[0]) for low, high in _pairs(slots, rung, top) if low.result and high.result]
    lows, highs = np.array(both, dtype=float).reshape(-1, 2).T
    if len(lows) < FEWEST or np.ptp(lows) == 0:
        return None
    slope = max(float(np.cov(lows, highs)[0, 1] / np.var(lows, ddof=1)), 0.0)
    return slope, float(highs.mean() - slope * lows.mean())


def _pairs(slots: Sequence[Slot], rung: int, top: int) -> list[tuple[TrialRecord, TrialRecord]]:
    found = [(slot.at(rung), slot.at(top)) for slot in slots]
    return [(low, high) for low, high in found if low is not None and high is not None]


def _shown(slot: Slot, value: Sequence[float] | None, space: Space) -> FrozenTrial:
    common: dict[str, Any] = {
        "params": space.point(slot.last.values),
        "distributions": dict(space.axes),
        "system_attrs": dict(slot.trials[0].notes),
    }
    if value is not None and not slot.is_failed:
        return create_trial(**common, state=TrialState.COMPLETE, values=list(value))
    if slot.is_running:
        return create_trial(**common, state=TrialState.RUNNING)
    is_own = slot.last.end is Standing.FAILED
    return create_trial(**common, state=TrialState.FAIL, user_attrs={"is_avoided": is_own})
