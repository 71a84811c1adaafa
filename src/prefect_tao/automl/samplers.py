"""Which sampler proposes the points of a search."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import (
    BaseSampler,
    CmaEsSampler,
    GridSampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)

from prefect_tao.automl.bayesian import BayesianSampler
from prefect_tao.automl.space import Space
from prefect_tao.automl.unit_cube import UnitCube
from prefect_tao.jobs.errors import InvalidInput

GRID_STEPS = 3  # values of a number in a grid
ALIASES = {"b": "bayesian", "bfbo": "bayesian", "cmaes": "cma-es", "nsga2": "nsga-ii", "sobol": "qmc"}
LANGUAGE_MODELS = ("llm", "autoresearch", "hybrid")


def _grid(space: Space, seed: int) -> BaseSampler:
    cube = UnitCube(space.axes)
    places = (np.arange(GRID_STEPS) + 0.5) / GRID_STEPS
    values: dict[str, list[Any]] = {}
    for index, name in enumerate(cube.names):
        middle = np.full((GRID_STEPS, len(cube)), 0.5)
        middle[:, index] = places
        found = [cube.params(row)[name] for row in middle]
        axis = space.axes[name]
        values[name] = list(dict.fromkeys(getattr(axis, "choices", ()) or found))
    return GridSampler(values, seed=seed)


def _spread(space: Space, seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return QMCSampler(seed=seed, scramble=True)


SAMPLERS: dict[str, Callable[[Space, int], BaseSampler]] = {
    "bayesian": lambda space, seed: BayesianSampler(space.axes, seed, space.first),
    "tpe": lambda space, seed: TPESampler(seed=seed, n_startup_trials=5),
    "random": lambda space, seed: RandomSampler(seed=seed),
    "grid": _grid,
    "qmc": _spread,
    "cma-es": lambda space, seed: CmaEsSampler(seed=seed),
    "nsga-ii": lambda space, seed: NSGAIISampler(seed=seed),
}
_KEEPS_ITS_SEED = ("bayesian", "grid", "qmc")  # whose points are numbered places of one sequence


def algorithm_named(word: str) -> str:
    """The algorithm that a person means. Raises InvalidInput."""
    known = word.strip().lower().replace("_", "-")
    known = ALIASES.get(known, known)
    if known in SAMPLERS:
        return known
    if known in LANGUAGE_MODELS:
        remedy = "use bayesian, which needs no language model"
        raise InvalidInput(f"{word}: searches led by a language model are not offered", remedy)
    near = difflib.get_close_matches(known, [*SAMPLERS, *ALIASES], 1)
    remedy = f"did you mean {near[0]}? " if near else ""
    raise InvalidInput(f"there is no algorithm {word!r}", f"{remedy}there are {', '.join(SAMPLERS)}")


def sampler_of(algorithm: str, space: Space, seed: int, number: int) -> BaseSampler:
    """The sampler that proposes trial `number`.

    It is made anew for every trial, so that what it proposes follows from the seed, the number and what the study
    holds, in this process or in any other.
    """
    if algorithm not in _KEEPS_ITS_SEED:
        seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
    return SAMPLERS[algorithm](space, seed)
