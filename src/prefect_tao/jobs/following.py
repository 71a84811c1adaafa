"""Follow a step to its end: watch an attempt, judge how it ended, and start the next one where the verdict allows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from prefect_tao.jobs.errors import TaoError, Unreachable
from prefect_tao.jobs.events import RetryPlanned
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import submit_once
from prefect_tao.jobs.listening import Listener, audience
from prefect_tao.jobs.outcome import Outcome, collect, judged
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.verdict import Category, Verdict
from prefect_tao.jobs.waiting import logger, saying
from prefect_tao.jobs.watcher import ASK_SECONDS, ShouldCancel, Watcher

Submit = Callable[[Platform, JobRequest, str, int, Mapping[str, str]], Awaitable[JobHandle]]


async def follow(
    watcher: Watcher,
    request: JobRequest,
    handle: JobHandle,
    secrets: Mapping[str, str],
    listener: Listener | None = None,
    should_cancel: ShouldCancel | None = None,
    submit: Submit = submit_once,
) -> Outcome:
    """The outcome of the step that `handle` is an attempt of.

    Attempts of one key share results and checkpoints; a training that hit its time limit goes on where it was.
    `submit` starts the next attempt, and may wait for room first: the attempt before it is over by then.
    """
    heard = audience(listener)  # one for all attempts: a listener that failed in one hears of no other
    platform, reached = watcher.platform, 0
    spent: Counter[Category] = Counter()  # each kind of trouble has its own budget
    while True:
        again = partial(submit_once, platform, request, handle.key, handle.attempt, secrets)
        complete = None if request.lacking(secrets) else again
        seen = await watcher.wait(handle, heard, should_cancel, complete=complete)
        if seen.state is JobState.COMPLETE:
            outcome = judged(await collect(platform, handle, seen), request.action)
            await _release(platform, handle)
            return outcome
        ended = handle
        verdict = await retry(lambda: platform.diagnose(ended))  # noqa: B023 - awaited before the next round
        position = _position(seen)
        retries = spent[verdict.category]
        progressed = position > reached
        if verdict.category is Category.CANCELED or not verdict.allows_retry(retries, progressed):
            outcome = _as_step(await collect(platform, handle, seen, verdict), verdict)
            await _release(platform, handle)
            return outcome
        await _release(platform, handle)
        reached = max(reached, position)
        spent[verdict.category] += 1
        delay = verdict.delay(0 if progressed else retries)  # what does not hinder the work does not slow it down
        await heard.hear(RetryPlanned(handle, verdict, delay))
        if await _canceled_within(delay, watcher, should_cancel):
            outcome = await collect(platform, handle, seen, verdict)
            return outcome.model_copy(update={"state": JobState.CANCELED})
        handle = await submit(platform, request, handle.key, handle.attempt + 1, secrets)


async def attend(
    watcher: Watcher,
    request: JobRequest | None,
    handle: JobHandle,
    secrets: Mapping[str, str],
    listener: Listener | None = None,
    say: Callable[[str], None] = lambda text: None,
    should_cancel: ShouldCancel | None = None,
    submit: Submit = submit_once,
) -> Outcome:
    """The outcome of a job that was launched elsewhere.

    Its step is followed where that can be done. A job that was over before the first look is reported and not tried
    again, and neither is one whose request or secrets are not known here.
    """
    if request is not None and await _goes_on(watcher.platform, handle):
        missing = request.lacking(secrets)
        if not missing:
            return await follow(watcher, request, handle, secrets, listener, should_cancel, submit)
        say(f"{', '.join(missing)} cannot be found here, so no further attempt is started from here")
    seen = await watcher.wait(handle, listener, should_cancel)
    if seen.state is JobState.COMPLETE:
        action = request.action if request else handle.labels.get("action")
        outcome = judged(await collect(watcher.platform, handle, seen), action)
    else:
        verdict = await retry(lambda: watcher.platform.diagnose(handle))
        outcome = await collect(watcher.platform, handle, seen, verdict)
    await _release(watcher.platform, handle)
    return outcome


async def _release(platform: Platform, handle: JobHandle) -> None:
    """Give back what was rented; how the job ended does not depend on whether that is known to have worked."""
    try:
        await platform.release([handle])
    except TaoError as error:
        logger.warning("%s; %s", error.cause, error.remedy)


async def _goes_on(platform: Platform, handle: JobHandle) -> bool:
    """Whether the job is surely not over."""
    try:
        async with saying(lambda: f"{platform.target} has not said yet how {handle.name} stands"):
            seen = (await platform.observe([handle])).get(handle)
    except (Unreachable, OSError):
        return False
    return seen is not None and not seen.state.terminal


def _as_step(outcome: Outcome, verdict: Verdict) -> Outcome:
    """An attempt that its platform took away is cancelled; the step is so only when a person cancelled it."""
    taken_away = outcome.state is JobState.CANCELED and verdict.category is not Category.CANCELED
    return outcome.model_copy(update={"state": JobState.ERROR}) if taken_away else outcome


async def _canceled_within(seconds: float, watcher: Watcher, should_cancel: ShouldCancel | None) -> bool:
    """Wait; True as soon as the caller wants no further attempt."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        if should_cancel is not None and await watcher.wants_cancel(should_cancel):
            return True
        if loop.time() >= until:
            return False
        await asyncio.sleep(min(ASK_SECONDS, until - loop.time()))


def _position(seen: Observation) -> int:
    """How far the training has come, as one number that grows."""
    progress = seen.progress
    return (progress.epoch or progress.step or 0) if progress else 0
