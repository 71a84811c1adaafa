"""A search in words, for its review: how it goes about, what it varies, and the most that it may spend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prefect_tao.preflight.plans.searches import PlannedSearch
from prefect_tao.preflight.plans.sweep_plan import Point


def budget_words(search: PlannedSearch) -> Iterator[str]:
    """What it may spend, a line for each limit."""
    budget = search.budget
    trials = f"at most {budget.trials} trials" if budget.trials else f"as many trials as {search.plan.algorithm} wants"
    yield f"{trials}, {budget.concurrent} at once"
    if budget.gpu_hours:
        yield f"at most {budget.gpu_hours:g} GPU hours"
    if budget.cost:
        yield f"at most {budget.cost:g} in money" + (f", at {budget.price:g} for a GPU hour" if budget.price else "")
    if budget.hours:
        yield f"at most {budget.hours:g} hours"


def review_lines(search: PlannedSearch) -> list[str]:
    """What a person should see before a search begins, as plain lines."""
    judged = ", ".join(f"{one.metric} ({one.direction})" for one in search.objectives)
    most = search.most_gpu_hours()
    lines = [f"algorithm: {algorithm_in_words(search)}", f"judged by: {judged}"]
    lines += [f"budget: {words}" for words in budget_words(search)]
    if most is None:
        lines.append("GPU hours: not bounded; give --time-limit or --max-gpu-hours")
    elif most:
        price = search.budget.price
        lines.append(f"GPU hours: at most {most:g}" + (f", {most * price:g} in money" if price else ""))
    lines += ["varied:", *(f"  {name}: {limits}" for name, limits in ranges_in_words(search))]
    return [*lines, "first trials:", *(f"  {number}: {label}" for number, label in first_batch(search))]


def first_batch(search: PlannedSearch) -> list[tuple[int, str]]:
    """The trials that begin at once: the template's own values first."""
    from prefect_tao.searching.study import Study

    study = Study.open(None, "review", search.plan, search.space)
    asked = [study.ask() for _ in range(search.budget.concurrent)]
    return [(one.number, Point(dict(one.values)).label) for one in asked if one is not None]


def as_json(search: PlannedSearch) -> dict[str, Any]:
    """The same for programs."""
    return {
        "algorithm": search.plan.algorithm,
        "objectives": [vars(one) for one in search.objectives],
        "budget": vars(search.budget),
        "most_gpu_hours": search.most_gpu_hours(),
        "ranges": dict(ranges_in_words(search)),
        "first_trials": [label for _, label in first_batch(search)],
    }


def algorithm_in_words(search: PlannedSearch) -> str:
    """The algorithm, and what stands in for its model where that does not fit the space."""
    other = search.plan.sampler == "bayesian" and search.space.is_conditional
    return search.plan.algorithm + (" (by tpe, because values limit each other)" if other else "")


def ranges_in_words(search: PlannedSearch) -> list[tuple[str, str]]:
    """The axes of the space with their limits."""
    return [(name, _told(axis)) for name, axis in search.space.axes.items()]


def _told(axis: Any) -> str:
    """The limits of one axis in a few words."""
    if choices := getattr(axis, "choices", None):
        return "one of " + ", ".join(map(str, choices))
    step = f", in steps of {axis.step:g}" if axis.step not in (None, 1) else ""
    return f"{axis.low:g} to {axis.high:g}{', log scale' if axis.log else ''}{step}"
