"""Removes the checkpoints of trials that lost, where the results of the target can be reached from here."""

from __future__ import annotations

from collections.abc import Collection

from prefect import get_run_logger

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.errors import TaoError
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.search_outcome import SearchOutcome
from prefect_tao.platforms.base import Driver
from prefect_tao.runner.inside.checkpoints import CHECKPOINTS

OVER = (StepState.COMPLETE, StepState.ERROR)


async def remove_lost(found: SearchOutcome, kept: Collection[int], platform: Platform) -> None:
    """Remove them; those of `kept` trials and of trials that are not over stay. What cannot be removed stays too."""
    lost = [one for one in found.points if one.number not in kept and one.state in OVER and one.results]
    if not lost or not isinstance(platform, Driver):
        return
    left: dict[int, Exception] = {}
    for one in lost:
        try:
            files, path = await platform.in_thread(platform.reach, one.results)
            await platform.in_thread(files.remove_below, path, CHECKPOINTS)
        except (TaoError, OSError) as error:
            left[one.number] = error
    if left:
        number, why = next(iter(left.items()))
        words = "checkpoints of %d trials that lost stay where they are; trial %d: %s"
        get_run_logger().warning(words, len(left), number, why)
