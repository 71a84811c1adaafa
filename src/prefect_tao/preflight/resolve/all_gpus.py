"""The number of GPUs behind "all of them": specs, reviews and costs need it, and only the platform knows it."""

from __future__ import annotations

from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import ALL_GPUS
from prefect_tao.preflight.resolve.translating import Parameters


def wants_all(given: Parameters) -> bool:
    """Whether a launch asks for all GPUs of a node."""
    return given.get("gpus") == ALL_GPUS


async def counted(given: Parameters, platform: Platform) -> Parameters:
    """The parameters with the number of GPUs in place of "all"; unchanged where it is unknown or zero.

    Raises Unreachable.
    """
    number = await platform.all_gpus(given.get("image")) if wants_all(given) else None
    return {**given, "gpus": number} if number else given
