"""Secret values by name: from the environment of the flow, else from Prefect's Secret blocks."""

from __future__ import annotations

import os
from collections.abc import Iterable

from prefect.blocks.system import Secret

from prefect_tao.preflight import secret_block


async def load_secrets(names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The values that were found, and the names of those that were not."""
    found: dict[str, str] = {}
    missing: list[str] = []
    for name in names:
        value = os.environ.get(name) or await _from_block(name)
        if value:
            found[name] = value
        else:
            missing.append(name)
    return found, missing


async def _from_block(name: str) -> str | None:
    try:
        block: Secret[str] = await Secret.aload(secret_block(name))
    except ValueError:
        return None
    return str(block.get())
