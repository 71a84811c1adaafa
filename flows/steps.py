"""One step of a flow: check, then either launch and leave, or run the action to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from prefect.client.schemas.objects import State
from prefect.states import Cancelled

from prefect_tao.jobs.errors import JobCanceled
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import job_key, run_label
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import JobRequest
from prefect_tao.tasks import check, launch, run_action
from prefect_tao.tasks.cancellation import root_id


def step_label(request: JobRequest, target: str) -> str:
    """What a step is called in the run graph: dino train on slurm/polar."""
    what = " ".join(word for word in (request.model, request.action) if word) or request.command.split()[0]
    return f"{what} on {target}"


def for_run(request: JobRequest, run_key: str | None, step: str) -> tuple[JobRequest, str]:
    """The request with the labels by which the jobs of the run are found, and the step's key."""
    run = run_key or root_id()
    labels = {**request.labels, "run": run_label(run), "step": step}
    return request.model_copy(update={"labels": labels}), job_key(run, step)


class Done(NamedTuple):
    """A step that ended well; its state is what later steps are drawn after in the run graph."""

    outcome: Outcome
    state: State[Outcome]


async def run_step(
    request: JobRequest,
    target: str,
    step: str,
    run_key: str | None,
    after: Sequence[State[Any]] = (),
    minutes: float = 5.0,
) -> Done:
    """Check and run one step. Raises InvalidInput, JobFailed, JobCanceled, SubmitFailed, Unreachable."""
    request, key = for_run(request, run_key, step)
    # Prefect's types forget that an async task is awaited for its state too.
    checked: State[Any] = await check(request, target, key, wait_for=after, return_state=True)  # type: ignore[misc]
    await checked.aresult()
    label = step_label(request, target)
    state: State[Outcome] = await run_action(  # type: ignore[misc]
        request, target, key, label, minutes, wait_for=[checked], return_state=True
    )
    return Done(await state.aresult(), state)


async def launch_step(request: JobRequest, target: str, step: str, run_key: str | None) -> JobHandle:
    """Check and launch one step, without waiting for it."""
    request, key = for_run(request, run_key, step)
    await check(request, target, key)
    return await launch(request, target, key)


def canceled(error: JobCanceled) -> State[None]:
    """The state of a flow whose job a person cancelled."""
    return Cancelled(message=str(error))
