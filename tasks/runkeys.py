"""The key of a run, by which its jobs are named, however a person gives it."""

from __future__ import annotations

from typing import overload
from uuid import UUID

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.exceptions import ObjectNotFound


@overload
async def known_key(given: str) -> str: ...
@overload
async def known_key(given: None) -> None: ...
@overload
async def known_key(given: str | None) -> str | None: ...
async def known_key(given: str | None) -> str | None:
    """The key under which a run has named its jobs: the flow run's id will do as well.

    A run that was begun with a key of its own used that, and its jobs would not be found by its id.
    """
    if not _is_id(given):
        return given
    async with get_client() as client:
        seen: set[str | None] = set()
        while _is_id(given) and given not in seen:
            seen.add(given)
            given = await _key_of(client, str(given))
    return given


def _is_id(text: str | None) -> bool:
    try:
        return bool(UUID(text or ""))
    except ValueError:
        return False


async def _key_of(client: PrefectClient, given: str) -> str:
    try:
        run = await client.read_flow_run(UUID(given))
    except ObjectNotFound:  # any text may be a key, and so may the id of something else
        return given
    return str(run.parameters.get("run_key") or given)
