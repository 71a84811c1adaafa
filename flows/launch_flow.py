"""What our flows have in common: how they end and are cancelled, and parameters that are looked at before any run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar, cast

from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run as runtime

from prefect_tao.flows.endings import ends_as_told
from prefect_tao.jobs.request import masked
from prefect_tao.launch.parameters.derived import check_call
from prefect_tao.launch.parameters.storable import check_storable
from prefect_tao.tasks.cancellation import cancel_jobs
from prefect_tao.tasks.targets.servers import use_server

P = ParamSpec("P")
R = TypeVar("R")


class LaunchFlow(Flow[P, R]):
    """A flow that is not begun with what Prefect could not show again: it stores parameters before it checks them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow, on the server of this machine where no other is set. Raises InvalidInput, Unreachable."""
        check_storable({**{str(number): value for number, value in enumerate(args, 1)}, **kwargs})
        check_call(self.fn, args, kwargs)
        use_server()
        return super().__call__(*args, **kwargs)


def launch_flow(
    name: str, run_name: str | Callable[[], str]
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], LaunchFlow[P, Coroutine[Any, Any, R | State[None]]]]:
    """Makes a function a flow of ours; its runs are called `run_name`, unless a person has typed a name."""

    def made(function: Callable[P, Coroutine[Any, Any, R]]) -> LaunchFlow[P, Coroutine[Any, Any, R | State[None]]]:
        def named() -> str:
            own = run_name() if callable(run_name) else run_name.format(**runtime.parameters)
            return typed_name() or own

        return LaunchFlow(
            ends_as_told(function),
            name=name,
            flow_run_name=named,
            persist_result=True,
            result_serializer="json",
            on_cancellation=[cancel_jobs],
        )

    return made


def typed_name() -> str:
    """The name that a person has given the current run; empty where Prefect has made one up, of two of its words."""
    from coolname.data import config

    lists: list[Any] = [part.get("words", ()) for part in cast("dict[str, dict[str, Any]]", config).values()]
    name, known = str(runtime.name or ""), {word for words in lists for word in words}
    return "" if all(word in known for word in name.split("-")) else name


def differing(values: Mapping[str, Any] | None) -> str:
    """What tells one run from another of the same action: its key values, as in lr=0.1, num_epochs=3."""
    return masked(", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in (values or {}).items()))
