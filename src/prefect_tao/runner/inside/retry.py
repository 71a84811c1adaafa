"""Tries again for as long as that helps."""

from __future__ import annotations

import time

from .failures import OwnError, RunnerError, advised, is_local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TRIES = 6
LONGEST_PAUSE = 8.0


def retry(
    action: Callable[[], Any],
    failed: Callable[[Exception], Exception],
    is_final: Callable[[Exception], bool],
    position: Callable[[], int] = lambda: 0,
    tries: int | None = None,
) -> Any:
    """Try `action` with growing pauses; what moves `position` on counts as a new start.

    Our own errors pass as they are. Others end the trying when they are final or come too often; then what `failed`
    makes of the last one is raised.
    """
    failures, before = 0, position()
    while True:
        try:
            return action()
        except OwnError:
            raise
        except Exception as error:
            if position() != before:
                failures, before = 0, position()
            failures += 1
            if is_final(error) or failures >= (tries or TRIES):
                raise failed(error)
            from random import uniform

            time.sleep(min(0.5 * 2**failures, LONGEST_PAUSE) * uniform(0.6, 1.1))


def retry_phase(phase: str, what: str, action: Callable[[], Any]) -> Any:
    """Try `action` of `phase` a few times: hubs and shared file systems have short outages. Raises RunnerError."""

    def failed(error: Exception) -> RunnerError:
        return RunnerError(phase, "%s failed: %s" % (what, advised(error)))

    return retry(action, failed, is_local, tries=4)
