"""When a person cancels a run, its platform jobs end, verified; when a run merely dies, they are left alone.

Only the flow run's own state shows which of them it is, so that is asked everywhere; and the person's own word,
where that is at the terminal of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.logging import get_logger
from prefect.runtime import flow_run as runtime
from prefect.states import Cancelled, Cancelling

from prefect_tao.jobs.errors import InvalidInput, TaoError
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import KEY_PATTERN, run_label
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.state import Observation
from prefect_tao.tasks.detaching import STATE_NAME
from prefect_tao.tasks.runkeys import known_key
from prefect_tao.tasks.targets.opening import canonical, open_target

ANSWER_SECONDS = 4.0
REMEMBER_TRIES = 3
CANCEL_SECONDS = 60.0
GATHER_SECONDS = 0.2
LABEL = "tao.target."
WATCHED = re.compile(rf"tao-(?:job-)?(?P<key>{KEY_PATTERN})-\d+")


_canceled_here = threading.Event()


def cancel_here() -> None:
    """A person at the terminal of this process cancels what it runs; no server has to hear of it first."""
    _canceled_here.set()


def canceled_here() -> bool:
    """Whether a person has."""
    return _canceled_here.is_set()


@cache
def canceling(flow_run_id: str) -> Callable[[], Awaitable[bool]]:
    """A question about one flow run, the same object each time, so that a watcher asks it once for all its jobs."""

    async def ask() -> bool:
        if _canceled_here.is_set():
            return True
        try:
            return await asyncio.wait_for(_is_canceling(UUID(flow_run_id)), ANSWER_SECONDS)
        except Exception:  # a server that does not answer has not asked for a cancellation
            return False

    return ask


@cache
def canceled_run(flow_run_id: str) -> Callable[[], Awaitable[str]]:
    """The same question, answered with why nothing is to begin any more, or with nothing."""

    async def ask() -> str:
        return "the run was cancelled" if await canceling(flow_run_id)() else ""

    return ask


async def _is_canceling(flow_run_id: UUID) -> bool:
    async with get_client() as client:
        state = (await client.read_flow_run(flow_run_id)).state
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def root_id() -> str:
    """The root flow run: the one that a person sees and cancels, and that stays the same over retries."""
    return str(runtime.root_flow_run_id or runtime.id)


def is_root() -> bool:
    """Whether the flow that runs here was not called by another one."""
    return root_id() == str(runtime.id)


async def remember_target(target: str) -> None:
    """Note on the root run that it has jobs on `target`, so that its cancellation finds them.

    A server that is busy is asked again; one that is away must not keep jobs from being launched.
    """
    for _ in range(REMEMBER_TRIES):
        with contextlib.suppress(Exception):
            async with asyncio.timeout(ANSWER_SECONDS), get_client() as client:
                await client.update_flow_run_labels(UUID(root_id()), {f"{LABEL}{target}": True})
                return


class _Ending:
    """The jobs of one platform that are to end, gathered for a moment so that a hundred of them are one question."""

    def __init__(self, platform: Platform, run: str) -> None:
        self.keys: set[str] = set()
        self.task = asyncio.get_running_loop().create_task(self._end(platform, run))

    async def _end(self, platform: Platform, run: str) -> bool:
        await asyncio.sleep(GATHER_SECONDS)
        _ending.pop((platform, run), None)  # what comes later begins the next one
        if not await canceling(run)():
            return False
        found = await platform.find(sorted(self.keys))
        await platform.cancel([attempts[-1] for attempts in found.values() if attempts])
        return True


_ending: dict[tuple[Platform, str], _Ending] = {}


async def end_if_canceled(platform: Platform, key: str) -> bool:
    """End the job of `key`, verified, when the run is being cancelled; together with all others that are ended now.

    Whether it was.
    """
    here = (platform, root_id())
    ending = _ending.get(here)
    if ending is None:
        ending = _ending[here] = _Ending(*here)
    ending.keys.add(key)
    return await asyncio.shield(ending.task)


async def cancel_jobs(flow: Flow[Any, Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Cancellation hook: end every job of this run on its targets, found by label, so it works after a SIGKILL too.

    Give it to your own flows that call ours: `@flow(on_cancellation=[cancel_jobs])`. The parameters bear exactly these
    names because Prefect's worker passes them by keyword.
    """
    await _end_jobs(flow_run, CANCEL_SECONDS)


async def cancel_run(flow_run_id: str, timeout: float = CANCEL_SECONDS) -> dict[JobHandle, Observation]:
    """End every job of a flow run, even if its process is gone, and mark the run cancelled.

    Raises InvalidInput when there is no such run or it has no jobs of its own, CancelUnconfirmed, Unreachable.
    """
    async with get_client() as client:
        try:
            flow_run = await client.read_flow_run(UUID(flow_run_id))
        except (ValueError, ObjectNotFound):
            raise InvalidInput(
                f"Prefect has no flow run {flow_run_id}", "take the id from its page, or `prefect flow-run ls`"
            ) from None
        await _refuse_child(client, flow_run)
        # Of a run that crashed or was left the jobs may go on, so it is not over yet.
        state = flow_run.state
        over = state is not None and state.is_final() and not state.is_crashed() and state.name != STATE_NAME
        if not over:
            await client.set_flow_run_state(flow_run.id, Cancelling(), force=True)
        seen = await _end_jobs(flow_run, timeout)
        if not over:
            await client.set_flow_run_state(flow_run.id, Cancelled(message="its jobs are over"), force=True)
    return seen


async def _refuse_child(client: PrefectClient, flow_run: FlowRun) -> None:
    """Jobs belong to the run that a person sees; a run within it that found none would seem to have ended its own."""
    above = flow_run
    while above.parent_task_run_id is not None:
        caller = (await client.read_task_run(above.parent_task_run_id)).flow_run_id
        if caller is None:
            break
        above = await client.read_flow_run(caller)
    own = flow_run.parameters.get("run_key") or flow_run.parameters.get("job")
    if above.id != flow_run.id and not own:
        raise InvalidInput(
            f"{flow_run.id} was called by the run {above.id}, and its jobs are that one's",
            f"prefect-tao cancel --run {above.id} ends all of them; prefect-tao cancel NAME ends one",
        )


def targets_of(flow_run: FlowRun) -> list[str]:
    """Where the run may have jobs: what was noted when it launched them, and what it was given, if no note was left."""
    given, steps = flow_run.parameters, flow_run.parameters.get("steps")
    of_steps = [step.get("target") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    named = [given.get("target") or "process", *of_steps]
    found = {key.removeprefix(LABEL) for key in flow_run.labels if key.startswith(LABEL)}
    for target in named:
        with contextlib.suppress(InvalidInput):  # another project's flow may call anything a target
            found |= {target} if isinstance(target, str) and canonical(target) else set()
    return sorted(found)


async def _end_jobs(flow_run: FlowRun, timeout: float) -> dict[JobHandle, Observation]:
    """End them on all targets; one that cannot be reached keeps no other alive, and is reported when all were tried."""
    logger = get_logger("prefect_tao.cancellation")
    ends: dict[JobHandle, Observation] = {}
    errors: list[TaoError] = []
    for target in targets_of(flow_run):
        try:
            platform = (await open_target(target)).platform
            seen = await platform.cancel(await _jobs_of(flow_run, platform), timeout=timeout)
        except TaoError as error:
            errors.append(error)
            logger.warning("the jobs on %s could not be ended: %s", target, error)
            continue
        for handle, end in seen.items():
            logger.info("%s on %s: %s", handle.name, target, end.state.value)
        ends |= seen
    if errors:
        raise errors[0]
    return ends


async def _jobs_of(flow_run: FlowRun, platform: Platform) -> Sequence[JobHandle]:
    """The jobs that the run has launched there; of a run that watches another's job, that job."""
    watched = WATCHED.fullmatch(str(flow_run.parameters.get("job")))
    if watched:
        return (await platform.find([watched["key"]])).get(watched["key"], [])[-1:]
    return await platform.jobs({"run": run_label(await known_key(str(flow_run.id)))})
