"""Work that is done side by side."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

TRANSFERS = 8


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
