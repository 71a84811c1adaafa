"""A person's wish that a search ends early and keeps its best: noted on its flow run, where the search looks for it."""

from __future__ import annotations

import asyncio
from uuid import UUID

from prefect import get_client

from prefect_tao.tasks.cancellation import ANSWER_SECONDS, root_id

LABEL = "tao.stop"


async def ask_to_stop(flow_run_id: str, why: str) -> None:
    """Note the wish. Raises ObjectNotFound for a run that is not there."""
    async with get_client() as client:
        await client.update_flow_run_labels(UUID(flow_run_id), {LABEL: why})


async def why_stopped() -> str:
    """Why the current run is to stop; empty while it is not, and while the server does not answer."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS), get_client() as client:
            return str((await client.read_flow_run(UUID(root_id()))).labels.get(LABEL) or "")
    except Exception:
        return ""
