"""Launch a job exactly once and return its handle."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from prefect_tao.jobs.errors import TaoError
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import Launched
from prefect_tao.jobs.request import JobRequest
from prefect_tao.tasks.cancellation import canceled_run, root_id
from prefect_tao.tasks.reporting import report_findings
from prefect_tao.tasks.targets.admission import WhyNot
from prefect_tao.tasks.targets.opening import open_target
from prefect_tao.tasks.targets.secret_values import job_secrets


async def launched(request: JobRequest, target: str, key: str, why_not: WhyNot | None = None) -> Launched:
    """Launch or attach, and log which of the two it was. While it waits for room, `why_not` may call it off.

    Raises JobCanceled when that, or the run's cancellation, did so.
    """
    logger = get_run_logger()
    secrets = await job_secrets(request, target)
    opened = await open_target(target)
    # A job that is there takes no room; only where there is a limit is it worth asking for that first.
    new = opened.room.is_limited and (await opened.look(key)).is_due(request.release_elsewhere)
    why_not = why_not or canceled_run(root_id())
    async with opened.room.place(why_not) if new else contextlib.nullcontext():
        result = await opened.launch(request, key, secrets)
    if result.findings:  # a person may have chosen another image, which a further attempt must run too
        with contextlib.suppress(TaoError, OSError, ValueError):
            result = replace(result, request=await opened.platform.request_of(result.handle))
    await report_findings(result.handle, result.findings)
    logger.info("%s %s on %s", "attached to" if result.adopted else "launched", result.handle.name, target)
    return result


# Not cached: the platform itself knows by name whether the job exists, and a retry after a failure wants a new attempt.
@task(
    name="launch",
    task_run_name="launch on {target}",
    persist_result=True,
    result_serializer="json",
    cache_policy=NO_CACHE,
)
async def launch(request: JobRequest, target: str, key: str) -> JobHandle:
    """The handle of the job of `key`, launched now or found. Raises SubmitFailed, Unreachable."""
    return (await launched(request, target, key)).handle
