"""Instances that no one waits for any more: what `prefect-tao brev sweep` looks at, and what may be deleted.

Only those that were made for jobs of this owner, and never one with a container that is not over. One without a
container may belong to a launch that goes on just now, so it is left alone as long as a launch may take.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from prefect_tao.jobs.errors import TaoError, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.platforms.brev import instances, observe
from prefect_tao.platforms.brev.driver import BrevPlatform
from prefect_tao.platforms.brev.rental_notes import RentedEnd

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
        seen = (await platform.observe([handle])).get(handle)
        rental = await platform.in_thread(platform.notes.rental, handle)
    except TaoError as error:
        return Leftover(name, status, handle, False, f"it cannot be looked into: {error.cause}")
    age = time.time() - rental.since if rental else float("inf")
    price = rental.price if rental else 0.0
    patience = 60 * platform.options.ready_minutes + PULL_SECONDS
    if status == "DELETING":
        return Leftover(name, status, handle, False, "it is being deleted", seen, price)
    if seen is None:
        return Leftover(name, status, handle, False, "nothing is known of its job now", seen, price)
    if seen.state.terminal:
        return Leftover(name, status, handle, True, f"its job is over: {seen.state.value}", seen, price)
    if seen.unstarted and age > patience:
        return Leftover(
            name, status, handle, True, "no job was started on it, and no launch takes so long", seen, price
        )
    if seen.unstarted:
        left = round((patience - age) / 60)
        return Leftover(name, status, handle, False, f"a launch may go on; {left} minutes more", seen, price)
    return Leftover(name, status, handle, False, f"its job is {seen.state.value}", seen, price)


async def give_back(platform: BrevPlatform, one: Leftover) -> None:
    """Delete one that may go, once its results and how its job ended are kept. Raises Unreachable, SubmitFailed."""
    if not one.may_go or one.seen is None:
        raise Unreachable(f"{one.instance} is in use: {one.why}", "cancel its job first", retryable=False)
    if one.seen.state is not JobState.PENDING:
        await platform.release([one.handle])
        return
    # Whoever launches it after all starts with the next attempt.
    await platform.in_thread(platform.notes.keep, RentedEnd(handle=one.handle, end=observe.called_off()))
    await platform.keeper.gone(one.instance)
