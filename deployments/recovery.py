"""The flow `recover`: what automations run when another run's process has died.

Prefect builds the form of a deployment from the signature and the docstring, so annotations are not postponed here.
"""

from typing import Annotated
from uuid import UUID

from prefect import flow, get_client, get_run_logger
from prefect.client.schemas.objects import FlowRun
from prefect.states import AwaitingRetry
from pydantic import Field

from prefect_tao.tasks.cancellation import LABEL, cancel_run

TAG = "tao"  # of every deployment in prefect.yaml


@flow(name="recover", flow_run_name="recover {flow_run_id}")
async def recover(flow_run_id: UUID, most_attempts: Annotated[int, Field(ge=1)] = 5) -> str:
    """Bring a dead run back to its jobs, or finish its cancellation. A run that lives is left alone.

    Args:
        flow_run_id: The run to look after, as its page in the UI shows it.
        most_attempts: A crashed run is scheduled again until it has been begun this often.
    """
    logger = get_run_logger()
    async with get_client() as client:
        run = await client.read_flow_run(flow_run_id)
    done = await _recovered(run, most_attempts)
    logger.info("%s (%s): %s", run.name, run.id, done)
    return done


async def _recovered(run: FlowRun, most_attempts: int) -> str:
    if run.state is None:
        return "it has not begun"
    if not _is_ours(run):
        return "it is no run of prefect-tao, so it is left alone"
    if run.state.is_cancelling() or (run.state.is_crashed() and await _was_cancelling(run)):
        ended = await cancel_run(str(run.id))
        return f"cancelled; {len(ended)} jobs are over"
    if not run.state.is_crashed():
        return f"it is {run.state.name}, so nothing is to be done"
    if run.deployment_id is None:
        return "no worker can run it; launch it again with its id as run_key, and it attaches to its jobs"
    if run.run_count >= most_attempts:
        return f"it has crashed {run.run_count} times; look at its log, mend it, and press Retry"
    async with get_client() as client:
        await client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    return "scheduled again; it attaches to the jobs that it has"


def _is_ours(run: FlowRun) -> bool:
    """Whether it comes from one of our deployments or has launched jobs."""
    return TAG in run.tags or any(label.startswith(LABEL) for label in run.labels)


async def _was_cancelling(run: FlowRun) -> bool:
    """Whether the run crashed because a person cancelled it: that is what it says when another worker than its own
    ends its process.
    """
    async with get_client() as client:
        states = await client.read_flow_run_states(run.id)
    before = sorted(states, key=lambda state: state.timestamp)[:-1]
    return bool(before) and before[-1].is_cancelling()
