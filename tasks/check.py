"""The gate before a launch: a task that must succeed, and that says everything that is wrong at once."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding, Level, blocking
from prefect_tao.jobs.launching import attached
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight import check_launch
from prefect_tao.tasks.secrets import load_secrets
from prefect_tao.tasks.targets import open_target


@task(name="check", task_run_name="check {target}", cache_policy=NO_CACHE)
async def check(request: JobRequest, target: str, key: str) -> list[Finding]:
    """Findings for this launch. A job that is there already needs no check: to attach costs nothing.

    Raises InvalidInput with all blocking findings.
    """
    logger = get_run_logger()
    platform = (await open_target(target)).platform
    there = await attached(platform, request, key)
    if there is not None:
        return [
            Finding(level=Level.OK, check="job", message=f"{there.handle.name} is there already", checked_from=target)
        ]
    _, missing = await load_secrets(request.secrets)
    findings = await check_launch(platform, request, missing)
    for finding in findings:
        if finding.level is Level.WARN:
            logger.warning(finding.message)
    if failed := blocking(findings):
        raise InvalidInput.of(failed)
    return findings
