"""One event loop in a thread of its own, for plain calls: they work in scripts, threads, notebooks and async code.

Connections belong to the loop that they were made in, so all calls of a process share it and log in once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def begin(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Start `work` on the shared loop."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="prefect-tao", daemon=True).start()
    return asyncio.run_coroutine_threadsafe(work, _loop)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, for code that is not async. Ctrl-C ends the work, and never a job."""
    future = begin(work)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise


async def awaited(work: Coroutine[Any, Any, T]) -> T:
    """The same for code in another event loop."""
    return await asyncio.wrap_future(begin(work))
