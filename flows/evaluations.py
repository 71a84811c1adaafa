"""The evaluations around a search: of the checkpoint that trials begin with, and of the winner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prefect import get_run_logger
from prefect.utilities.annotations import quote

from prefect_tao.catalog.nouns import ActionEntry
from prefect_tao.flows.pool import Trial
from prefect_tao.flows.search_place import SearchPlace
from prefect_tao.flows.steps import for_run, told
from prefect_tao.jobs.errors import Detached, InvalidInput, JobCanceled
from prefect_tao.jobs.finding import blocking
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.preflight.plans.searches import EVALUATE, PlannedSearch
from prefect_tao.preflight.resolve.ask import ROOT, Resolved
from prefect_tao.preflight.resolve.handoffs import FROM_PARENT
from prefect_tao.preflight.resolve.resolving import resolve_ask
from prefect_tao.preflight.resolve.structure import knows, structure
from prefect_tao.preflight.resolve.translating import ask_from
from prefect_tao.preflight.resolve.trees import is_blank
from prefect_tao.runner.inside.pointers import get_pointer
from prefect_tao.tasks.actions import task_of

if TYPE_CHECKING:
    from prefect_tao.searching.trial_record import TrialRecord

# Where a training takes the weights that it begins with.
STARTS = ("pretrained_model_path", "resume_training_checkpoint_path", "pretrained_path")


async def evaluate_start(search: PlannedSearch, place: SearchPlace) -> dict[str, float]:
    """The metrics of the checkpoint that all trials begin with; empty where there is none, or none is wanted."""
    start = starting_checkpoint(search)
    action = _evaluation(search, place)
    if start is None or action is None or not search.given["baseline"]:
        return {}
    key = next((key for key, word in action.handoff.items() if word in FROM_PARENT), None)
    return await _metrics(place, lambda: _job(search, place, f"{place.step}-baseline", {key: start} if key else {}, ()))


def starting_checkpoint(search: PlannedSearch) -> str | None:
    """The checkpoint that the base spec names."""
    request = search.base.request
    for key in request.inputs if request else ():
        value = get_pointer(search.base.spec, key)
        if key.rpartition(".")[2] in STARTS and isinstance(value, str) and not is_blank(value):
            return value
    return None


async def evaluate_winner(
    search: PlannedSearch, winner: Outcome, best: TrialRecord, place: SearchPlace
) -> dict[str, float]:
    """The metrics of the winner, by the evaluate action; empty where the model has none, or none is wanted."""
    if search.given["evaluate_trials"]:  # it was measured so, and its job is attached to
        step = place.evaluation_step(best.number)
    elif search.given["final_evaluation"] and _evaluation(search, place) and search.base.action != EVALUATE:
        step = f"{place.step}-final"
    else:
        return {}
    return await _metrics(place, lambda: evaluation_of(search, winner, best.values, place, step))


def evaluation_of(
    search: PlannedSearch, trained: Outcome, values: Mapping[str, Any], place: SearchPlace, step: str
) -> Trial:
    """The evaluation of what a training with these values left, as a job. Raises InvalidInput."""
    model = place.catalog.models[search.base.model]
    own = structure({"overrides": values}, model, model.actions[search.base.action])
    shape = {key: value for key, value in own.items() if knows(model.actions[EVALUATE], key)}
    return _job(search, place, step, shape, (trained,))


def _evaluation(search: PlannedSearch, place: SearchPlace) -> ActionEntry | None:
    model = place.catalog.models.get(search.base.model)
    return model.actions.get(EVALUATE) if model else None


async def _metrics(place: SearchPlace, job: Callable[[], Trial]) -> dict[str, float]:
    """What an evaluation measures. What goes wrong with it is told, and does not fail the search."""
    try:
        one = job()
        outcome: Outcome = await task_of(one.request)(  # type: ignore[assignment]
            quote(one.request), place.target, one.key, one.label, place.minutes, wait_for=list(one.after)
        )
    except (Detached, JobCanceled):
        raise
    except Exception as error:
        get_run_logger().warning("an evaluation was not done: %s", told(error).splitlines()[0])
        return {}
    return dict(outcome.metrics)


def _job(
    search: PlannedSearch, place: SearchPlace, step: str, values: Mapping[str, Any], parents: tuple[Outcome, ...]
) -> Trial:
    resolved, key = for_run(_resolved(search, place, values, parents), place.run_key, step)
    assert resolved.request is not None  # noqa: S101 - refused above
    label = f"{search.base.model} {EVALUATE} on {place.target}: {step.removeprefix(f'{place.step}-')}"
    return Trial(step, resolved.request, key, label, place.after)


def _resolved(
    search: PlannedSearch, place: SearchPlace, values: Mapping[str, Any], parents: tuple[Outcome, ...]
) -> Resolved:
    """What the evaluation means, with the data of the search. Raises InvalidInput."""
    model = place.catalog.models[search.base.model]
    action, trained = model.actions[EVALUATE], model.actions[search.base.action]
    roots = {f"{rule.source}{ROOT}" for rule in action.datasets.values()}
    given = {
        key: value
        for key, value in search.given.items()
        if value is not None
        and (not key.endswith(ROOT) or key in roots)
        and key not in ("specs", "overrides", "action")
    }
    shared = {
        key: value
        for key, value in (search.given.get("overrides") or {}).items()
        if key not in trained.handoff and _is_data(model.shorthand.get(key, key), action)
    }
    ask = ask_from({**given, "action": EVALUATE, "overrides": {**shared, **values}, "automl_policy": "off"})
    resolved = resolve_ask(replace(ask, parents=parents), place.catalog)
    if wrong := blocking(resolved.findings):
        raise InvalidInput.of(wrong)
    return resolved


def _is_data(key: str, action: ActionEntry) -> bool:
    return (key.startswith(("dataset.", "model.")) or key in action.datasets) and knows(action, key)
