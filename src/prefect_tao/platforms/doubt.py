"""Only a definite answer is an answer: one rule for every request over HTTP, and one way to repeat what is in doubt."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from prefect_tao.jobs.errors import Unreachable

T = TypeVar("T")
LONGEST_PAUSE = 5.0
REQUEST_TIMEOUT, TOO_MANY_REQUESTS, SERVER_ERRORS = 408, 429, 500
_log = logging.getLogger(__name__)


def is_doubt(status: int) -> bool:
    """Whether an answer of this status says nothing: what was asked for may have been done, or not, or may be later.

    A proxy in between answers so, and so does a server that has lost its own. Every other 4xx is final.
    """
    return status >= SERVER_ERRORS or status in (REQUEST_TIMEOUT, TOO_MANY_REQUESTS)


def persistently(
    step: Callable[[], T], seconds: float, is_doubtful: Callable[[Exception], bool] = lambda error: False
) -> T:
    """Repeat a step that does no harm twice while its answer is in doubt, for at most `seconds`, and say so.

    Unreachable is doubt, and so is what `is_doubtful` says is. Raises what the last try raised.
    """
    give_up, pause = time.monotonic() + seconds, 0.1
    while True:
        try:
            return step()
        except Exception as error:
            if not isinstance(error, Unreachable) and not is_doubtful(error):
                raise
            if time.monotonic() + pause > give_up:
                raise
            _log.warning("%s; it is tried again for up to %.0f s", _cause(error), give_up - time.monotonic())
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _cause(error: Exception) -> str:
    return error.cause if isinstance(error, Unreachable) else str(error)
