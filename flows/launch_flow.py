"""What our flows have in common: how they end and are cancelled, and parameters that are looked at before any run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from prefect import Flow
from prefect.client.schemas.objects import State

from prefect_tao.flows.endings import ends_as_told
from prefect_tao.launch.parameters.storable import check_storable
from prefect_tao.tasks.cancellation import cancel_jobs

P = ParamSpec("P")
R = TypeVar("R")


class LaunchFlow(Flow[P, R]):
    """A flow that is not begun with what Prefect could not show again: it stores parameters before it checks them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow. Raises InvalidInput."""
        check_storable({**{str(number): value for number, value in enumerate(args, 1)}, **kwargs})
        return super().__call__(*args, **kwargs)


def launch_flow(
    name: str, run_name: str | Callable[[], str]
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], LaunchFlow[P, Coroutine[Any, Any, R | State[None]]]]:
    """Makes a function a flow of ours; its runs are called `run_name`."""

    def made(function: Callable[P, Coroutine[Any, Any, R]]) -> LaunchFlow[P, Coroutine[Any, Any, R | State[None]]]:
        return LaunchFlow(
            ends_as_told(function),
            name=name,
            flow_run_name=run_name,
            persist_result=True,
            result_serializer="json",
            on_cancellation=[cancel_jobs],
        )

    return made
