"""Credential values by name: from the target's block, the environment, TAO's .env file or Prefect's Secret blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from prefect.blocks.system import Secret

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.environment import variables
from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.request import JobRequest
from prefect_tao.launch.job_secrets import job_secrets as secrets_for
from prefect_tao.preflight.checks.credentials import secret_block
from prefect_tao.tasks.targets.opening import canonical, open_target
from prefect_tao.tasks.targets.servers import check_server, server_url


async def job_secrets(request: JobRequest, target: str) -> dict[str, str]:
    """What a job gets: the secrets it names, and what opens the storage that it uses. As secret as `load_secrets`."""
    entry = load_catalog().platforms.get(canonical(target).platform)
    return await secrets_for(request, entry, (await open_target(target)).supplied, load_secrets)


async def load_secrets(names: Iterable[str], supplied: Mapping[str, str]) -> dict[str, str]:
    """The values of `names` that were found, those of the target first. Never log, store or pass on the result."""
    found: dict[str, str] = {}
    for name in names:
        value = supplied.get(name) or variables(None).get(name) or await _from_block(name)
        if value:
            found[name] = value
    return found


async def from_running_server(names: Iterable[str]) -> dict[str, str]:
    """What Secret blocks hold, where a server runs and answers; one that is only started for a flow is not asked."""
    if server_url() is None:
        return {}
    with suppress(Unreachable):
        await check_server()
        return await load_secrets(names, {})
    return {}


async def _from_block(name: str) -> str | None:
    try:
        block: Secret[str] = await Secret.aload(secret_block(name))
    except ValueError:
        return None
    return str(block.get())
