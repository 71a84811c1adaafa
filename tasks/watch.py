"""Watch a job to its end, from any process that has its handle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.jobs.clock import now
from prefect_tao.jobs.errors import JobCanceled, JobFailed
from prefect_tao.jobs.events import JobEnded
from prefect_tao.jobs.following import attend, follow
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome, collect, with_last_words
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.redacting import redact, redacted, without_escapes
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.preflight.checks.credentials import secret_values
from prefect_tao.tasks.artifacts.job_page import JobPage, Tail
from prefect_tao.tasks.artifacts.pages import DRAW_SECONDS
from prefect_tao.tasks.cancellation import canceled_run, canceling, end_if_canceled, root_id
from prefect_tao.tasks.detaching import watching
from prefect_tao.tasks.reporting import Reporter, everyone
from prefect_tao.tasks.targets.opening import open_target
from prefect_tao.tasks.targets.secret_values import job_secrets
from prefect_tao.tasks.task_ends import ends_visibly

TAIL_LINES = 30
COLLECT_SECONDS = 15.0  # a worker kills what has not ended within half a minute


async def watched(
    request: JobRequest,
    handle: JobHandle,
    label: str,
    minutes: float,
    page_seconds: float = DRAW_SECONDS,
    ours: bool = True,
) -> Outcome:
    """The outcome of a step that ended well. Raises JobFailed and JobCanceled; on a crash the job is left alone.

    Its page is drawn every `page_seconds`; 0 is no page. A job that is not `ours` may have ended long ago, and is not
    tried again then.
    """
    begun_at = now()
    opened = await open_target(handle.target)
    platform, watcher = opened.platform, opened.watcher
    should_cancel = canceling(root_id())
    secrets = await job_secrets(request, handle.target)
    hidden = secret_values(load_catalog(), secrets)
    # The log of one of many jobs would be a question of its own for each, every time: only their curves are drawn.
    shows_log = 0 < page_seconds <= DRAW_SECONDS
    page = JobPage(label, handle.key, _tail(platform, hidden) if shows_log else None) if page_seconds else None
    reporter = Reporter(label, page, max(page_seconds, 2 * platform.poll_seconds[0]))
    audience = everyone(reporter, secrets=hidden)
    try:
        with watching(handle):
            async with reporter.every(minutes):
                submit = opened.room.submit(canceled_run(root_id()))
                if ours:
                    outcome = await follow(watcher, request, handle, secrets, audience, should_cancel, submit)
                else:
                    say = get_run_logger().warning
                    outcome = await attend(watcher, request, handle, secrets, audience, say, should_cancel, submit)
    except asyncio.CancelledError:
        # A worker's signal looks alike for a cancelled and a dying run; only the run's state shows which it is.
        if not await end_if_canceled(platform, handle.key):
            raise
        outcome = await _left_behind(platform, handle)
    if shows_log:
        outcome = await with_last_words(platform, outcome)
    outcome = redacted(outcome, hidden)
    await audience.hear(JobEnded(outcome))
    if page is not None:
        await page.end(outcome, request.resources.total_gpus, begun_at)
    return _judged(outcome, label)


def _tail(platform: Platform, hidden: Mapping[str, str]) -> Tail:
    async def tail(handle: JobHandle) -> str:
        return redact(without_escapes((await platform.logs(handle, tail=TAIL_LINES)).text), hidden)

    return tail


async def _left_behind(platform: Platform, handle: JobHandle) -> Outcome:
    """What there is of a job that was just ended; its end alone where the platform cannot say more in time."""
    try:
        async with asyncio.timeout(COLLECT_SECONDS):
            last = ((await platform.find([handle.key])).get(handle.key) or [handle])[-1]
            seen = (await platform.observe([last]))[last]
            return await collect(platform, last, seen, await platform.diagnose(last))
    except Exception:
        return Outcome(handle=handle, state=JobState.CANCELED)


def _judged(outcome: Outcome, label: str) -> Outcome:
    verdict, name = outcome.verdict, outcome.handle.name
    if outcome.state is JobState.CANCELED:
        raise JobCanceled(f"{label}: {name} was cancelled and is over")
    if outcome.state is JobState.ERROR:
        cause = verdict.cause if verdict else "the job failed"
        raise JobFailed(f"{label}: {cause}", verdict.remedy if verdict else "", verdict, outcome)
    return outcome


@task(
    name="watch",
    task_run_name="watch {handle.name}",
    persist_result=True,
    result_serializer="json",
    cache_policy=NO_CACHE,
)
@ends_visibly
async def watch_job(request: JobRequest, handle: JobHandle, label: str, minutes: float = 5.0) -> Outcome:
    """The outcome of a job, wherever it was launched. Raises JobFailed; ends as `run_action` does otherwise."""
    return await watched(request, handle, label, minutes, ours=False)
