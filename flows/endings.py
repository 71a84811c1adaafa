"""How flows end that neither succeed nor fail: cancelled by a person, or left by one."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run as runtime
from prefect.states import Cancelled

from prefect_tao.jobs.errors import Detached, JobCanceled
from prefect_tao.jobs.events import RunBegan
from prefect_tao.launch.parameters.surfaces import as_parameters_here
from prefect_tao.tasks.cancellation import canceled_here, canceling, root_id
from prefect_tao.tasks.detaching import detached, left_here
from prefect_tao.tasks.reporting import everyone

P = ParamSpec("P")
R = TypeVar("R")
OVER = "the run was cancelled, and its jobs are over"


def ends_as_told(flow: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R | State[None]]]:
    """The flow, which ends as Cancelled or Detached when a person wants that. When it merely dies, it has crashed."""

    @functools.wraps(flow)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R | State[None]:
        try:
            await everyone().hear(RunBegan(str(runtime.id)))
            with as_parameters_here():
                return await flow(*args, **kwargs)
        except JobCanceled as error:
            return Cancelled(message=str(error))
        except Detached:
            return _left()
        except asyncio.CancelledError:
            if left_here():
                return _left()
            if await canceling(root_id())():
                return Cancelled(message=OVER)
            raise

    # Prefect would pass everything by place to a function that wraps another one.
    del run.__wrapped__
    run.__signature__ = inspect.signature(flow)  # type: ignore[attr-defined]
    return run


def _left() -> State[None]:
    if canceled_here():  # and did not wait for the end of it
        return Cancelled(message=OVER)
    if context := FlowRunContext.get():
        context.persist_result = False  # there is none
    return detached(root_id())
