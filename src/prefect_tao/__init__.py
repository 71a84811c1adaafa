"""Training jobs as Prefect tasks: checked first, launched exactly once, watched politely, cancelled for real.

`from prefect_tao import run` is a plain call for scripts; `prefect_tao.flows` holds the same as async flows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

if TYPE_CHECKING:
    from prefect_tao.jobs.chain_outcome import ChainOutcome
    from prefect_tao.jobs.handle import JobHandle
    from prefect_tao.jobs.outcome import Outcome
    from prefect_tao.jobs.points import SweepOutcome
    from prefect_tao.launch.parameters.declared import ChainParameters, RunParameters, SweepParameters

    # What editors and type checkers see of the calls that `__getattr__` hands out.
    def run(*words: str, **given: Unpack[RunParameters]) -> Outcome | JobHandle: ...
    def chain(**given: Unpack[ChainParameters]) -> ChainOutcome: ...
    def sweep(**given: Unpack[SweepParameters]) -> SweepOutcome: ...
    def quickstart(epochs: int = 20, target: str = "process", run_key: str | None = None) -> list[Outcome]: ...


__version__ = "0.1.0"
FLOWS = ("chain", "quickstart", "run", "sweep")
__all__ = ["__version__", "chain", "quickstart", "run", "sweep"]


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in FLOWS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    from prefect_tao.flows.plain import plain_call

    return plain_call(name)
