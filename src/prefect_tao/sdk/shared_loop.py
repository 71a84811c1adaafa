"""One event loop in a thread of its own, for plain calls: they work in scripts, threads, notebooks and async code.

Connections belong to the loop that they were made in, so all calls of a process share it and log in once.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from prefect_tao.launch.parameters.surfaces import as_parameters_here

P = ParamSpec("P")
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
    with as_parameters_here():
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


def plain(call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """An async call as one for code that is not async."""

    @functools.wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return wait_for(call(*args, **kwargs))

    return called


def twin(call: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """What `plain` has made of an async call, for code in another event loop."""
    work: Callable[P, Coroutine[Any, Any, T]] = call.__wrapped__  # type: ignore[attr-defined]

    @functools.wraps(call)
    async def called(*args: P.args, **kwargs: P.kwargs) -> T:
        return await awaited(work(*args, **kwargs))

    called.__name__ = f"a{call.__name__}"
    called.__doc__ = f"As `{call.__name__}`, for async code."
    return called
