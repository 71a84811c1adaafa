"""The flow `chain`: several actions, each with what those before it made, every one of them checked before the first.

Prefect builds the form of a deployment from the signature and the docstring, so annotations are not postponed here.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime.flow_run import get_parameters as parameters
from pydantic import Field

from prefect_tao.flows.steps import Done, canceled, run_step, step_exists, together, told, with_count
from prefect_tao.jobs.chain_outcome import ChainOutcome, StepState
from prefect_tao.jobs.errors import InvalidInput, JobCanceled, JobFailed
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.request import ALL_GPUS
from prefect_tao.preflight.plans.chain_plan import SHARED_PARAMETERS, chosen_steps, plan_chain
from prefect_tao.preflight.plans.recipes import RECIPES
from prefect_tao.preflight.plans.step import Step, named_findings, promised, resolve_step
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.parameters import proofs_from
from prefect_tao.preflight.resolve.policy import AutoMLPolicy
from prefect_tao.tasks.artifacts.review import publish_findings
from prefect_tao.tasks.artifacts.summary import Summary
from prefect_tao.tasks.cancellation import cancel_jobs, canceling, root_id
from prefect_tao.tasks.runkeys import known_key
from prefect_tao.tasks.step_checks import check_movement, check_step
from prefect_tao.tasks.targets.opening import canonical, catalog_of

Recipe = Literal["deploy", "convert", "prune", "quantize"]


def _run_name() -> str:
    given = parameters()
    steps = given.get("steps") or RECIPES.get(str(given.get("recipe")), ())
    words = [str(step.get("name") or step.get("action") or "step") for step in steps if isinstance(step, Mapping)]
    return f"{given.get('model') or 'chain'}: {' > '.join(words)}"[:120]


@flow(
    name="chain",
    flow_run_name=_run_name,
    persist_result=True,
    result_serializer="json",
    on_cancellation=[cancel_jobs],
)
async def chain(
    steps: list[dict[str, Any]] | None = None,
    recipe: Recipe | None = None,
    model: str | None = None,
    target: str = "process",
    train_root: str | list[str] | None = None,
    eval_root: str | list[str] | None = None,
    inference_root: str | list[str] | None = None,
    calibration_root: str | list[str] | None = None,
    train_wds_root: str | list[str] | None = None,
    data_format: str | None = None,
    overrides: dict[str, Any] | None = None,
    image: str | None = None,
    confirm_image: bool = False,
    gpus: Annotated[int | None, Field(ge=ALL_GPUS)] = None,
    nodes: Annotated[int | None, Field(ge=1)] = None,
    cpus: int | None = None,
    memory: str | None = None,
    time_limit: str | None = None,
    shm: str | None = None,
    env: dict[str, str] | None = None,
    secrets: list[str] | None = None,
    automl_policy: AutoMLPolicy = "on",
    mount_proof: dict[str, str] | None = None,
    run_key: str | None = None,
    status_interval_minutes: Annotated[float, Field(gt=0)] = 5.0,
) -> ChainOutcome | State[None]:
    """Run steps that hand their results on; independent ones side by side.

    Before the first launch every step is checked; what an earlier step will make is checked again just before it is
    used. A step that fails stops those that wait for it and no others. A retry goes on at the step that failed.

    Args:
        steps: The steps: maps with the parameters of a run, a name, and after: the steps it waits for.
        recipe: A ready-made chain instead of steps.
        model: The model of all steps that name none.
        target: Where the steps run that name no target of their own.
        train_root: Where the training data is, for the steps that use it.
        eval_root: Where the evaluation data is, for the steps that use it.
        inference_root: Where the data for inference is, for the steps that use it.
        calibration_root: Where the calibration data is, for the steps that use it.
        train_wds_root: Where training data in WebDataset shards is, for the steps that use it.
        data_format: The form of the data below the roots, where a model knows several.
        overrides: Spec values for all steps that know them, by dotted key or short word; a step's own win.
        image: Container image for steps that name none and whose action has none of its own; this confirms it.
        confirm_image: Accept the catalog's default images.
        gpus: GPUs per node, for the steps that do not say; -1 for all that a node has.
        nodes: Number of nodes, for the steps that do not say.
        cpus: CPU cores per node, for the steps that do not say.
        memory: Memory per node, for example 64G.
        time_limit: Wall time of one attempt, for example 4h.
        shm: Size of /dev/shm, for example 8G.
        env: Environment variables of all steps; never secrets.
        secrets: Names of secrets, such as HF_TOKEN; never values.
        automl_policy: on lets AutoML search where a model has it; off runs plain trainings.
        mount_proof: By path, how it is mounted into the jobs, for platforms that cannot be asked.
        run_key: Attach to the jobs of an earlier run, by its key or by the id of its flow run.
        status_interval_minutes: Minutes between status lines.
    """
    given = dict(locals())  # the parameters by name; nothing else is there yet
    run_key = await known_key(run_key)
    planned = plan_chain(chosen_steps(steps, recipe), {key: given[key] for key in SHARED_PARAMETERS})
    planned = [replace(step, given=await with_count(step.given, step.target, run_key)) for step in planned]
    await _check_all(planned, run_key)
    summary = Summary(planned, f"chain-{job_key(run_key or root_id(), 'chain')}")
    await summary.publish()
    await _run_all(planned, summary, run_key, status_interval_minutes)
    found = summary.outcome()
    states = {step.state for step in found.steps}
    # One job that was cancelled by its name does not hide what went wrong elsewhere.
    if StepState.CANCELED in states and (StepState.ERROR not in states or await canceling(root_id())()):
        return canceled(JobCanceled("a job of the chain was cancelled and is over"))
    if found.bad:
        raise _failure(found)
    return found


def _platform_of(target: str) -> str:
    return canonical(target).platform


async def _check_all(planned: list[Step], run_key: str | None) -> None:
    """Every gate of every step that has no job yet. Raises InvalidInput with all that stands in the way of any."""
    promises = {step.name: promised(step) for step in planned}
    findings = await check_movement(planned)
    checks = []
    for step in planned:
        try:
            resolved = resolve_step(step, promises, _platform_of, await catalog_of(step.target))
        except InvalidInput as error:
            findings += named_findings(step.name, error)
            continue
        if not await step_exists(resolved, step.target, step.name, run_key):
            checks.append(check_step(step.name, resolved, step.target, proofs_from(step.given)))
    findings += [finding for said in await asyncio.gather(*checks) for finding in said]
    if findings:
        await publish_findings(job_key(run_key or root_id(), "chain"), {"all steps": findings})
        raise InvalidInput.of(findings)


async def _run_all(planned: list[Step], summary: Summary, run_key: str | None, minutes: float) -> None:
    """All steps, each as soon as those it waits for are done."""
    running: dict[str, asyncio.Task[Done | None]] = {}
    async with together() as group:
        for step in planned:
            running[step.name] = group.create_task(_run_one(step, running, summary, run_key, minutes))


async def _run_one(
    step: Step,
    running: Mapping[str, asyncio.Task[Done | None]],
    summary: Summary,
    run_key: str | None,
    minutes: float,
) -> Done | None:
    """The step's end, or None when it did not end well, which does not stop the others."""
    parents = {name: await running[name] for name in step.after}
    if missing := [name for name, parent in parents.items() if parent is None]:
        await summary.note(summary[step.name].skipped(missing))
        return None
    done = {name: parent for name, parent in parents.items() if parent is not None}
    try:
        outcomes = {name: one.outcome for name, one in done.items()}
        resolved = resolve_step(step, outcomes, _platform_of, await catalog_of(step.target))
        await summary.note(summary[step.name].running(_gpus(resolved)))
        states = [one.state for one in done.values()]
        ended = await run_step(
            resolved, step.target, step.name, run_key, proofs_from(step.given), states, minutes, title=step.title
        )
    except Exception as error:  # whatever it is, the other steps go on
        state = StepState.CANCELED if isinstance(error, JobCanceled) else StepState.ERROR
        await summary.note(summary[step.name].failed(error, state, told(error)))
        return None
    await summary.note(summary[step.name].complete(ended.outcome))
    return ended


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
