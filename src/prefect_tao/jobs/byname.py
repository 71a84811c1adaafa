"""A job by its name, wherever it was launched from."""

from __future__ import annotations

from prefect_tao.jobs.errors import Elsewhere, InvalidInput, TaoError
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.waiting import saying


async def find_by_name(platform: Platform, name: str) -> JobHandle:
    """The job of that name.

    Raises InvalidInput when the target knows none, Elsewhere when another site has it, Unreachable for no answer.
    """
    wanted = JobName.parse(name)
    async with saying(lambda: f"{platform.target} has not said yet whether it has {name}"):
        for handle in (await platform.find([wanted.key])).get(wanted.key, []):
            if handle.attempt == wanted.attempt:
                if await platform.elsewhere([handle]):
                    raise Elsewhere(handle, f"say where that is: --target {handle.target}, set up for that site")
                return handle
    raise InvalidInput(
        f"{platform.target} knows no job {name}",
        f"if it is elsewhere, say where with --target; prefect-tao jobs --target {platform.target} lists what is here",
    )


async def known_request(platform: Platform, handle: JobHandle) -> JobRequest | None:
    """What the job was asked to do, where its platform keeps that and can be asked."""
    try:
        return await platform.request_of(handle)
    except (TaoError, OSError, ValueError):  # silence, or a request that another version has written
        return None
