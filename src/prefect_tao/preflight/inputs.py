"""Whether each declared input is there, as the platform sees it."""

from __future__ import annotations

import asyncio

from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import InputRule, JobRequest
from prefect_tao.runner.entrypoint import input_locations
from prefect_tao.runner.program import LOCAL_SCHEMES


async def check_inputs(platform: Platform, request: JobRequest) -> list[Finding]:
    """One finding per declared input, asked for side by side."""
    places = input_locations(request).items()
    return list(await asyncio.gather(*(_check(platform, key, uri, rule) for key, (uri, rule) in places)))


async def _check(platform: Platform, key: str, uri: str, rule: InputRule) -> Finding:
    where = platform.target
    scheme, marker, _ = uri.partition("://")
    if marker and scheme not in LOCAL_SCHEMES:
        return Finding(
            level=Level.WARN,
            check=f"input {key}",
            message=f"input {key}: {uri} is fetched by the job itself and was not looked at before the launch",
            checked_from=where,
        )
    if rule.optional or rule.type == "local_glob" or await platform.check_path(uri):
        return Finding(level=Level.OK, check=f"input {key}", message=f"input {key}: {uri}", checked_from=where)
    return Finding(
        level=Level.FAIL,
        check=f"input {key}",
        message=f"input {key}: {uri} does not exist on {where}",
        checked_from=where,
        remedy="correct the path, or put the data there",
    )
