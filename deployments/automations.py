"""Brings the automations of this folder to the server, each once, whatever was there before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import BlockDocument
from prefect.events.schemas.automations import AutomationCore

FOLDER = Path(__file__).parent
ALERTS = "tao-alerts"


async def create_automations() -> list[str]:
    """Create or update all that can be; the names of those."""
    wanted: list[dict[str, Any]] = yaml.safe_load((FOLDER / "automations.yaml").read_text())
    if (block := await alerts_block()) is not None:
        wanted.append(notification(block))
    async with get_client() as client:
        for one in wanted:
            await _put(client, AutomationCore.model_validate(one))
    return [one["name"] for one in wanted]


async def alerts_block() -> BlockDocument | None:
    """The saved block that notifications go to, of whatever type it is, as long as that can notify."""
    wanted = {
        "block_documents": {"name": {"any_": [ALERTS]}},
        "block_schemas": {"block_capabilities": {"all_": ["notify"]}},
    }
    async with get_client() as client:
        found = (await client.request("POST", "/block_documents/filter", json=wanted)).json()
    return BlockDocument.model_validate(found[0]) if found else None


def notification(block: BlockDocument) -> dict[str, Any]:
    """The automation that tells of failures through `block`."""
    made: dict[str, Any] = yaml.safe_load((FOLDER / "notification.yaml").read_text())
    made["actions"][0]["block_document_id"] = str(block.id)
    return made


async def _put(client: PrefectClient, wanted: AutomationCore) -> None:
    there = await client.read_automations_by_name(wanted.name)
    if not there:
        await client.create_automation(wanted)
        return
    first, *others = there
    # A person may have switched it off.
    await client.update_automation(first.id, wanted.model_copy(update={"enabled": first.enabled}))
    for other in others:
        await client.delete_automation(other.id)
