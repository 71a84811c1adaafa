"""Credential values by name: from the target's block, the environment, TAO's .env file or Prefect's Secret blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prefect.blocks.system import Secret

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.environment import variables
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.checks.credentials import secret_block
from prefect_tao.preflight.checks.visibility import used_schemes
from prefect_tao.tasks.targets.opening import canonical, open_target


async def job_secrets(request: JobRequest, target: str) -> dict[str, str]:
    """What a job gets: the secrets it names, and what opens the storage that it uses. As secret as `load_secrets`."""
    supplied = (await open_target(target)).supplied
    entry = load_catalog().platforms.get(canonical(target).platform)
    schemes = used_schemes(request, entry, supplied) if entry else []
    around = {**variables(None), **supplied} if schemes else {}
    settings = {name: around[name] for scheme in schemes for name in scheme.settings if name in around}
    keys = [name for scheme in schemes for name in scheme.keys]
    return {**settings, **await load_secrets(dict.fromkeys((*request.secrets, *keys)), supplied)}


async def load_secrets(names: Iterable[str], supplied: Mapping[str, str]) -> dict[str, str]:
    """The values of `names` that were found, those of the target first. Never log, store or pass on the result."""
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
