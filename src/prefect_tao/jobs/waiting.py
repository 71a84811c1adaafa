"""Whatever waits says for what, in the log, before a person starts to wonder. Screens and flow runs show this log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from prefect_tao.jobs.quantities import format_seconds

FIRST_SECONDS = 2.5
AGAIN_SECONDS = 30.0
logger = logging.getLogger("prefect_tao.waiting")


@asynccontextmanager
async def saying(what: Callable[[], str], first: float = FIRST_SECONDS) -> AsyncIterator[None]:
    """Log `what` is waited for when the block takes longer than `first`, and now and then as long as it lasts."""
    saying = asyncio.get_running_loop().create_task(_say_on(what, first))
    try:
        yield
    finally:
        saying.cancel()


async def _say_on(what: Callable[[], str], first: float) -> None:
    waited, pause = 0.0, first
    while True:
        await asyncio.sleep(pause)
        waited += pause
        logger.warning("%s (%s so far)", what(), format_seconds(waited))
        pause = AGAIN_SECONDS
