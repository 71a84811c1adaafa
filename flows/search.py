"""The flow `automl`: a search over an action's parameters, its trials side by side through the usual launch path."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as runtime
from prefect.runtime.flow_run import get_parameters as parameters

from prefect_tao.flows.evaluations import evaluate_start, evaluate_winner
from prefect_tao.flows.launch_flow import launch_flow
from prefect_tao.flows.search_place import SearchPlace
from prefect_tao.flows.steps import Gates, for_run, session_of, with_count, with_jobs
from prefect_tao.flows.trials import Trials
from prefect_tao.jobs.best_epoch import at_epoch
from prefect_tao.jobs.errors import InvalidInput, JobCanceled, JobFailed, Unreachable
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.request import masked
from prefect_tao.jobs.search_board import STEP, SearchFolder, earlier_best
from prefect_tao.jobs.search_outcome import SearchOutcome
from prefect_tao.launch.parameters.declared import SearchParameters
from prefect_tao.launch.parameters.derived import takes
from prefect_tao.preflight.plans.searches import PlannedSearch, plan_search
from prefect_tao.preflight.resolve.resolving import runs_image
from prefect_tao.preflight.resolve.translating import Parameters, proofs_from
from prefect_tao.tasks import confirmation
from prefect_tao.tasks.artifacts.search_page import SearchPage
from prefect_tao.tasks.artifacts.search_review import publish_search_review
from prefect_tao.tasks.cancellation import canceling, remember_target, root_id
from prefect_tao.tasks.gate_tasks import pass_gates
from prefect_tao.tasks.lost_checkpoints import remove_lost
from prefect_tao.tasks.reporting import listeners
from prefect_tao.tasks.runkeys import known_key
from prefect_tao.tasks.study_records import is_outdated, rebuilt, take_over, tell_ended, trial_step
from prefect_tao.tasks.targets.opening import canonical, catalog_of, open_target, saved_for

if TYPE_CHECKING:
    from prefect_tao.searching.study import Study


def _run_name() -> str:
    given = parameters()
    named = " ".join(word for word in (given.get("model"), given.get("action")) if word)
    what = named or str(given.get("command") or "nothing")
    return f"automl: {masked(' '.join(what.split()))[:60]} on {given.get('target', 'process')}"[:120]


@launch_flow("automl", _run_name)
@takes(SearchParameters)
async def automl(**given: Unpack[SearchParameters]) -> SearchOutcome:
    """Search for the values with which an action does best, many trials at once.

    The gates are passed once for all trials. A retry goes on where the search was: trials that run are attached to,
    and none is run twice. Budgets end it early and keep the best.
    """
    run_key = await known_key(given["run_key"])
    return await run_search(given, run_key)


async def run_search(
    given: Parameters,
    run_key: str | None,
    step: str = STEP,
    after: Sequence[State[Any]] = (),
    gates: Gates | None = None,
) -> SearchOutcome:
    """The search that the parameters mean, as a flow of its own, or as the step of another one with its `gates`.

    Raises InvalidInput before anything is launched, JobFailed where no trial gave a score, JobCanceled.
    """
    target, run = given["target"], run_key or root_id()
    if not given.get("long_running_enabled", True):
        raise InvalidInput("a search stays with its trials to the end", "leave --detach out; Ctrl-C leaves it running")
    search = await planned(given, run_key)
    folder = SearchFolder(run, step)
    study = await _study(search, folder, target, run_key, step)
    states = await _admitted(search, study, given, run_key, step, after, gates)
    place = SearchPlace(
        target=target,
        run_key=run_key,
        step=step,
        minutes=float(given["status_interval_minutes"]),
        catalog=await catalog_of(target),
        platform=(await open_target(target)).platform,
        after=tuple(states),
    )
    board = SearchPage(search, study, f"{search.title} on {target}", folder, str(runtime.id))
    await tell_ended(study, search, place.platform, run, step)
    await take_over(board, study, place.platform, run, step)
    trials = Trials(search, study, board, place)
    listeners.set((*listeners.get(), trials))
    await board.open()
    try:
        board.learned.baseline = await evaluate_start(search, place)
        await trials.run()
        await _conclude(trials)
    finally:
        await board.close()
    return await _judged(trials)


async def planned(given: Parameters, run_key: str | None = None) -> PlannedSearch:
    """The search that the parameters mean on their target. Raises InvalidInput, MissingDependency."""
    target = given["target"]
    most = (await open_target(target)).room.most if await session_of(target) else None
    counted = await with_count(given, target, run_key)
    platform, catalog = canonical(target).platform, await catalog_of(target)
    search = await asyncio.to_thread(plan_search, counted, platform, catalog, most)
    search = await with_price(search, target)
    earlier = search.given["warm_start"]
    return search.beginning_with(earlier_best(earlier)) if earlier else search


async def with_price(search: PlannedSearch, target: str) -> PlannedSearch:
    """The search with what a GPU of its target costs, as far as anybody knows. Raises InvalidInput."""
    session = await session_of(target)
    if session is None or search.budget.price:
        return search.at_price(None)
    try:
        return search.at_price(await (await saved_for(target)).price(session.platform, search.base.request))
    except Unreachable as error:  # without a budget of money it is only not shown
        if search.budget.cost:
            raise
        get_run_logger().warning("what a GPU costs could not be asked: %s", error.cause)
        return search


async def _study(search: PlannedSearch, folder: SearchFolder, target: str, run_key: str | None, step: str) -> Study:
    """The study in its storage; it is rebuilt from the job records where the run is older, or has gone on elsewhere."""
    from prefect_tao.searching.study import Study

    storage = search.given.get("storage") or folder.storage()
    name = f"{search.title.replace(' ', '-')}-{folder.key}"
    study = await asyncio.to_thread(Study.open, storage, name, search.plan, search.space)
    is_first = run_key is None and (runtime.run_count or 1) == 1
    session = None if is_first else await session_of(target)
    if session is None:
        return study
    run = run_key or root_id()
    if study.history and study.is_whole and not await is_outdated(study, session.platform, run, step):
        return study
    return await rebuilt(study, storage, search, session.platform, run, step)


async def _admitted(
    search: PlannedSearch,
    study: Study,
    given: Parameters,
    run_key: str | None,
    step: str,
    after: Sequence[State[Any]],
    gates: Gates | None,
) -> list[State[Any]]:
    """Pass the gates once for all trials, with the review; a search that has jobs already has passed them."""
    target = given["target"]
    resolved, key = for_run(search.base, run_key, step)
    if session := await session_of(target):
        await remember_target(target)
        keys = [job_key(run_key or root_id(), trial_step(step, one.number)) for one in study.history]
        if keys and await with_jobs(session.platform, keys, run_key, given["release_elsewhere"]):
            return list(after)
    proofs = proofs_from(given)
    asked = given["command"] is None and runs_image(resolved) and not proofs.image_confirmed
    confirm = confirmation.confirm_image if asked and await confirmation.is_interactive() else None
    gates = gates or (lambda launch, name: pass_gates(launch, target, name, proofs, after, confirm))
    passed = await gates(resolved, key)
    await publish_search_review(search, target, key)
    return passed.states[-1:]


async def _conclude(trials: Trials) -> None:
    """What is left to do when the last trial is over: the winner, its evaluation, and what the others leave."""
    board, study = trials.board, trials.study
    learned = board.learned
    learned.stopped = trials.why_stopped or study.verdict
    best = study.best
    if best is None or await canceling(root_id())():
        return
    left = await trials.outcome(best.number)
    if left is not None:
        row = board.outcome().best
        learned.winner = at_epoch(left, row.best_epoch if row else None)
        learned.final = await evaluate_winner(trials.search, learned.winner, best, trials.place)
    if trials.search.given["keep_checkpoints"] == "best":
        kept = {best.number, *(one.number for one in study.front)}
        await remove_lost(board.outcome(), kept, trials.place.platform)


async def _judged(trials: Trials) -> SearchOutcome:
    """The outcome, unless the run was cancelled, or nothing came of it. Raises JobCanceled, JobFailed."""
    found: SearchOutcome = trials.board.outcome()
    if await canceling(root_id())():
        raise JobCanceled("the search was cancelled, and its jobs are over")
    if trials.fault is not None:
        raise trials.fault
    if found.best is None:
        failed = [one.message for one in found.points if one.message]
        why = failed[-1].splitlines()[0] if failed else found.stopped or "no trial was run"
        raise JobFailed(f"no trial of the search has a score: {why}", "read the log of a trial, and correct it")
    if found.stopped:
        get_run_logger().warning("the search ended early: %s", found.stopped)
    return found
