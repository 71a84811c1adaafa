"""Population based training: members train side by side, and those behind go on from a better one's checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import CategoricalDistribution, IntDistribution

from prefect_tao.searching.asha import ranked_at
from prefect_tao.searching.search_plan import SearchPlan
from prefect_tao.searching.space import Space
from prefect_tao.searching.trial_record import Slot
from prefect_tao.searching.whole_trials import Move

SHARE = 0.2  # how many copy, how many are copied, and how many values are drawn anew


class Pbt:
    """A generation is a rung. A member that failed, or is behind, takes over values and checkpoint of a good one.

    Where so many values were tried as the search may try, members that are behind keep theirs, and failed ones rest.
    """

    def __init__(self, plan: SearchPlan, space: Space) -> None:
        self._plan = plan
        self._space = space
        self._stages = plan.stages
        self._size = min(plan.population, plan.max_trials or plan.population)
        self.top = len(self._stages) - 1

    def next(self, slots: Sequence[Slot]) -> Move | None:
        if len(slots) < self._size:
            return Move(0, self._stages[0])
        ready = [slot for slot in slots if not slot.is_running and slot.last.rung < self.top]
        for slot in sorted(ready, key=lambda one: (one.last.rung, one.origin)):
            move = self._on(slot, slots)
            if move is not None:
                return move
        return None

    @property
    def most_jobs(self) -> int:
        return self._size * len(self._stages)

    def _on(self, slot: Slot, slots: Sequence[Slot]) -> Move | None:
        """How a member goes on; None while it has too few others to be compared with."""
        rung = slot.last.rung
        ranked = ranked_at(slots, rung)
        through = [one for one in slots if one.at(rung) is not None or one.last.rung > rung or one.is_failed]
        if len(through) < math.ceil(len(slots) / 2) or not ranked:
            return None
        share = max(1, int(len(ranked) * SHARE))
        epochs = self._stages[rung + 1]
        behind = slot.is_failed or (len(ranked) > 2 * share and slot.origin in {one.origin for one in ranked[-share:]})
        tried = len({one.configuration for other in slots for one in other.trials})
        if behind and tried >= (self._plan.max_trials or tried + 1):
            if slot.is_failed:
                return None
            behind = False
        if not behind:
            return Move(rung + 1, epochs, slot.at(rung), slot.origin)
        rng = np.random.default_rng((self._plan.seed, slot.origin, rung))
        donor = ranked[int(rng.integers(share))].at(rung)
        return None if donor is None else Move(rung + 1, epochs, donor, slot.origin, self._perturbed(donor.values, rng))

    def _perturbed(self, values: Any, rng: np.random.Generator) -> dict[str, Any]:
        point = dict(self._space.point(values))
        axes: Mapping[str, Any] = self._space.axes
        for name, axis in axes.items():
            afresh = rng.random() < SHARE
            if isinstance(axis, CategoricalDistribution):
                point[name] = axis.choices[int(rng.integers(len(axis.choices)))] if afresh else point[name]
                continue
            low, high = (math.log(axis.low), math.log(axis.high)) if axis.log else (axis.low, axis.high)
            drawn = low + rng.random() * (high - low)
            factor = self._plan.perturbation if rng.random() < 0.5 else 1 / self._plan.perturbation
            found = (math.exp(drawn) if axis.log else drawn) if afresh else point[name] * factor
            if isinstance(axis, IntDistribution):
                found = axis.low + round((found - axis.low) / axis.step) * axis.step
            point[name] = min(max(found, axis.low), axis.high)
        return self._space.values(point)
