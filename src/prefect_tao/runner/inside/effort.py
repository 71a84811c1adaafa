"""Work that takes long or fails for a moment: done side by side, and with patience."""

from __future__ import annotations

import time

from .errors import FINAL_ERRORS, RunnerError, advised

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

TRANSFERS = 8
TRIES = 4


def run_parallel(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run callables side by side; the first failure is raised after all have ended. A signal does not wait for them."""
    if not tasks:
        return []
    from concurrent.futures import ThreadPoolExecutor, wait

    pool = ThreadPoolExecutor(TRANSFERS)
    futures = [pool.submit(task) for task in tasks]
    try:
        wait(futures)
    finally:
        for future in futures:
            future.cancel()
        pool.shutdown(wait=False)
    return [future.result() for future in futures]


def patiently(phase: str, what: str, action: Callable[[], Any]) -> Any:
    """Try `action` a few times with growing pauses: hubs and shared file systems hiccup."""
    for attempt in range(1, TRIES + 1):
        try:
            return action()
        except RunnerError:
            raise
        except Exception as error:
            if attempt == TRIES or (isinstance(error, OSError) and error.errno in FINAL_ERRORS):
                raise RunnerError(phase, "%s failed: %s" % (what, advised(error)))
            time.sleep(0.5 * 2**attempt)
