"""Flows as plain calls, for scripts and the command line."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from prefect.exceptions import CancelledRun, ParameterBindError, ParameterTypeError, SignatureMismatchError

import prefect_tao.flows
from prefect_tao.jobs.errors import InvalidInput, JobCanceled


def plain_call(name: str) -> Callable[..., Any]:
    """The flow `name` as a function that runs it to its end and returns its result.

    The function raises what the flow raises, InvalidInput for wrong parameters, JobCanceled when the run was cancelled.
    """
    flow = getattr(prefect_tao.flows, name)

    @functools.wraps(flow.fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return asyncio.run(flow(*args, **kwargs))
        except CancelledRun as error:
            raise JobCanceled(str(error)) from None
        except (ParameterTypeError, ParameterBindError, SignatureMismatchError) as error:
            raise InvalidInput(str(error), f"help(prefect_tao.{name}) shows the parameters and their types") from None

    return call
