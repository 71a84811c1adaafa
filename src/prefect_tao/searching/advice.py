"""Whether another trial is worth its cost: what it is expected to gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import qmc
from threadpoolctl import threadpool_limits

from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.searching.bayesian import AROUND, KEPT, SPREAD, Known, Model, around
from prefect_tao.searching.search_plan import SearchPlan
from prefect_tao.searching.space import Space
from prefect_tao.searching.suggesting import seen
from prefect_tao.searching.trial_record import Slot
from prefect_tao.searching.unit_cube import UnitCube

FEWEST = 5  # results before there is anything to expect


@dataclass(frozen=True)
class Advice:
    """What the next trial is expected to better the best value by, and what one trial costs."""

    metric: str
    gain: float
    share: float  # of what was gained since the first trials: how much the search still moves
    seconds: float | None = None  # a trial's, where it is known

    def __str__(self) -> str:
        cost = f" for {format_seconds(self.seconds)}" if self.seconds is not None else ""
        return f"the next trial is expected to better {self.metric} by {self.gain:.2g}{cost}"


def advice(plan: SearchPlan, space: Space, slots: Sequence[Slot], seconds: Sequence[float] = ()) -> Advice | None:
    """By a model of all that is known, whatever the algorithm; None with several metrics or too few results."""
    view = seen(plan, space, slots)
    if len(plan.directions) > 1:
        return None
    cube = UnitCube(space.axes, space.weights)
    known = Known(cube, view.get_trials(deepcopy=False), view.direction)
    if len(known.values) < FEWEST:
        return None
    rng = np.random.default_rng(plan.seed)
    best = known.points[np.argsort(known.values)[:KEPT]]
    points = np.vstack([qmc.Sobol(len(cube), seed=rng).random(SPREAD), around(best, 0.1, AROUND, rng)])
    with threadpool_limits(1):
        gain = Model(cube, known).gain(points)
    range_ = float(np.median(known.values) - known.values.min())
    typical = sorted(seconds)[len(seconds) // 2] if seconds else None
    return Advice(plan.metrics[0], gain, gain / range_ if range_ > 0 else 0.0, typical)
