"""Differential evolution: new points from the differences between good ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from prefect_tao.searching.space import Space
from prefect_tao.searching.unit_cube import Array, UnitCube

FEWEST = 4  # results before there are differences worth following


class DifferentialEvolution(BaseSampler):
    """A mutant of three of the better points, crossed with another one; choices lie on axes as numbers do."""

    def __init__(self, space: Space, seed: int, mutation: float, crossover: float) -> None:
        self._cube = UnitCube(space.axes, space.weights)
        self._seed = seed
        self._mutation = mutation
        self._crossover = crossover

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._cube.space

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, axis: BaseDistribution) -> Any:
        raise AssertionError(f"{name} is not an axis of this search")

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        rng = np.random.default_rng((self._seed, trial.number))
        told = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        sign = -1.0 if study.direction.name == "MAXIMIZE" else 1.0
        better = sorted(told, key=lambda one: (sign * one.values[0], one.number))[: max(FEWEST, len(told) // 2)]
        if len(better) < FEWEST:
            return self._cube.params(rng.random(len(self._cube)))
        points = np.array([self._cube.coordinates(one.params) for one in better])
        return self._cube.params(self._child(points, rng))

    def _child(self, points: Array, rng: np.random.Generator) -> Array:
        target, one, two, three = points[rng.choice(len(points), 4, replace=False)]
        mutant = one + self._mutation * (two - three)
        outside = (mutant < 0) | (mutant > 1)
        mutant = np.where(outside, rng.random(len(mutant)), mutant)
        crossed = rng.random(len(mutant)) < self._crossover
        crossed[rng.integers(len(mutant))] = True
        return np.where(crossed, mutant, target)
