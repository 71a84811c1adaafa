"""Which credentials a launch and its job need, and their values from where the caller looks them up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from prefect_tao.catalog.nouns import PlatformEntry
from prefect_tao.environment import variables
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.checks.visibility import used_schemes
from prefect_tao.preflight.resolve.ask import Resolved

# The values of names that can be found, what is supplied for the target first.
FindSecrets = Callable[[Iterable[str], Mapping[str, str]], Awaitable[dict[str, str]]]


async def job_secrets(
    request: JobRequest, entry: PlatformEntry | None, supplied: Mapping[str, str], find: FindSecrets
) -> dict[str, str]:
    """What a job gets: the secrets it names, and what opens the storage that it uses. Never log or store the result."""
    schemes = used_schemes(request, entry, supplied) if entry else []
    around = {**variables(None), **supplied} if schemes else {}
    settings = {name: around[name] for scheme in schemes for name in scheme.settings if name in around}
    keys = [name for scheme in schemes for name in scheme.keys]
    return {**settings, **await find(dict.fromkeys((*request.secrets, *keys)), supplied)}


async def launch_credentials(
    resolved: Resolved, entry: PlatformEntry | None, supplied: Mapping[str, str], find: FindSecrets
) -> dict[str, str]:
    """What the gates of a launch look at: all that is supplied, and what the platform, the model and the job name."""
    needs = [*entry.required, *(name for group in entry.groups for name in group.one_of)] if entry else []
    named = resolved.request.secrets if resolved.request else ()
    return {**supplied, **await find(dict.fromkeys((*needs, *resolved.credentials, *named)), supplied)}


async def surrounding_secrets(names: Iterable[str], supplied: Mapping[str, str]) -> dict[str, str]:
    """The values that the target or the environment has."""
    around = variables(None)
    return {name: value for name in names if (value := supplied.get(name) or around.get(name))}
