"""Instances that no one waits for any more: what `prefect-tao brev sweep` looks at, and what may be deleted.

Only those that were made for jobs of this owner, and never one with a container that is not over. One without a
container may belong to a launch that goes on just now, so it is left alone as long as a launch may take. That time
begins anew with the first look at one of which nothing is noted here: another block or machine has launched it.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from prefect_tao.jobs.errors import TaoError, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.platforms.brev import instances, observe
from prefect_tao.platforms.brev.driver import BrevPlatform
from prefect_tao.platforms.brev.render import is_carried
from prefect_tao.platforms.brev.rental_notes import Rental, RentedEnd

# For pulling an image, after the minutes that the block gives an instance to get ready.
PULL_SECONDS = 1800.0


@dataclass(frozen=True)
class Leftover:
    """An instance of ours, whether it may go, and why."""

    instance: str
    status: str
    handle: JobHandle
    may_go: bool
    why: str
    seen: Observation | None = None
    price: float = 0.0

    def as_row(self) -> dict[str, object]:
        """As scripts read it."""
        return {
            "instance": self.instance,
            "status": self.status,
            "job": self.handle.name,
            "may_go": self.may_go,
            "why": self.why,
            "price_per_hour": self.price or None,
        }


async def leftovers(platform: BrevPlatform) -> list[Leftover]:
    """Every instance that was made for a job of ours. Raises Unreachable, MissingDependency."""
    handles = {platform.instance_of(handle): handle for handle in await platform.rented()}
    machines = await platform.machines()
    listed = {name: machines[name].status for name in machines if instances.job_of(name, platform.options)}
    found = [_judged(platform, name, status, handles[name]) for name, status in listed.items() if name in handles]
    return list(await asyncio.gather(*found))


async def _judged(platform: BrevPlatform, name: str, status: str, handle: JobHandle) -> Leftover:
    try:
        rental = await platform.in_thread(platform.notes.rental, handle)
        known = rental if rental else await platform.in_thread(platform.notes.found, handle, name)
    except TaoError as error:
        return Leftover(name, status, handle, False, f"it cannot be looked into: {error.cause}")
    patience = 60 * platform.options.ready_minutes + PULL_SECONDS - (time.time() - known.since)
    price = rental.price if rental else 0.0
    try:
        seen = (await platform.observe([handle])).get(handle)
    except TaoError as error:
        silence = f"it cannot be looked into: {error.cause}"
        if patience < 0 and await platform.in_thread(_never_began, platform, handle, rental):
            why = f"{silence}; nor is there a sign of a job, and no launch takes so long"
            return Leftover(name, status, handle, True, why, observe.unstarted(why), price)
        return Leftover(name, status, handle, False, f"{silence}; to let go of it: brev delete {name}", price=price)
    may_go, why = _reasons(status, seen, patience, rental, is_carried(platform.options))
    return Leftover(name, status, handle, may_go, why, seen, price)


def _reasons(
    status: str, seen: Observation | None, patience: float, rental: Rental | None, is_carried: bool
) -> tuple[bool, str]:
    """Whether an instance may go, and why; `patience` is how long a launch may still take."""
    if status == "DELETING":
        return False, "it is being deleted"
    if seen is None:
        return False, "nothing is known of its job now"
    if seen.state.terminal and is_carried and rental is None:
        return False, f"its job is {seen.state.value}, and was launched from elsewhere: sweep there, it has the results"
    if seen.state.terminal:
        return True, f"its job is over: {seen.state.value}"
    if seen.unstarted and status == "FAILURE" and rental is None:
        return True, "it failed to start, and no job was started on it"
    if seen.unstarted and patience < 0:
        return True, "no job was started on it, and no launch takes so long"
    if seen.unstarted:
        return False, f"a launch may go on; {math.ceil(patience / 60)} minutes more"
    return False, f"its job is {seen.state.value}"


def _never_began(platform: BrevPlatform, handle: JobHandle, rental: Rental | None) -> bool:
    """Whether a job that had begun would be known without its instance, and is not."""
    if rental is None or rental.native_id or is_carried(platform.options):
        return False
    try:
        return platform.notes.record(handle) is None
    except TaoError:
        return False


async def give_back(platform: BrevPlatform, one: Leftover) -> None:
    """Delete one that may go, once its results and how its job ended are kept. Raises Unreachable, SubmitFailed.

    It is looked at once more: a person may have thought for long, and a launch may have gone on.
    """
    if (machine := (await platform.machines()).get(one.instance)) is None:
        return
    one = await _judged(platform, one.instance, machine.status, one.handle)
    if not one.may_go or one.seen is None:
        raise Unreachable(f"{one.instance} is in use: {one.why}", "cancel its job first", retryable=False)
    if one.seen.state is not JobState.PENDING:
        await platform.release([one.handle])
        return
    # Whoever launches it after all starts with the next attempt.
    await platform.in_thread(platform.notes.keep, RentedEnd(handle=one.handle, end=observe.called_off()))
    await platform.keeper.gone(one.instance)
