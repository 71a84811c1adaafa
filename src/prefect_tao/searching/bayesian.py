"""The default sampler: a Gaussian process that proposes points while others run."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import qmc
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.preprocessing import PowerTransformer
from threadpoolctl import threadpool_limits

from prefect_tao.searching.unit_cube import Array, UnitCube

STARTS = 4  # points spread over the space, before the model proposes
SPREAD = 512  # candidates spread over the space
AROUND = 96  # candidates around each of the best points
ROUNDS = 5
KEPT = 4
QUANTILES = ndtri((np.arange(64) + 0.5) / 64)  # of a standard normal variable


class BayesianSampler(BaseSampler):
    """Expected improvement over a Gaussian process; running trials are believed, failed ones kept away from.

    A proposal depends on the seed, the trial's number and what the study holds, and on nothing else: a sampler may be
    made anew for every trial. Trial 0 is `first`, where it is given.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        seed: int,
        first: Mapping[str, Any] | None = None,
        weights: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        self._cube = UnitCube(space, weights)
        self._seed = seed
        self._first = first

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._cube.space

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        random = RandomSampler(seed=_seed(self._seed, trial.number))
        return random.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if trial.number == 0 and self._first is not None:
            return dict(self._first)
        others = [
            one
            for one in study.get_trials(deepcopy=False)
            if one.number != trial.number and self._cube.holds(one.params)
        ]
        known = Known(self._cube, others, study.direction)
        with threadpool_limits(1):
            point = self._start(trial.number) if len(known.values) < 2 or trial.number <= STARTS else None
            if point is None:
                point = self._improvement(known, np.random.default_rng(_seed(self._seed, trial.number)))
        return self._cube.params(point)

    def _start(self, number: int) -> Array:
        """One of the points that cover the space evenly, the same ones for the same seed."""
        spread = qmc.Sobol(len(self._cube), seed=self._seed)
        return spread.random(2 ** math.ceil(math.log2(number + 1)))[number - 1 if self._first is not None else number]

    def _improvement(self, known: Known, rng: np.random.Generator) -> Array:
        """The point that promises most: found among points spread over the space, then around the best of them."""
        model = Model(self._cube, known)
        best = known.points[np.argsort(known.values)[:KEPT]]
        spread = qmc.Sobol(len(self._cube), seed=rng).random(SPREAD)
        points = np.vstack([spread, *(around(best, width, AROUND, rng) for width in (0.2, 0.05))])
        worth = model.worth(points)
        for turn in range(ROUNDS):
            top = points[np.argsort(-worth)[:KEPT]]
            near = around(top, 0.1 / 2**turn, AROUND, rng)
            points, worth = np.vstack([top, near]), np.concatenate([np.sort(worth)[::-1][:KEPT], model.worth(near)])
        return points[np.argmax(worth)]


class Known:
    """What a study has found so far. Smaller values are better here, whatever the study's direction."""

    def __init__(self, cube: UnitCube, trials: Sequence[FrozenTrial], direction: StudyDirection) -> None:
        self.cube = cube
        sign = -1.0 if direction == StudyDirection.MAXIMIZE else 1.0
        told = [one for one in trials if one.state == TrialState.COMPLETE and math.isfinite(one.values[0])]
        failed = [one for one in trials if one.state == TrialState.FAIL and one.user_attrs.get("is_avoided", True)]
        self.points = self._of(told)
        self.values = np.array([sign * one.values[0] for one in told])
        self.running = self._of([one for one in trials if one.state == TrialState.RUNNING])
        self.failed = self._of(failed)

    def _of(self, trials: Sequence[FrozenTrial]) -> Array:
        found = [self.cube.coordinates(one.params) for one in trials]
        return np.array(found, dtype=float).reshape(len(found), len(self.cube))


class Model:
    """A Gaussian process over what is known."""

    def __init__(self, cube: UnitCube, known: Known) -> None:
        self._cube = cube
        told = cube.features(known.points)
        held = _held(known.values)
        self._evened = _Evened(held)
        values = self._evened(held)
        self._process = _fitted(told, values)
        self._failures = None
        if len(known.failed):
            ends = np.concatenate([np.ones(len(told)), -np.ones(len(known.failed))])
            self._failures = _fitted(np.vstack([told, cube.features(known.failed)]), ends)
        if len(known.running):
            running = cube.features(known.running)
            believed = self._process.predict(running)
            told, values = np.vstack([told, running]), np.concatenate([values, believed])
            self._process = GaussianProcessRegressor(self._process.kernel_, optimizer=None).fit(told, values)
        self._best = float(self._process.predict(told[: len(held)]).min())
        self._taken = {tuple(row) for row in np.round(told, 9)}

    def worth(self, points: Array) -> Array:
        """The logarithm of the improvement that is expected at each point, times the chance that it does not fail."""
        features = self._cube.features(points)
        mean, deviation = self._process.predict(features, return_std=True)
        deviation = np.maximum(deviation, 1e-9)
        worth = _log_improvement((self._best - mean) / deviation) + np.log(deviation)
        worth += np.log(self._chance(features))
        again = np.array([tuple(row) in self._taken for row in np.round(features, 9)])
        return np.where(again, worth - 1e6, worth)

    def gain(self, points: Array) -> float:
        """What the most promising of these points is expected to better the best value by, in the metric's measure."""
        point = self._cube.features(points[[np.argmax(self.worth(points))]])
        mean, deviation = self._process.predict(point, return_std=True)
        best, *likely = self._evened.undone(np.array([self._best, *(mean + deviation * QUANTILES)]))
        better = best - np.array(likely)
        known = better[np.isfinite(better)]
        return float(np.maximum(known, 0.0).mean() * self._chance(point)[0]) if len(known) else 0.0

    def _chance(self, features: Array) -> Array:
        """How likely a point works, by a process of its own over what has worked and what has failed."""
        if self._failures is None:
            return np.ones(len(features))
        mean, deviation = self._failures.predict(features, return_std=True)
        return np.maximum(ndtr(mean / np.sqrt(deviation**2 + 0.05)), 1e-9)


class _Process(GaussianProcessRegressor):
    """A process whose length scales are held near those of a smooth function, as a few trials cannot tell them all."""

    def __init__(self, width: int = 1) -> None:
        self.width = width
        lengths = Matern(np.full(width, 0.5), (0.02, 50.0), nu=2.5)
        super().__init__(ConstantKernel(1.0, (0.05, 20.0)) * lengths + WhiteKernel(1e-3, (1e-6, 0.2)))

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True) -> Any:
        found = super().log_marginal_likelihood(theta, eval_gradient, clone_kernel)
        if theta is None:
            return found
        lengths = slice(1, 1 + self.width)
        away = theta[lengths] - math.log(0.4 * math.sqrt(self.width))
        belief = -0.5 * float(away @ away)
        if not eval_gradient:
            return found + belief
        slope = found[1].copy()
        slope[lengths] -= away
        return found[0] + belief, slope


def _fitted(features: Array, values: Array) -> _Process:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a scale at the end of its range is as good as any
        return _Process(features.shape[1]).fit(features, values)


def _seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0])


def around(points: Array, width: float, count: int, rng: np.random.Generator) -> Array:
    """Points near each of `points`, most of them in a few coordinates only."""
    centres = np.repeat(points, count // len(points), axis=0)
    moved = rng.random(centres.shape) < rng.choice([2 / centres.shape[1], 0.5, 1.0], size=(len(centres), 1))
    near = centres + np.where(moved, rng.normal(0.0, width, centres.shape), 0.0)
    afresh = moved & (rng.random(centres.shape) < 0.1)
    return np.clip(np.where(afresh, rng.random(centres.shape), near), 0.0, 1.0)


def _held(values: Array) -> Array:
    """Values where bad ones far off count as no worse than bad."""
    middle = float(np.median(values))
    return np.minimum(values, middle + 3.0 * max(middle - float(values.min()), 1e-12))


class _Evened:
    """Bends values until they spread evenly around 0: on a plain with one deep hole, small slopes show the way."""

    def __init__(self, values: Array) -> None:
        self._middle, self._width = values.mean(), max(float(values.std()), 1e-12)
        self._power = None
        plain = self(values)
        if np.ptp(plain) > 1e-6:
            self._power = PowerTransformer().fit(plain[:, None])
            if not np.all(np.isfinite(self(values))):
                self._power = None

    def __call__(self, values: Array) -> Array:
        plain = (values - self._middle) / self._width
        return self._power.transform(plain[:, None])[:, 0] if self._power else plain

    def undone(self, evened: Array) -> Array:
        """The values that were evened to these; NaN where there is none."""
        plain = self._power.inverse_transform(evened[:, None])[:, 0] if self._power else evened
        return plain * self._width + self._middle


def _log_improvement(z: Array) -> Array:
    """The logarithm of the expected improvement of a standard normal variable over -z, also where it is tiny."""
    z = np.maximum(z, -1e6)
    density = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        plain = np.log(np.exp(density) + z * ndtr(z))
        far = density + np.log1p(-np.exp(np.minimum(np.log(-z) + log_ndtr(z) - density, -1e-12)))
    return np.where(z > -4, plain, np.where(z > -25, far, density - 2 * np.log(np.abs(z) + 1e-12)))
