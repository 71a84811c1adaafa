"""What a study proposes, as a trial that the pool can run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from prefect_tao.flows.pool import Trial
from prefect_tao.flows.search_place import SearchPlace
from prefect_tao.flows.steps import for_run, step_label
from prefect_tao.preflight.plans.searches import PlannedSearch, resolve_trial
from prefect_tao.preflight.plans.sweep_plan import Point
from prefect_tao.tasks.study_records import LABEL, RECORD, written

if TYPE_CHECKING:
    from prefect_tao.searching.study import Proposal

RESUME = "TAO_RESUME_CHECKPOINT"


def trial_of(search: PlannedSearch, place: SearchPlace, one: Proposal, origin: int, checkpoint: str | None) -> Trial:
    """The proposal as a launch with its own record in it; it goes on from `checkpoint`. Raises InvalidInput."""
    more = {"origin": origin, "rung": one.rung, "epochs": one.epochs, "parent": one.parent}
    env = {RECORD: written(one.number, one.configuration, one.values, **more)}
    told = written(one.number, one.configuration, one.values, **more, asked=round(time.time(), 3))
    values = dict(one.values)
    if one.epochs is not None and search.epoch_key:
        values[search.epoch_key] = one.epochs
    if checkpoint:
        env[RESUME] = checkpoint
        if search.resume_key:
            values[search.resume_key] = checkpoint
    step, label = place.trial_step(one.number), Point(dict(one.values)).label
    resolved, key = for_run(resolve_trial(search, values, place.catalog), place.run_key, step, label)
    request = resolved.request
    assert request is not None  # noqa: S101 - a launch without a request is refused above
    labels = {**request.labels, LABEL: told}
    request = request.model_copy(update={"env": {**request.env, **env}, "labels": labels})
    title = f"{step_label(request, place.target)}: trial {one.number}, {label}"
    return Trial(step, request, key, title, place.after)
