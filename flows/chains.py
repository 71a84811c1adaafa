"""The flow `chain`: several actions, each with what those before it made, all of them checked before the first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Unpack

from prefect.runtime.flow_run import get_parameters as parameters
from prefect.states import Completed

from prefect_tao.flows.launch_flow import differing, launch_flow
from prefect_tao.flows.search import run_search, with_price
from prefect_tao.flows.steps import Done, Gates, for_run, run_step, step_exists, together, told, with_count
from prefect_tao.jobs.chain_outcome import ChainOutcome, StepState
from prefect_tao.jobs.errors import Detached, InvalidInput, JobCanceled, JobFailed, refusal
from prefect_tao.jobs.finding import blocking
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.search_outcome import SearchOutcome
from prefect_tao.launch.parameters.declared import ChainParameters
from prefect_tao.launch.parameters.derived import takes
from prefect_tao.preflight.gates import GATES
from prefect_tao.preflight.plans.chain_plan import chosen_steps, plan_chain
from prefect_tao.preflight.plans.recipes import RECIPES
from prefect_tao.preflight.plans.searches import plan_search, search_given
from prefect_tao.preflight.plans.step import Step, named_findings, promised, resolve_step, with_winners
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.translating import proofs_from
from prefect_tao.tasks.artifacts.review import publish_findings
from prefect_tao.tasks.artifacts.summary import Summary
from prefect_tao.tasks.cancellation import canceling, root_id
from prefect_tao.tasks.gate_tasks import Gating, admit, ask_gates, prepare_launch
from prefect_tao.tasks.reporting import listeners
from prefect_tao.tasks.runkeys import known_key
from prefect_tao.tasks.step_checks import check_again, check_movement
from prefect_tao.tasks.targets.opening import canonical, catalog_of


def _run_name() -> str:
    given = parameters()
    steps = given.get("steps") or RECIPES.get(str(given.get("recipe")), ())
    words = [str(step.get("name") or step.get("action") or "step") for step in steps if isinstance(step, Mapping)]
    values = differing(given.get("overrides"))
    return f"{given.get('model') or 'chain'}: {' > '.join(words)}{f' ({values})' if values else ''}"[:120]


@launch_flow("chain", _run_name)
@takes(ChainParameters)
async def chain(**given: Unpack[ChainParameters]) -> ChainOutcome:
    """Run steps that hand their results on; independent ones side by side.

    Before the first launch every step is checked; what an earlier step will make is checked again just before it is
    used. A step that fails stops those that wait for it and no others. A retry goes on at the step that failed.
    """
    run_key = await known_key(given["run_key"])
    planned = plan_chain(chosen_steps(given["steps"], given["recipe"]), given)
    planned = [replace(step, given=await with_count(step.given, step.target, run_key)) for step in planned]
    first = await _check_all(planned, run_key)
    run = run_key or root_id()
    keys = {step.name: job_key(run, step.name) for step in planned}
    summary = Summary(planned, _run_name(), job_key(run, "chain"), keys)
    listeners.set((*listeners.get(), summary))
    await summary.publish()
    await _run_all(planned, summary, run_key, given["status_interval_minutes"], first)
    found = summary.outcome()
    states = {step.state for step in found.steps}
    # One job that was cancelled by its name does not hide what went wrong elsewhere.
    if StepState.CANCELED in states and (StepState.ERROR not in states or await canceling(root_id())()):
        raise JobCanceled("a job of the chain was cancelled and is over")
    if found.bad:
        raise _failure(found)
    return found


def _platform_of(target: str) -> str:
    return canonical(target).platform


async def _check_all(planned: list[Step], run_key: str | None) -> dict[str, Gates]:
    """Ask every gate about all steps that have no job yet. Raises `refusal` with all that stands in the way of any.

    The steps that wait for no other have passed with that: how they are admitted, by name.
    """
    promises = {step.name: promised(step) for step in planned}
    findings = await check_movement(planned)
    gatings: dict[str, Gating] = {}
    for step in planned:
        try:
            catalog = await catalog_of(step.target)
            resolved = resolve_step(step, promises, _platform_of, catalog)
            if step.searches and not blocking(resolved.findings):
                search = plan_search(search_given(step, promises, resolved), _platform_of(step.target), catalog)
                await with_price(search, step.target)
        except InvalidInput as error:
            findings += named_findings(step.name, error)
            continue
        if not await step_exists(resolved, step.target, step.name, run_key):
            resolved, key = for_run(resolved, run_key, step.name)
            gatings[step.name] = Gating(await prepare_launch(resolved, step.target, proofs_from(step.given), key))
    states = list((await ask_gates(GATES, gatings)).values()) if gatings else []
    for name, gating in gatings.items():
        findings += named_findings(name, gating.failed)
    if findings:
        await publish_findings(_run_name(), job_key(run_key or root_id(), "chain"), {"all steps": findings})
        raise refusal(findings)
    for state in states:
        await state.aresult()  # a gate that broke instead of answering

    def gates(gating: Gating, target: str) -> Gates:
        return lambda _, key: admit(gating, target, key, states)

    first = [step for step in planned if step.name in gatings and not step.after]
    return {step.name: gates(gatings[step.name], step.target) for step in first}


async def _run_all(
    planned: list[Step], summary: Summary, run_key: str | None, minutes: float, first: Mapping[str, Gates]
) -> None:
    """All steps, each as soon as those it waits for are done."""
    running: dict[str, asyncio.Task[Done | None]] = {}
    async with together() as group:
        for step in planned:
            gates = first.get(step.name)
            running[step.name] = group.create_task(_run_one(step, running, summary, run_key, minutes, gates))


async def _run_one(
    step: Step,
    running: Mapping[str, asyncio.Task[Done | None]],
    summary: Summary,
    run_key: str | None,
    minutes: float,
    gates: Gates | None,
) -> Done | None:
    """The step's end, or None when it did not end well, which does not stop the others."""
    parents = {name: await running[name] for name in step.after}
    if missing := [name for name, parent in parents.items() if parent is None]:
        await summary.note(summary[step.name].skipped(missing))
        return None
    done = {name: parent for name, parent in parents.items() if parent is not None}
    try:
        step = with_winners(step, {name: one.values for name, one in done.items() if one.values})
        outcomes = {name: one.outcome for name, one in done.items()}
        resolved = resolve_step(step, outcomes, _platform_of, await catalog_of(step.target))
        await summary.note(summary[step.name].running(_gpus(resolved)))
        states, proofs = [one.state for one in done.values()], proofs_from(step.given)
        gates = gates or (lambda launch, key: check_again(step.name, launch, step.target, key, proofs, states))
        if step.searches:
            given = {**search_given(step, outcomes, resolved), "status_interval_minutes": minutes}
            ended = _won(await run_search(given, run_key, step.name, states, gates))
        else:
            ended = await run_step(
                resolved, step.target, step.name, run_key, proofs, states, minutes, title=step.title, gates=gates
            )
    except Detached:
        raise
    except Exception as error:  # whatever it is, the other steps go on
        state = StepState.CANCELED if isinstance(error, JobCanceled) else StepState.ERROR
        await summary.note(summary[step.name].failed(error, state, told(error)))
        return None
    await summary.note(summary[step.name].complete(ended.outcome))
    return ended


def _won(found: SearchOutcome) -> Done:
    """A step that was a search leaves what its winner left, and hands its values on. Raises JobFailed."""
    if found.winner is None or found.best is None:
        raise JobFailed(f"what trial {found.best_number} left cannot be read", "read the page of the search")
    return Done(found.winner, Completed(data=found.study), dict(found.best.overrides))


def _gpus(resolved: Resolved) -> int:
    return resolved.request.resources.total_gpus if resolved.request else 0


def _failure(found: ChainOutcome) -> JobFailed:
    """One error for the whole chain, with the cause of each step that failed by itself."""
    failed = [step for step in found.bad if step.state is not StepState.SKIPPED]
    skipped = [step.name for step in found.bad if step.state is StepState.SKIPPED]
    words = "; ".join(f"{step.name}: {step.message.splitlines()[0]}" for step in failed)
    more = f"; not begun: {', '.join(skipped)}" if skipped else ""
    remedy = failed[0].verdict.remedy if failed[0].verdict else "read the page of the chain"
    return JobFailed(
        f"{len(found.bad)} of {len(found.steps)} steps did not end well: {words}{more}",
        f"{remedy.rstrip('.')}. A retry of the run goes on there.",
        failed[0].verdict,
    )
