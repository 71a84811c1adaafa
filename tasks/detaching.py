"""A person leaves a run at the terminal or in a notebook: its jobs go on, and the run's state says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect.client.schemas.objects import State
from prefect.states import Cancelled

from prefect_tao.jobs.errors import Detached
from prefect_tao.jobs.handle import JobHandle

STATE_NAME = "Detached"

_left = threading.Event()
_calls: set[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = set()
_watched: dict[str, JobHandle] = {}


@contextmanager
def leavable() -> Iterator[None]:
    """What the current task does in the block is what `detach_here` leaves."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    call = (asyncio.get_running_loop(), task)
    if not _calls:
        _left.clear()  # in a notebook the next run is another one
    _calls.add(call)
    try:
        yield
    finally:
        _calls.discard(call)


def detach_here() -> None:
    """Leave all that runs in this process; from any thread, and from the handler of a signal."""
    _left.set()
    for loop, task in tuple(_calls):
        loop.call_soon_threadsafe(task.cancel)


def left_here() -> bool:
    """Whether a person has left what runs in this process."""
    return _left.is_set()


@contextmanager
def watching(handle: JobHandle) -> Iterator[None]:
    """The job goes on when the run is left within the block. Raises Detached then."""
    _watched[handle.key] = handle
    try:
        yield
    except asyncio.CancelledError:
        if left_here():
            raise Detached(_goes_on(handle), _way_back(handle)) from None
        raise
    finally:
        if not left_here():
            _watched.pop(handle.key, None)


def detached(run_key: str) -> State[None]:
    """The state of a flow that was left. Nothing succeeded and nothing failed, so it is of the type Cancelled."""
    handles = list(_watched.values())
    if len(handles) == 1:
        words = f"{_goes_on(handles[0])}: {_way_back(handles[0])}"
    else:
        names = ", ".join(handle.name for handle in handles)
        words = f"{names} go on" if names else "no job was seen yet"
        words += f": the same launch with the run_key {run_key} attaches to what there is, and begins the rest"
    return Cancelled(name=STATE_NAME, message=f"a person left the run; {words}")


def _goes_on(handle: JobHandle) -> str:
    return f"{handle.name} on {handle.target} goes on"


def _way_back(handle: JobHandle) -> str:
    return f"prefect-tao watch {handle.name} --target {handle.target}"
