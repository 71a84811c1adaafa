"""When a person cancels a run, its platform jobs end, verified; when a run merely dies, they are left alone.

The only thing that tells the two apart is the flow run's own state, so that is what is asked, everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.flows import Flow
from prefect.logging import get_logger
from prefect.runtime import flow_run as runtime

from prefect_tao.jobs.naming import run_label
from prefect_tao.tasks.targets import open_target

ANSWER_SECONDS = 4.0
CANCEL_SECONDS = 60.0
LABEL = "tao.target."


@cache
def canceling(flow_run_id: str) -> Callable[[], Awaitable[bool]]:
    """A question about one flow run, the same object each time, so that a watcher asks it once for all its jobs."""

    async def ask() -> bool:
        try:
            return await asyncio.wait_for(_is_canceling(UUID(flow_run_id)), ANSWER_SECONDS)
        except Exception:  # a server that does not answer has not asked for a cancellation
            return False

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
    """Note on the root run that it has jobs on `target`, so that its cancellation finds them."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(ANSWER_SECONDS), get_client() as client:
            await client.update_flow_run_labels(UUID(root_id()), {f"{LABEL}{target}": True})


async def cancel_jobs(flow: Flow[Any, Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Cancellation hook: end every job of this run on its targets, found by label, so it works after a SIGKILL too.

    Give it to your own flows that call ours: `@flow(on_cancellation=[cancel_jobs])`. The parameters bear exactly these
    names because Prefect's worker passes them by keyword.
    """
    logger = get_logger("prefect_tao.cancellation")
    run = run_label(flow_run.parameters.get("run_key") or str(flow_run.id))
    targets = {key.removeprefix(LABEL) for key in flow_run.labels if key.startswith(LABEL)}
    for target in sorted(targets or {str(flow_run.parameters.get("target") or "process")}):
        platform = (await open_target(target)).platform
        seen = await platform.cancel(await platform.jobs({"run": run}), timeout=CANCEL_SECONDS)
        for handle, end in seen.items():
            logger.info("%s on %s: %s", handle.name, target, end.state.value)
