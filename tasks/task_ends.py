"""The end of a task whose job was cancelled or left: it is shown as such, and a later run asks anew."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from prefect.client.schemas.objects import State
from prefect.states import Cancelled
from prefect.transactions import get_transaction

from prefect_tao.jobs.errors import Detached, JobCanceled
from prefect_tao.tasks.detaching import STATE_NAME

P = ParamSpec("P")
R = TypeVar("R")


def ends_visibly(task: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R | State[Any]]]:
    """The task's function, with a state in place of JobCanceled and Detached; `state.aresult()` raises them again."""

    @functools.wraps(task)
    async def run(*args: P.args, **kwargs: P.kwargs) -> R | State[Any]:
        try:
            return await task(*args, **kwargs)
        except JobCanceled as error:
            return _kept_nowhere(Cancelled(message=error.cause, data=error))
        except Detached as error:
            return _kept_nowhere(Cancelled(name=STATE_NAME, message=error.cause, data=error))

    return run


def _kept_nowhere(state: State[Any]) -> State[Any]:
    """A result that is kept under the key of the step would be taken for that of a complete one."""
    if transaction := get_transaction():
        transaction.write_on_commit = False
    return state
