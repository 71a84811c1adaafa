"""The flow `recover`: what automations run when another run's process has died, and a schedule, in case one was missed.

Prefect builds the form of a deployment from the signature and the docstring, so annotations are not postponed here.
"""

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Annotated, Any
from uuid import UUID

from prefect import flow, get_client, get_run_logger
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime.flow_run import get_parameters as parameters
from prefect.states import AwaitingRetry
from pydantic import Field

from prefect_tao.jobs.errors import TaoError
from prefect_tao.tasks.cancellation import LABEL, cancel_run, targets_of
from prefect_tao.tasks.targets.opening import open_target

TAG = "tao"  # of every deployment in prefect.yaml
OURS = ["run", "chain", "sweep", "automl", "watch", "quickstart"]


MEMORY = timedelta(hours=1)  # what crashed longer ago is left to people


def _run_name() -> str:
    return f"recover {parameters().get('flow_run_id') or 'whatever was missed'}"


@flow(name="recover", flow_run_name=_run_name)
async def recover(
    flow_run_id: UUID | None = None,
    most_attempts: Annotated[int, Field(ge=1)] = 5,
    patience_minutes: Annotated[float, Field(ge=0)] = 2.0,
) -> list[str]:
    """Bring dead runs back to their jobs, or finish their cancellation. A run that lives is left alone.

    One that cannot be helped, because its target is away or its block was deleted, keeps no other waiting. Secrets that
    were left on their targets, and that no job needs any more, are removed.

    Args:
        flow_run_id: The run to look after, as its page in the UI shows it; when empty, all that were missed.
        most_attempts: A crashed run is begun, and a cancellation is tried, this often; then it is left to a person.
        patience_minutes: A run counts as missed when no automation has seen to it for so long.
    """
    logger = get_run_logger()
    async with get_client() as client:
        runs = [await client.read_flow_run(flow_run_id)] if flow_run_id else await _missed(client, patience_minutes)
    told, failed = [], []
    for run in runs:
        try:
            done = await _recovered(run, most_attempts)
        except Exception as error:  # whatever it is, the next run may well be helped
            done = f"not helped: {error}"
            failed.append(f"{run.name} ({run.id}): {error}")
        logger.info("%s (%s): %s", run.name, run.id, done)
        told.append(f"{run.id}: {done}")
    await sweep_targets(runs)
    if failed:
        raise TaoError("\n".join(failed), "fix what is in the way, and run this again")
    return told


async def sweep_targets(runs: Sequence[FlowRun]) -> None:
    """Remove the secrets that jobs left where these runs have launched some, as every list of jobs does."""
    for target in sorted({target for run in runs for target in targets_of(run)}):
        with suppress(TaoError):  # what cannot be reached now is swept by the next one
            await (await open_target(target)).platform.jobs()


async def _missed(client: PrefectClient, patience_minutes: float) -> list[FlowRun]:
    """Our runs that should have been seen to by now: crashed lately, or cancelled and still not over."""
    types = [StateType.CRASHED, StateType.CANCELLING]
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=types))
    runs = await client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=OURS)),
        flow_run_filter=FlowRunFilter(state=state),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
    )
    found = []
    for run in runs:
        age = datetime.now(UTC) - run.state.timestamp if run.state else timedelta()
        if run.state and age > timedelta(minutes=patience_minutes) and (run.state.is_cancelling() or age < MEMORY):
            found.append(run)
    return found


async def _recovered(run: FlowRun, most_attempts: int) -> str:
    if run.state is None:
        return "it has not begun"
    if not _is_ours(run):
        return "it is no run of prefect-tao, so it is left alone"
    async with get_client() as client:
        states = sorted(await client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
    if tried := _cancellations(states):
        # Each attempt is a new beginning to the automation, which would try for ever where a target is gone.
        if tried >= most_attempts:
            return f"it was cancelled {tried} times in vain; fix its target, then `prefect-tao cancel --run {run.id}`"
        ended = await cancel_run(str(run.id))
        return f"cancelled; {len(ended)} jobs are over"
    if not run.state.is_crashed():
        return f"it is {run.state.name}, so nothing is to be done"
    if run.deployment_id is None:
        return "no worker can run it; launch it again with its id as run_key, and it attaches to its jobs"
    if run.run_count >= most_attempts:
        return f"it has crashed {run.run_count} times; look at its log, fix the cause, and press Retry"
    async with get_client() as client:
        await client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    return "scheduled again; it attaches to the jobs that it has"


def _is_ours(run: FlowRun) -> bool:
    """Whether it comes from one of our deployments or has launched jobs."""
    return TAG in run.tags or any(label.startswith(LABEL) for label in run.labels)


def _cancellations(states: Sequence[State[Any]]) -> int:
    """How often the run was told to end, and has not ended since; the states are in order.

    A last crash does not count: that is what a run says when another worker than its own ends its process.
    """
    told = states[:-1] if states and states[-1].is_crashed() else states
    return len(list(takewhile(lambda state: state.is_cancelling(), reversed(told))))
