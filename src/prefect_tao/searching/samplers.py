"""Which sampler proposes the points of a search."""

from __future__ import annotations

import numpy as np
from optuna.samplers import BaseSampler, CmaEsSampler, NSGAIISampler, TPESampler

from prefect_tao.searching.bayesian import BayesianSampler
from prefect_tao.searching.dehb import DifferentialEvolution
from prefect_tao.searching.numbered_points import NumberedPoints
from prefect_tao.searching.search_plan import SearchPlan
from prefect_tao.searching.space import Space

KEEPING_NOTES = ("cma-es", "nsga-ii")  # which need what they wrote down at earlier trials


def sampler_of(plan: SearchPlan, space: Space, number: int) -> BaseSampler:
    """The sampler that proposes configuration `number`.

    It is made anew for every one, so that what it proposes follows from the seed, the number and what the study
    holds, in this process or in any other.
    """
    if plan.sampler == "bayesian" and not space.is_conditional:
        return BayesianSampler(space.axes, plan.seed, space.first, space.weights)
    if plan.sampler in ("random", "grid", "qmc"):
        return NumberedPoints(plan.sampler, space, plan.seed)
    seed = int(np.random.SeedSequence((plan.seed, number)).generate_state(1)[0])
    if plan.sampler in ("tpe", "bayesian"):  # values that limit each other fold the ground under a Gaussian process
        return TPESampler(seed=seed, n_startup_trials=5)
    if plan.sampler == "cma-es":
        return CmaEsSampler(seed=seed)
    if plan.sampler == "nsga-ii":
        return NSGAIISampler(seed=seed, population_size=max(2, plan.population))
    return DifferentialEvolution(space, plan.seed, plan.mutation, plan.crossover)
