"""How close searches come to the best after 30 trials, beside random search, Optuna's TPE and the existing tool."""

from __future__ import annotations

import heapq
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import TrialState
from threadpoolctl import threadpool_limits

from benchmarks.search_problems import Params, Problem, hartmann6
from prefect_tao.catalog.nouns import SearchParameter
from prefect_tao.searching.search_plan import SearchPlan
from prefect_tao.searching.space import Space, space_of
from prefect_tao.searching.study import Proposal, Study

TRIALS, AT_ONCE = 30, 4
EPOCHS = 27


def space_for(problem: Problem) -> Space:
    parameters = []
    for name, axis in problem.space.items():
        row: dict[str, Any] = {"name": name, "type": "float", "default": problem.template[name]}
        if isinstance(axis, CategoricalDistribution):
            row |= {"type": "categorical", "options": list(axis.choices)}
        else:
            found: Any = axis
            kind = "int" if isinstance(axis, IntDistribution) else "float"
            row |= {"type": kind, "min": found.low, "max": found.high, "log": found.log}
        parameters.append(SearchParameter.model_validate(row))
    return space_of(parameters, {})


def ours(problem: Problem, seed: int, algorithm: str = "bayesian") -> float:
    """The regret of a search of ours, with trials that end in the order in which they began."""
    plan = SearchPlan(algorithm, max_trials=TRIALS, seed=seed, max_failures=TRIALS)
    study, running = Study.open(None, "bench", plan, space_for(problem)), []
    while True:
        while len(running) < AT_ONCE and (proposal := study.ask()) is not None:
            running.append(proposal)
        if not running:
            break
        ended = running.pop(0)
        study.tell(ended.number, problem.value(ended.values))
    best = study.best
    return math.inf if best is None or best.result is None else best.result[0] - problem.best


def optunas(problem: Problem, seed: int, sampler: Callable[[int], BaseSampler]) -> float:
    study, running = optuna.create_study(sampler=sampler(seed)), []
    values = [math.inf]
    for _ in range(TRIALS + AT_ONCE):
        if len(study.trials) < TRIALS:
            running.append(study.ask(dict(problem.space)))
        if running and (len(running) == AT_ONCE or len(study.trials) == TRIALS):
            ended = running.pop(0)
            value = problem.value(ended.params)
            if math.isfinite(value):
                values.append(value)
                study.tell(ended, value)
            else:
                study.tell(ended, state=TrialState.FAIL)
    return min(values) - problem.best


def random_search(problem: Problem, seed: int) -> float:
    return optunas(problem, seed, lambda one: RandomSampler(seed=one))


def tpe(problem: Problem, seed: int) -> float:
    return optunas(problem, seed, lambda one: TPESampler(seed=one))


def median(search: Callable[[Problem, int], float], problem: Problem, seeds: int) -> float:
    return statistics.median(search(problem, seed) for seed in range(seeds))


def in_epochs(algorithm: str, value: Callable[[Params, int, int], float], seed: int) -> float:
    """The regret of a search on Hartmann6 that may train 30 x 27 epochs, with 4 places that are never empty."""
    problem = hartmann6()
    most = TRIALS * EPOCHS
    plan = SearchPlan(algorithm, max_trials=10 * TRIALS, max_epochs=EPOCHS, seed=seed)
    study = Study.open(None, "bench", plan, space_for(problem))
    running: list[tuple[int, int, Proposal]] = []
    spent, now = 0, 0
    while True:
        while len(running) < AT_ONCE and spent < most and (proposal := study.ask()) is not None:
            paid = 0 if proposal.parent is None else study.history[proposal.parent].epochs or 0
            new = (proposal.epochs or EPOCHS) - paid
            spent += new
            heapq.heappush(running, (now + new, proposal.number, proposal))
        if not running:
            break
        now, _, ended = heapq.heappop(running)
        study.tell(ended.number, value(ended.values, ended.epochs or EPOCHS, EPOCHS))
    best = study.best
    return math.inf if best is None else problem.value(best.values) - problem.best


def suggestion_cpu(trials: int = 50, axes: int = 20) -> float:
    """Seconds of CPU that one proposal takes of a search with so many results, on one BLAS thread."""
    space = space_of(
        [SearchParameter.model_validate({"name": f"x{n}", "type": "float", "min": 0, "max": 1}) for n in range(axes)],
        {},
    )
    study = Study.open(None, "bench", SearchPlan("bayesian", max_trials=trials + 8), space)
    times = []
    with threadpool_limits(1):
        for number in range(trials + 8):
            started = time.process_time()
            proposal = study.ask()
            if number >= trials:
                times.append(time.process_time() - started)
            if proposal is not None and number < trials:
                study.tell(number, sum((value - 0.3) ** 2 for value in proposal.values.values()))
    return statistics.median(times)
