"""Launch exactly once: look the name up, adopt what is there, submit under the name, and look again on any doubt."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from prefect_tao.jobs.clock import now
from prefect_tao.jobs.errors import Elsewhere, Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Platform, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.retrying import LONGEST_PAUSE, PATIENCE_SECONDS, retry
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.waiting import logger, saying

# The label of an attempt that was started because the one before it was let go, with where that was.
RELEASED = "released"


@dataclass(frozen=True)
class Launched:
    """The job, whether it was there before, and what a person should know about that.

    `request` is what a job that was there was asked to do, where that is something else and known: further attempts of
    it do the same.
    """

    handle: JobHandle
    adopted: bool
    findings: tuple[Finding, ...] = ()
    request: JobRequest | None = None


@dataclass(frozen=True)
class LookUp:
    """What there was under a key when it was looked up: the latest attempt, and how it stood."""

    found: JobHandle | None
    seen: Observation | None
    asked_at: datetime
    at: float
    is_elsewhere: bool = False

    @property
    def age(self) -> float:
        """Seconds since then."""
        return _time() - self.at

    @property
    def failed(self) -> bool:
        """Whether the attempt had ended badly before it was asked for: to ask again means to try again."""
        return self.seen is not None and _failed_before(self.seen, self.asked_at)

    def is_due(self, release: bool = False) -> bool:
        """Whether a new attempt is due; a job that runs or is complete is attached to.

        Of a job elsewhere nothing is known: raises Elsewhere, unless a person lets go of it with `release`.
        """
        if self.found and self.is_elsewhere and not release:
            raise refusal(self.found)
        return self.found is None or self.failed or self.is_elsewhere


def refusal(handle: JobHandle) -> Elsewhere:
    """Why nothing is launched under a key that lives elsewhere, and what a person can do."""
    return Elsewhere(
        handle,
        f"launch with --target {handle.target} set up for that site, or with another run_key; if that site is gone for "
        "good, release_elsewhere (--release-elsewhere) starts a new attempt here",
    )


async def look_up(platform: Platform, key: str, patience: float = PATIENCE_SECONDS) -> LookUp:
    """The job of `key`. Raises Unreachable when the platform gives no definite answer within `patience`."""
    asked_at, at = now(), _time()
    attempts = (await retry(lambda: platform.find([key]), patience)).get(key, [])
    if not attempts:
        return LookUp(None, None, asked_at, at)
    if await retry(lambda: platform.elsewhere(attempts[-1:]), patience):
        return LookUp(attempts[-1], None, asked_at, at, is_elsewhere=True)
    seen = (await retry(lambda: platform.observe(attempts[-1:]), patience)).get(attempts[-1])
    return LookUp(attempts[-1], seen, asked_at, at)


async def attached_keys(
    platform: Platform, keys: Sequence[str], patience: float = PATIENCE_SECONDS, release: bool = False
) -> set[str]:
    """Those of `keys` that have a job which a launch would attach to, asked for together.

    Raises Unreachable, and Elsewhere for a job of another site unless that is to be let go with `release`.
    """
    asked_at = now()
    found = await retry(lambda: platform.find(keys), patience)
    latest = {key: attempts[-1] for key, attempts in found.items() if attempts}
    if far := await retry(lambda: platform.elsewhere(list(latest.values())), patience):
        if not release:
            raise refusal(far[0])
        latest = {key: handle for key, handle in latest.items() if handle not in far}
    seen = await retry(lambda: platform.observe(list(latest.values())), patience) if latest else {}
    return {key for key, handle in latest.items() if handle not in seen or not _failed_before(seen[handle], asked_at)}


async def launch(
    platform: Platform,
    request: JobRequest,
    key: str,
    secrets: Mapping[str, str],
    looked: LookUp | None = None,
    drawn: Rendered | None = None,
) -> Launched:
    """Attach to the job of `key`, or start its next attempt. Raises SubmitFailed, Unreachable, Elsewhere.

    `looked` is what was found under the key a moment ago, `drawn` what was rendered for its first attempt.
    """
    looked = looked or await look_up(platform, key)
    found, is_due = looked.found, looked.is_due(request.release_elsewhere)
    if found is None:
        handle = await submit_once(platform, request, key, 1, secrets, drawn)
        return Launched(handle, adopted=False, findings=_changes(handle, request))
    if looked.is_elsewhere:
        request = request.model_copy(update={"labels": {**request.labels, RELEASED: f"{found.name} on {found.site}"}})
        handle = await submit_once(platform, request, key, found.attempt + 1, secrets)
        return Launched(handle, adopted=False, findings=_released(found))
    if is_due:
        return Launched(await submit_once(platform, request, key, found.attempt + 1, secrets), adopted=False)
    may_wait = looked.seen is None or looked.seen.state is JobState.PENDING
    if may_wait and not request.lacking(secrets):
        # Its launcher may have died half-way; to submit under the name again completes the job or adopts it. It brings
        # the secrets anew, so who has not got all of them leaves it alone.
        found = await submit_once(platform, request, key, found.attempt, secrets)
    return Launched(found, adopted=True, findings=_changes(found, request))


async def submit_once(
    platform: Platform,
    request: JobRequest,
    key: str,
    attempt: int,
    secrets: Mapping[str, str],
    drawn: Rendered | None = None,
) -> JobHandle:
    """Submit one attempt; on doubt ask the platform for the name, and repeat only what it has denied long enough.

    What another launcher started meanwhile in its place is the job then.
    """
    is_same = drawn is not None and (drawn.request, drawn.key, drawn.attempt) == (request, key, attempt)
    rendered = drawn if drawn and is_same else platform.render(request, key, attempt)
    name, give_up, pause = JobName(key, attempt), _time() + PATIENCE_SECONDS, 0.5
    while True:
        try:
            async with saying(lambda: f"{platform.target} has not said yet whether it took {name}"):
                return await platform.submit(rendered, secrets)
        except Unreachable as error:
            if not error.retryable:
                raise
            logger.warning("%s; looking whether %s is there before it is sent again", error.cause, name)
            found = await _found_or_denied(platform, key, attempt)
            late = _time() + pause > give_up
            if found and (late or found.attempt != attempt or await _has_begun(platform, found)):
                return found
            if late:
                raise
        # To submit under the name of a job that has not begun completes what was left half-way, or adopts it.
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


async def _has_begun(platform: Platform, handle: JobHandle) -> bool:
    """Whether the job is seen to have begun; one of which nothing is seen is in doubt."""
    seen = (await retry(lambda: platform.observe([handle]))).get(handle)
    return seen is not None and seen.state is not JobState.PENDING


async def _found_or_denied(platform: Platform, key: str, attempt: int) -> JobHandle | None:
    """The attempt, or what takes its place, once the platform knows it; None when it has denied it long enough."""
    denied_since = _time()
    while True:
        attempts = (await retry(lambda: platform.find([key]))).get(key, [])
        far = await retry(lambda: platform.elsewhere(attempts))  # noqa: B023 - awaited here
        for handle in attempts:
            if handle.attempt == attempt:
                if handle in far:
                    raise refusal(handle)
                return handle
        if _time() - denied_since >= platform.denial_seconds:
            return await _in_its_place(platform, [handle for handle in attempts if handle not in far], attempt)
        await asyncio.sleep(1.0)


async def _in_its_place(platform: Platform, others: Sequence[JobHandle], attempt: int) -> JobHandle | None:
    """A later attempt, or an earlier one that goes on: other launchers have been at it while we waited for answers."""
    if others and others[-1].attempt > attempt:
        return others[-1]
    seen = await retry(lambda: platform.observe(others)) if others else {}
    going = [handle for handle in others if handle in seen and not seen[handle].state.terminal]
    return going[-1] if going else None


def _time() -> float:
    """Seconds, as the event loop counts them."""
    return asyncio.get_running_loop().time()


def _failed_before(seen: Observation, asked_at: datetime) -> bool:
    """Whether the attempt had failed before we were asked; one that fails while we ask belongs to this launch."""
    failed = seen.state in (JobState.ERROR, JobState.CANCELED)
    return failed and (seen.ended_at is None or seen.ended_at <= asked_at)


def _released(left: JobHandle) -> tuple[Finding, ...]:
    return (
        Finding(
            level=Level.WARN,
            subject="site",
            message=f"{left.name} on {left.site} was let go, and a new attempt was started here",
            remedy="if that site is there after all, cancel the job there: both write to the same results",
        ),
    )


def _changes(handle: JobHandle, request: JobRequest) -> tuple[Finding, ...]:
    if not handle.digest or handle.digest == request.digest:
        return ()
    return (
        Finding(
            level=Level.WARN,
            subject="request",
            message=f"{handle.name} was launched with another request ({handle.digest}, now {request.digest})",
            remedy="it is kept as it is; use another run_key to launch the changed request as a new job",
        ),
    )
