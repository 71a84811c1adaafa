"""Credential values by name: from the target's block, the environment, TAO's .env file or Prefect's Secret blocks."""

from __future__ import annotations

from collections.abc import Iterable

from prefect.blocks.system import Secret

from prefect_tao.blocks.named import load_credentials
from prefect_tao.catalog.loading import load_catalog
from prefect_tao.environment import variables
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.preflight.credentials import secret_block
from prefect_tao.tasks.targets import load_block


async def load_secrets(names: Iterable[str], target: str) -> dict[str, str]:
    """The values of `names` that were found. Never log, store or pass on the result."""
    supplied = await supplied_credentials(target)
    found: dict[str, str] = {}
    for name in names:
        value = supplied.get(name) or variables(None).get(name) or await _from_block(name)
        if value:
            found[name] = value
    return found


async def supplied_credentials(target: str) -> dict[str, str]:
    """What is supplied for `target`, of the names that the catalog knows; the block wins over the environment."""
    around = {name: value for name, value in variables(None).items() if name in load_catalog().credentials}
    block = await load_block(target)
    if block is None:
        return around
    try:
        return {**around, **await load_credentials(block)}
    except ValueError as error:
        raise InvalidInput(str(error), "correct the block in the Prefect UI under Blocks") from None


async def _from_block(name: str) -> str | None:
    try:
        block: Secret[str] = await Secret.aload(secret_block(name))
    except ValueError:
        return None
    return str(block.get())
