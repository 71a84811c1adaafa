"""Looks at a target as its driver sees it, for those who have just saved its block."""

from __future__ import annotations

from prefect_tao.jobs.finding import Finding
from prefect_tao.tasks.targets.opening import open_target


async def probe_target(target: str) -> list[Finding]:
    """What the driver of `target` finds; nothing is left behind there.

    Raises InvalidInput when there is no such platform or block, MissingDependency when its driver is not installed,
    Unreachable when it does not answer.
    """
    return await (await open_target(target)).platform.probe()
