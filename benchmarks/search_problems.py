"""Functions with known best values, for searches to be compared on."""

from __future__ import annotations

import functools
import math
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from benchmarks.kept import kept

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """A function to be made small; NaN is a trial that diverges."""

    name: str
    space: dict[str, BaseDistribution]
    value: Callable[[Params], float]
    best: float
    template: dict[str, Any]


def _box(bounds: list[tuple[float, float]]) -> dict[str, BaseDistribution]:
    return {f"x{index}": FloatDistribution(low, high) for index, (low, high) in enumerate(bounds)}


def _xs(params: Params) -> np.ndarray[Any, Any]:
    return np.array([params[f"x{index}"] for index in range(len(params))])


def branin() -> Problem:
    def value(params: Params) -> float:
        x, y = _xs(params)
        bend = y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6
        return float(bend**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)

    return Problem("Branin", _box([(-5, 10), (0, 15)]), value, 0.397887, {"x0": 2.5, "x1": 7.5})


_H3 = (
    np.array([[3, 10, 30], [0.1, 10, 35], [3, 10, 30], [0.1, 10, 35]]),
    np.array([[3689, 1170, 2673], [4699, 4387, 7470], [1091, 8732, 5547], [381, 5743, 8828]]) * 1e-4,
)
_H6 = (
    np.array(
        [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    ),
    np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )
    * 1e-4,
)
ALPHA = np.array([1.0, 1.2, 3.0, 3.2])


def _hartmann(params: Params, table: tuple[Any, Any], alpha: Any = ALPHA) -> float:
    steep, centres = table
    return float(-alpha @ np.exp(-np.sum(steep * (_xs(params) - centres) ** 2, axis=1)))


def hartmann3() -> Problem:
    space = _box([(0, 1)] * 3)
    return Problem("Hartmann3", space, lambda params: _hartmann(params, _H3), -3.86278, dict.fromkeys(space, 0.5))


def hartmann6() -> Problem:
    space = _box([(0, 1)] * 6)
    return Problem("Hartmann6", space, lambda params: _hartmann(params, _H6), -3.32237, dict.fromkeys(space, 0.5))


def ackley5() -> Problem:
    def value(params: Params) -> float:
        xs = _xs(params)
        near = -20 * math.exp(-0.2 * math.sqrt(float(np.mean(xs**2))))
        return float(near - math.exp(float(np.mean(np.cos(2 * math.pi * xs)))) + 20 + math.e)

    space = _box([(-10.0, 10.0)] * 5)
    return Problem("Ackley5", space, value, 0.0, dict.fromkeys(space, 5.3))


RATES = {"adam": (-3.0, 0.0), "sgd": (-1.3, 0.15), "lamb": (-2.2, 0.3)}  # log10 of the best rate, what it costs


def mixed() -> Problem:
    """A training as people know it: loss over rate, decay, layers and optimiser.

    loss = cost(optimiser) + 0.35 (log10 rate - best(optimiser))^2 + 0.05 (log10 decay + 4)^2 + 0.02 (layers - 7)^2,
    and NaN where log10 rate is above best(optimiser) + 1.2.
    """

    def value(params: Params) -> float:
        best, cost = RATES[params["optimiser"]]
        rate = math.log10(params["rate"])
        if rate > best + 1.2:
            return math.nan
        away = 0.35 * (rate - best) ** 2 + 0.05 * (math.log10(params["decay"]) + 4) ** 2
        return cost + away + 0.02 * (params["layers"] - 7) ** 2

    space: dict[str, BaseDistribution] = {
        "rate": FloatDistribution(1e-6, 1.0, log=True),
        "decay": FloatDistribution(1e-8, 1e-1, log=True),
        "layers": IntDistribution(1, 12),
        "optimiser": CategoricalDistribution(list(RATES)),
    }
    template = {"rate": 1e-5, "decay": 1e-6, "layers": 3, "optimiser": "sgd"}
    return Problem("mixed training", space, value, 0.0, template)


@functools.cache
def _digits() -> tuple[Any, ...]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    return tuple(train_test_split(pixels / 16.0, labels, test_size=0.4, random_state=0))


@functools.cache
def _digits_loss(rate: float, decay: float, width: int, batch: int, momentum: float, solver: str, epochs: int) -> float:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    seen, unseen, labels, truth = _digits()
    model = MLPClassifier(
        (width,), solver=solver, alpha=decay, batch_size=batch, learning_rate_init=rate, momentum=momentum,
        max_iter=epochs, n_iter_no_change=epochs, tol=0.0, random_state=0,
    )  # fmt: skip
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", (ConvergenceWarning, RuntimeWarning))
        try:
            model.fit(seen, labels)
            return float(log_loss(truth, model.predict_proba(unseen)))
        except ValueError:  # weights that are no numbers any more
            return math.nan


def digits(epochs: int = 9) -> Problem:
    """A small network that learns handwritten digits; what counts is its loss on digits it has not seen."""
    space: dict[str, BaseDistribution] = {
        "rate": FloatDistribution(1e-5, 1.0, log=True),
        "decay": FloatDistribution(1e-7, 10.0, log=True),
        "width": IntDistribution(4, 128, log=True),
        "batch": IntDistribution(8, 256, log=True),
        "momentum": FloatDistribution(0.0, 0.99),
        "solver": CategoricalDistribution(["adam", "sgd"]),
    }
    template = {"rate": 1e-4, "decay": 1e-4, "width": 16, "batch": 128, "momentum": 0.5, "solver": "sgd"}
    return Problem(
        "digits MLP", space, lambda params: _digits_loss(**params, epochs=epochs), _best_of_random(epochs), template
    )


@functools.cache
def _best_of_random(epochs: int) -> float:
    """What 500 random configurations find, which takes minutes."""
    return kept(f"digits, best of random, {epochs} epochs", [Path(__file__)], lambda: _random_digits(epochs))


def _random_digits(epochs: int) -> float:
    rng, values = np.random.default_rng(0), []
    for _ in range(500):
        drawn = np.exp(rng.uniform(np.log([1e-5, 1e-7, 4, 8]), np.log([1.0, 10.0, 128.99, 256.99])))
        rate, decay, width, batch = drawn.tolist()
        solver = ("adam", "sgd")[rng.integers(2)]
        values.append(_digits_loss(rate, decay, int(width), int(batch), float(rng.uniform(0, 0.99)), solver, epochs))
    return float(np.nanmin(values))


def mf_hartmann6(bias: float, noise: float) -> Callable[[Params, int, int], float]:
    """Hartmann6 as few of `most` epochs show it: its weights are off by `bias`, and it is noisy, until the last epoch.

    After the multi-fidelity Hartmann functions of Kandasamy and others; the noise is the same for the same point.
    """

    def value(params: Params, epochs: int, most: int) -> float:
        left = 1.0 - epochs / most
        drawn = np.random.default_rng(zlib.crc32(repr((sorted(params.items()), epochs)).encode())).normal()
        return _hartmann(params, _H6, ALPHA - bias * left) + noise * left * float(drawn)

    return value


GOOD, TERRIBLE = (0.5, 0.1), (4.0, 5.0)  # bias and noise


def all_problems() -> list[Problem]:
    return [branin(), hartmann3(), hartmann6(), ackley5(), mixed(), digits()]
