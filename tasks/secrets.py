"""Credential values by name: from the target's block, the environment, TAO's .env file or Prefect's Secret blocks."""

from __future__ import annotations

from collections.abc import Iterable

from prefect.blocks.system import Secret

from prefect_tao.environment import variables
from prefect_tao.preflight.credentials import secret_block
from prefect_tao.tasks.targets import supplied_credentials


async def load_secrets(names: Iterable[str], target: str) -> dict[str, str]:
    """The values of `names` that were found. Never log, store or pass on the result."""
    names = list(names)
    if not names:
        return {}
    supplied = await supplied_credentials(target)
    found: dict[str, str] = {}
    for name in names:
        value = supplied.get(name) or variables(None).get(name) or await _from_block(name)
        if value:
            found[name] = value
    return found


async def _from_block(name: str) -> str | None:
    try:
        block: Secret[str] = await Secret.aload(secret_block(name))
    except ValueError:
        return None
    return str(block.get())
