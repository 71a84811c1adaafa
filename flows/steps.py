"""One step of a flow: look the job up, pass the gates, then either launch and leave, or run the action to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as runtime

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, TaoError, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import attached_keys
from prefect_tao.jobs.naming import job_key, run_label
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.retrying import PATIENCE_SECONDS, retry
from prefect_tao.launch.session import Session
from prefect_tao.preflight.checked_launch import Proofs
from prefect_tao.preflight.resolve.all_gpus import counted, wants_all
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.translating import Parameters
from prefect_tao.tasks import launch
from prefect_tao.tasks.actions import task_of
from prefect_tao.tasks.cancellation import is_root, remember_target, root_id
from prefect_tao.tasks.gate_tasks import Confirm, Passed, pass_gates
from prefect_tao.tasks.targets.opening import has_driver, open_target


def step_name(resolved: Resolved, step: str | None) -> str:
    """What names the job within its run; below a user's own flow, calls of `run` differ by what they run."""
    if step:
        return step
    return "run" if is_root() or resolved.request is None else f"run-{resolved.request.digest[:8]}"


class Done(NamedTuple):
    """A step that ended well; its state is what later steps are drawn after in the run graph.

    `values` are those that a search has found.
    """

    outcome: Outcome
    state: State[Any]
    values: Mapping[str, Any] = MappingProxyType({})


def step_label(request: JobRequest, target: str, title: str | None = None) -> str:
    """What a step is called in the run graph: dino train on slurm/polar; a command by its title, where it has one."""
    what = " ".join(word for word in (request.model, request.action) if word) or title or request.command.split()[0]
    return f"{what} on {target}"


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks that end together; what one of them raises is raised as it is. Raises what a task raises."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def for_run(resolved: Resolved, run_key: str | None, step: str, point: str = "") -> tuple[Resolved, str]:
    """The launch with the labels by which the jobs of the run are found, and the step's key.

    `point` says what a step of a sweep is, because its name does not.
    """
    run = run_key or root_id()
    if resolved.request is None:  # the gates will say why
        return resolved, job_key(run, step)
    labels = {**resolved.request.labels, "run": run_label(run), "step": step, **({"point": point} if point else {})}
    request = resolved.request.model_copy(update={"labels": labels})
    return resolved.model_copy(update={"request": request}), job_key(run, step)


# How a launch passes its gates, when it has no job yet, by the launch and its key. Raises `refusal`.
Gates = Callable[[Resolved, str], Awaitable[Passed]]


def _usual(target: str, proofs: Proofs, after: Sequence[State[Any]], confirm: Confirm | None) -> Gates:
    return lambda resolved, key: pass_gates(resolved, target, key, proofs, after, confirm)


async def _admitted(
    resolved: Resolved,
    target: str,
    key: str,
    run_key: str | None,
    after: Sequence[State[Any]],
    gates: Gates,
) -> tuple[JobRequest, list[State[Any]]]:
    """The request and the gates it passed. A job that is there already is attached to without any gate."""
    session = await session_of(target)
    if resolved.request is not None and session is not None:
        await remember_target(target)
        if await _has_job(session, key, run_key, resolved.request.release_elsewhere):
            return resolved.request, list(after)
    passed = await gates(resolved, key)
    assert passed.resolved.request is not None  # noqa: S101 - a launch without a request passes no gate
    return passed.resolved.request, passed.states


async def step_exists(resolved: Resolved, target: str, step: str, run_key: str | None) -> bool:
    """Whether the step has a job that a launch would attach to; such a step passes no gate again."""
    resolved, key = for_run(resolved, run_key, step)
    session = await session_of(target)
    if resolved.request is None or session is None:
        return False
    return await _has_job(session, key, run_key, resolved.request.release_elsewhere)


async def _has_job(session: Session, key: str, run_key: str | None, release: bool) -> bool:
    """Whether there is a job to attach to. Only a run that may have launched one waits for a silent platform.

    Raises Elsewhere for one of another site that is not to be released.
    """
    patience = _patience(run_key)
    try:
        return not (await session.look(key, patience)).is_due(release)
    except Unreachable:
        if patience:
            raise
        return False  # the gates say why it does not answer, with all else that is wrong


async def with_jobs(platform: Platform, keys: Sequence[str], run_key: str | None, release: bool = False) -> set[str]:
    """Those of `keys` that have a job to attach to, asked for together; as patient as `_has_job`."""
    patience = _patience(run_key)
    try:
        return await attached_keys(platform, keys, patience, release)
    except Unreachable:
        if patience:
            raise
        return set()


def _patience(run_key: str | None) -> float:
    """Seconds to wait for a platform's word about what is there; none in a run that can have launched nothing yet."""
    again = run_key is not None or not is_root() or (runtime.run_count or 1) > 1
    return PATIENCE_SECONDS if again else 0.0


async def session_of(target: str) -> Session | None:
    """The target in use; where it cannot be opened, the gates say why, with all else that is wrong."""
    if has_driver(target):
        with suppress(InvalidInput, MissingDependency):
            return await open_target(target)
    return None


async def with_count(given: Parameters, target: str, run_key: str | None) -> Parameters:
    """The parameters with the number of GPUs in place of all of them, where the target knows it.

    As patient as `_has_job`, because a sweep without the number would be refused. Raises Unreachable.
    """
    session = await session_of(target) if wants_all(given) else None
    if session is None:
        return given
    patience = _patience(run_key)
    try:
        return await retry(lambda: counted(given, session.platform), patience)
    except Unreachable:
        if patience:
            raise
        return given


async def run_step(
    resolved: Resolved,
    target: str,
    step: str,
    run_key: str | None = None,
    proofs: Proofs = Proofs(),  # noqa: B008 - frozen
    after: Sequence[State[Any]] = (),
    minutes: float = 5.0,
    confirm: Confirm | None = None,
    title: str | None = None,
    gates: Gates | None = None,
) -> Done:
    """Run one step to its end; `confirm` asks a person about its image, when all else is good. `title` names a command.

    `gates` are passed in place of the usual ones, where they are given.

    Raises InvalidInput, JobFailed, JobCanceled, SubmitFailed, Unreachable.
    """
    resolved, key = for_run(resolved, run_key, step)
    gates = gates or _usual(target, proofs, after, confirm)
    request, passed = await _admitted(resolved, target, key, run_key, after, gates)
    label = step_label(request, target, title)
    state: State[Outcome] = await task_of(request)(
        request, target, key, label, minutes, wait_for=passed, return_state=True
    )
    return Done(await state.aresult(), state)


async def launch_step(
    resolved: Resolved,
    target: str,
    step: str,
    run_key: str | None = None,
    proofs: Proofs = Proofs(),  # noqa: B008
    confirm: Confirm | None = None,
) -> JobHandle:
    """Launch one step, without waiting for it. Raises as `run_step` does, as far as the launch goes."""
    resolved, key = for_run(resolved, run_key, step)
    request, passed = await _admitted(resolved, target, key, run_key, (), _usual(target, proofs, (), confirm))
    return await launch(request, target, key, wait_for=passed)


def told(error: Exception) -> str:
    """What an error means for one step among others; an unexpected one is logged with its origin."""
    if isinstance(error, TaoError):
        return str(error)
    get_run_logger().error("an unexpected error", exc_info=error)
    return f"{type(error).__name__}: {error}"
