"""Flows as plain calls, for scripts, notebooks and the command line."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from prefect.exceptions import CancelledRun, ParameterBindError, ParameterTypeError, SignatureMismatchError

import prefect_tao.flows
from prefect_tao.jobs.errors import InvalidInput, JobCanceled, TaoError
from prefect_tao.launch.parameters.surfaces import as_parameters_here
from prefect_tao.tasks.detaching import detach_here, leavable, left_here

LEAVE_SECONDS = 10.0


def plain_call(name: str) -> Callable[..., Any]:
    """The flow `name` as a function that runs it to its end and returns its result.

    The function raises what the flow raises, InvalidInput for wrong parameters, JobCanceled when the run was cancelled.
    Ctrl-C leaves the run: its jobs go on, its state says so, and KeyboardInterrupt is raised.
    """
    flow = getattr(prefect_tao.flows, name)

    @functools.wraps(flow.fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        _check_names(name, flow, kwargs)
        try:
            with as_parameters_here():
                return _run(flow(*args, **kwargs))
        except CancelledRun as error:
            raise JobCanceled(str(error)) from None
        except (ParameterTypeError, ParameterBindError, SignatureMismatchError) as error:
            raise InvalidInput(str(error), f"help(prefect_tao.{name}) shows the parameters and their types") from None
        except TaoError as error:
            raise error.with_traceback(None) from None  # where Prefect and this package passed it on is no news

    return call


def _check_names(name: str, flow: Any, given: Iterable[str]) -> None:
    """Raises InvalidInput with the nearest name for a parameter that there is not."""
    known = list(inspect.signature(flow.fn).parameters)
    for word in given:
        if word not in known:
            near = get_close_matches(word, known, n=1)
            remedy = (f"did you mean {near[0]}? " if near else "") + f"help(prefect_tao.{name}) lists them all"
            raise InvalidInput(f"{name} has no parameter {word!r}", remedy)


def _run(flow_run: Coroutine[Any, Any, Any]) -> Any:
    """Run it in this thread, or in one of its own where this one has a running event loop, as in a notebook."""
    if not _has_loop():
        with _interruptible():
            return asyncio.run(_leavable(flow_run))
    pool = ThreadPoolExecutor(1, "prefect-tao")
    running = pool.submit(contextvars.copy_context().run, asyncio.run, _leavable(flow_run))
    pool.shutdown(wait=False)
    try:
        return running.result()
    except KeyboardInterrupt:
        detach_here()
        wait([running], LEAVE_SECONDS)
        raise


def _has_loop() -> bool:
    try:
        return bool(asyncio.get_running_loop())
    except RuntimeError:
        return False


async def _leavable(flow_run: Coroutine[Any, Any, Any]) -> Any:
    with leavable():
        return await flow_run


@contextmanager
def _interruptible() -> Iterator[None]:
    """Within the block Ctrl-C leaves the run, and a second one ends it at once. Raises KeyboardInterrupt after both.

    Who handles that signal in another way, as the command line does, calls `detach_here`.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )

    def leave(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        detach_here()

    if ours:
        signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if left_here():
            raise KeyboardInterrupt from None
