"""Samplers that need no results: each trial has its point by its number alone."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial
from scipy.stats import qmc

from prefect_tao.searching.space import Space
from prefect_tao.searching.unit_cube import UnitCube

GRID_STEPS = 3  # values of a number in a grid


class NumberedPoints(BaseSampler):
    """Random points, evenly spread ones, or those of a grid; likely choices come up more often."""

    def __init__(self, kind: str, space: Space, seed: int) -> None:
        self._kind = kind
        self._space = space
        self._seed = seed
        self._cube = UnitCube(space.axes, space.weights)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._cube.space

    def sample_independent(self, study: Study, trial: FrozenTrial, name: str, axis: BaseDistribution) -> Any:
        raise AssertionError(f"{name} is not an axis of this search")

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        number = trial.number
        if self._kind == "grid":
            points = list(itertools.product(*grid_of(self._space).values()))
            order = np.random.default_rng(self._seed).permutation(len(points))
            return dict(zip(self._cube.names, points[order[number % len(points)]], strict=True))
        if self._kind == "qmc":
            spread = qmc.Sobol(len(self._cube), seed=self._seed)
            return self._cube.params(spread.random(2 ** math.ceil(math.log2(number + 2)))[number])
        return self._cube.params(np.random.default_rng((self._seed, number)).random(len(self._cube)))


def grid_of(space: Space) -> dict[str, list[Any]]:
    """The values of each axis in a grid."""
    cube, values = UnitCube(space.axes), {}
    places = (np.arange(GRID_STEPS) + 0.5) / GRID_STEPS
    for index, (name, axis) in enumerate(space.axes.items()):
        middle = np.full((GRID_STEPS, len(cube)), 0.5)
        middle[:, index] = places
        choices = axis.choices if isinstance(axis, CategoricalDistribution) else ()
        values[name] = list(dict.fromkeys(choices or [cube.params(row)[name] for row in middle]))
    return values


def grid_size(space: Space) -> int:
    return math.prod(len(values) for values in grid_of(space).values())
