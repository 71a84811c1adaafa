"""What a search is judged by, and what it may spend. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prefect_tao.catalog.nouns import ActionEntry, ModelEntry
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.quantities import Direction
from prefect_tao.preflight.plans.sweep_plan import known_directions
from prefect_tao.preflight.resolve.problems import did_you_mean, nearest

TRIALS, CONCURRENT = 20, 4
OBJECTIVE = ("metric", "name", "direction")


@dataclass(frozen=True)
class Objective:
    """A metric, and which way it is better."""

    metric: str
    direction: Direction


@dataclass(frozen=True)
class Budget:
    """What a search may spend; None is no limit."""

    trials: int | None
    concurrent: int
    gpu_hours: float | None = None
    cost: float | None = None
    price: float | None = None
    hours: float | None = None


def objectives_of(
    given: Mapping[str, Any], model: ModelEntry | None, action: ActionEntry | None
) -> tuple[Objective, ...]:
    """The metrics with their directions: as a person says, else as the catalog does. Never guessed from the name."""
    known = known_directions(model, action)
    listed = given["objectives"]
    if listed is None:
        usual = (action.metric if action else None) or (model.automl.metric if model else None)
        listed = [{"metric": given["metric"] or usual, "direction": given["direction"]}]
    found = []
    for one in listed:
        _check_objective(one)
        metric = one.get("metric") or one.get("name")
        direction = one.get("direction") or known.get(metric)
        if not metric:
            raise InvalidInput("the metric that trials are judged by is not known", "name it: --metric val_loss")
        if direction not in ("minimize", "maximize"):
            raise InvalidInput(
                f"{metric}: the catalog does not say whether more of it is better, and its name does not prove it",
                "say which: --direction minimize, or --direction maximize",
            )
        found.append(Objective(str(metric), direction))
    return tuple(found)


def _check_objective(one: Mapping[str, Any]) -> None:
    """Raises InvalidInput for what an objective does not have, such as a weight: metrics are not added up."""
    for key in one:
        if key not in OBJECTIVE:
            known = "an objective has a metric and a direction, and no weight"
            remedy = did_you_mean(nearest(key, OBJECTIVE, 1), known)
            raise InvalidInput(f"objectives: an objective has no {key}", remedy)


def budget_of(given: Mapping[str, Any], at_most: int | None) -> Budget:
    """Raises InvalidInput for more at once than the target takes."""
    concurrent = given["max_concurrent"]
    if at_most and concurrent and concurrent > at_most:
        raise InvalidInput(
            f"max_concurrent is {concurrent}, and the target takes {at_most} jobs at once",
            f"give --max-concurrent {at_most} or less, or raise the limit in the target's block",
        )
    return Budget(
        trials=given["max_trials"],
        concurrent=concurrent or min(CONCURRENT, at_most or CONCURRENT),
        gpu_hours=given["max_gpu_hours"],
        cost=given["max_cost"],
        price=given["gpu_hour_price"],
        hours=given["max_hours"],
    )
