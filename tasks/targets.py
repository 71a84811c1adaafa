"""From a target's name to its driver and watcher: one of each per target and event loop, shared by all jobs."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from weakref import WeakKeyDictionary

from prefect.blocks.core import Block

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.target import Target
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms import known, open_platform


class Opened(NamedTuple):
    """A target in use."""

    platform: Platform
    watcher: Watcher


# A watcher belongs to the event loop it was made in; targets are strings, because a retry cannot rebuild a Block.
_opened: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Opened]] = WeakKeyDictionary()


async def open_target(target: str) -> Opened:
    """The driver and the watcher of `target`. Raises InvalidInput when there is no such platform or block."""
    here = _opened.setdefault(asyncio.get_running_loop(), {})
    if target not in here:
        platform = await _open(Target.parse(target))
        here[target] = Opened(platform, Watcher(platform))
    return here[target]


async def _open(target: Target) -> Platform:
    if target.block is None:
        return open_platform(str(target))
    slug = f"tao-{known(target.platform)}/{target.block}"
    try:
        block = await Block.aload(slug)
    except ValueError:
        raise InvalidInput(
            f"there is no saved block for the target {target}",
            f"save a {slug.partition('/')[0]} block named {target.block} in the Prefect UI under Blocks",
        ) from None
    return open_platform(str(target), block.settings())  # type: ignore[attr-defined]
