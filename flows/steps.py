"""One step of a flow: look the job up, pass the gates, then either launch and leave, or run the action to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from prefect.client.schemas.objects import State
from prefect.states import Cancelled

from prefect_tao.jobs.errors import JobCanceled
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import attached
from prefect_tao.jobs.naming import job_key, run_label
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.ask import Resolved
from prefect_tao.tasks import launch, run_action
from prefect_tao.tasks.cancellation import is_root, remember_target, root_id
from prefect_tao.tasks.gates import Proofs, pass_gates
from prefect_tao.tasks.targets import has_driver, open_target


def step_name(resolved: Resolved, step: str | None) -> str:
    """What names the job within its run; below a user's own flow, calls of `run` differ by what they run."""
    if step:
        return step
    return "run" if is_root() or resolved.request is None else f"run-{resolved.request.digest[:8]}"


class Done(NamedTuple):
    """A step that ended well; its state is what later steps are drawn after in the run graph."""

    outcome: Outcome
    state: State[Outcome]


def step_label(request: JobRequest, target: str) -> str:
    """What a step is called in the run graph: dino train on slurm/polar."""
    what = " ".join(word for word in (request.model, request.action) if word) or request.command.split()[0]
    return f"{what} on {target}"


def for_run(resolved: Resolved, run_key: str | None, step: str) -> tuple[Resolved, str]:
    """The launch with the labels by which the jobs of the run are found, and the step's key."""
    run = run_key or root_id()
    if resolved.request is None:  # the gates will say why
        return resolved, job_key(run, step)
    labels = {**resolved.request.labels, "run": run_label(run), "step": step}
    request = resolved.request.model_copy(update={"labels": labels})
    return resolved.model_copy(update={"request": request}), job_key(run, step)


async def _admitted(
    resolved: Resolved, target: str, key: str, proofs: Proofs, after: Sequence[State[Any]]
) -> tuple[JobRequest, list[State[Any]]]:
    """The request and the gates it passed. A job that is there already is attached to without any gate."""
    if resolved.request is not None and has_driver(target):
        await remember_target(target)
        platform = (await open_target(target)).platform
        if await attached(platform, resolved.request, key):
            return resolved.request, list(after)
    states = await pass_gates(resolved, target, key, proofs, after)
    assert resolved.request is not None  # noqa: S101 - a launch without a request passes no gate
    return resolved.request, states


async def run_step(
    resolved: Resolved,
    target: str,
    step: str,
    run_key: str | None = None,
    proofs: Proofs = Proofs(),  # noqa: B008 - frozen
    after: Sequence[State[Any]] = (),
    minutes: float = 5.0,
) -> Done:
    """Run one step to its end. Raises InvalidInput, JobFailed, JobCanceled, SubmitFailed, Unreachable."""
    resolved, key = for_run(resolved, run_key, step)
    request, gates = await _admitted(resolved, target, key, proofs, after)
    label = step_label(request, target)
    # Prefect's types forget that an async task is awaited for its state too.
    state: State[Outcome] = await run_action(  # type: ignore[misc]
        request, target, key, label, minutes, wait_for=gates, return_state=True
    )
    return Done(await state.aresult(), state)


async def launch_step(
    resolved: Resolved,
    target: str,
    step: str,
    run_key: str | None = None,
    proofs: Proofs = Proofs(),  # noqa: B008
) -> JobHandle:
    """Launch one step, without waiting for it."""
    resolved, key = for_run(resolved, run_key, step)
    request, gates = await _admitted(resolved, target, key, proofs, ())
    return await launch(request, target, key, wait_for=gates)


def canceled(error: JobCanceled) -> State[None]:
    """The state of a flow whose job a person cancelled."""
    return Cancelled(message=str(error))
