"""The flow `run`: one action, or one plain command, on one target."""

from __future__ import annotations

from typing import Unpack

from prefect import get_run_logger
from prefect.runtime.flow_run import get_parameters as parameters

from prefect_tao.flows.launch_flow import differing, launch_flow
from prefect_tao.flows.search import planned, run_search
from prefect_tao.flows.steps import launch_step, run_step, step_name, with_count
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import masked
from prefect_tao.jobs.search_outcome import SearchOutcome
from prefect_tao.launch.parameters.declared import RunParameters, SearchParameters
from prefect_tao.launch.parameters.derived import completed, takes
from prefect_tao.preflight.plans.search_words import review_lines
from prefect_tao.preflight.resolve.all_gpus import wants_all
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.policy import has_budget, is_search
from prefect_tao.preflight.resolve.resolving import resolve_given, runs_image
from prefect_tao.preflight.resolve.translating import Parameters, proofs_from
from prefect_tao.tasks import confirmation
from prefect_tao.tasks.runkeys import known_key
from prefect_tao.tasks.targets.opening import catalog_of

NAME_LENGTH = 60


def _run_name() -> str:
    """The run's name in the UI: what runs where, cut to what fits into a list."""
    given = parameters()
    what = " ".join(word for word in (given.get("model"), given.get("action")) if word) or str(
        given.get("command") or "nothing"
    )
    what = f"{masked(' '.join(what.split()))[:NAME_LENGTH]} on {given.get('target', 'process')}"
    values = differing(given.get("overrides"))
    return f"{what}: {values}"[: 2 * NAME_LENGTH] if values else what


@launch_flow("run", _run_name)
@takes(RunParameters)
async def run(**given: Unpack[RunParameters]) -> Outcome | JobHandle | SearchOutcome:
    """Launch one job exactly once and, unless told otherwise, stay with it to its end.

    A training of a model that AutoML can search becomes a search, unless its policy is off. Returns the outcome, that
    of the search, or the handle of a detached launch. Raises InvalidInput before anything is launched, JobFailed
    with cause and remedy. When the run is cancelled, the job ends, verified; when it crashes, the job goes on, and a
    retry attaches to it.
    """
    target, run_key = given["target"], await known_key(given["run_key"])
    if is_search(await catalog_of(target), given):
        given = await _decided(given)
        if has_budget(given):
            return await run_search({**completed(SearchParameters, given), **given}, run_key)
    resolved = await _resolved(given)
    # Named after what was asked for: how many GPUs a machine has may be another number in the next try.
    proofs, step = proofs_from(given), step_name(resolved, given["step"])
    if wants_all(given):
        resolved = await _resolved(await with_count(given, target, run_key))
    asked = given["command"] is None and runs_image(resolved) and not proofs.image_confirmed
    confirm = confirmation.confirm_image if asked and await confirmation.is_interactive() else None
    if not given["long_running_enabled"]:
        handle = await launch_step(resolved, target, step, run_key, proofs, confirm)
        get_run_logger().info("detached: prefect-tao watch %s --target %s", handle.name, target)
        return handle
    minutes = given["status_interval_minutes"]
    return (await run_step(resolved, target, step, run_key, proofs, minutes=minutes, confirm=confirm)).outcome


async def _decided(given: RunParameters) -> RunParameters:
    """The parameters of a training that would be a search: without a budget, a person who started it here is asked."""
    if has_budget(given) or not await confirmation.is_interactive():
        return given
    search = await planned(completed(SearchParameters, given))
    trials = await confirmation.confirm_search(f"{search.title} on {given['target']}", "\n".join(review_lines(search)))
    decided: RunParameters = {**given, "automl_policy": "off"} if trials is None else {**given, "max_trials": trials}
    return decided


async def _resolved(given: Parameters) -> Resolved:
    return resolve_given(given, await catalog_of(given["target"]))
