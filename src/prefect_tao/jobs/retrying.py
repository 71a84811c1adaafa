"""Repeat what got no definite answer, with pauses that grow: silence is not evidence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.waiting import logger, saying

PATIENCE_SECONDS = 900.0
LONGEST_PAUSE = 30.0
T = TypeVar("T")


async def retry(ask: Callable[[], Awaitable[T]], seconds: float = PATIENCE_SECONDS) -> T:
    """Ask until the platform answers. Raises Unreachable after `seconds`, as the event loop counts them.

    What it waits for is logged. A fault that no waiting ends, such as a refused login, is raised at once; likewise
    below.
    """
    clock = asyncio.get_running_loop().time
    give_up = clock() + seconds
    said = "no answer yet"
    async with saying(lambda: f"{said}; waiting for an answer"):
        for pause in _growing(0.5, LONGEST_PAUSE):
            try:
                return await ask()
            except Unreachable as error:
                if not error.retryable or clock() + pause > give_up:
                    raise
                said = error.cause
            await asyncio.sleep(pause)
    raise AssertionError("the pauses never end")


def retry_blocking(
    step: Callable[[], T],
    seconds: float,
    is_doubtful: Callable[[Exception], bool] = lambda error: False,
    longest_pause: float = 5.0,
    is_silence_doubt: bool = True,
) -> T:
    """The same for a blocking step that does no harm twice; `is_doubtful` names further errors that are no answer.

    Each repetition is logged. Raises what the last try raised, and silence at once unless that `is_silence_doubt`.
    """
    give_up = time.monotonic() + seconds
    for pause in _growing(0.1, longest_pause):
        try:
            return step()
        except Exception as error:
            is_silence = isinstance(error, Unreachable) and error.retryable and is_silence_doubt
            if not is_silence and not is_doubtful(error):
                raise
            if time.monotonic() + pause > give_up:
                raise
            cause = error.cause if isinstance(error, Unreachable) else str(error)
            logger.warning("%s; it is tried again for up to %.0f s", cause, give_up - time.monotonic())
        time.sleep(pause)
    raise AssertionError("the pauses never end")


def _growing(first: float, longest: float) -> Iterator[float]:
    """Each pause twice as long as the one before it."""
    pause = first
    while True:
        yield pause
        pause = min(2 * pause, longest)
