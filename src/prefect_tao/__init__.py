"""Training jobs as Prefect tasks: checked first, launched exactly once, watched politely, cancelled for real.

`run`, `chain`, `sweep`, `automl` and `quickstart` are plain calls of the flows in `prefect_tao.flows`; `connect` opens
a target for calls such as `create_job` and `get_job_status`. Whatever they raise on purpose is a `TaoError` with cause
and remedy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

if TYPE_CHECKING:
    from prefect_tao.jobs.chain_outcome import ChainOutcome
    from prefect_tao.jobs.errors import (
        CancelUnconfirmed,
        InvalidInput,
        JobCanceled,
        JobFailed,
        MissingDependency,
        SubmitFailed,
        TaoError,
        Unreachable,
    )
    from prefect_tao.jobs.handle import JobHandle
    from prefect_tao.jobs.outcome import Outcome
    from prefect_tao.jobs.points import SweepOutcome
    from prefect_tao.jobs.search_outcome import SearchOutcome
    from prefect_tao.jobs.state import JobState
    from prefect_tao.launch.parameters.declared import (
        ChainParameters,
        RunParameters,
        SearchParameters,
        SweepParameters,
    )
    from prefect_tao.launch.verbs import Job, JobStatus
    from prefect_tao.runner.entrypoint import build_entrypoint
    from prefect_tao.sdk.core_api import Sdk, aconnect, connect

    # What editors and type checkers see of the calls that `__getattr__` hands out.
    def run(*words: str, **given: Unpack[RunParameters]) -> Outcome | JobHandle | SearchOutcome: ...
    def chain(**given: Unpack[ChainParameters]) -> ChainOutcome: ...
    def sweep(**given: Unpack[SweepParameters]) -> SweepOutcome: ...
    def automl(**given: Unpack[SearchParameters]) -> SearchOutcome: ...
    def quickstart(epochs: int = 20, target: str = "process", run_key: str | None = None) -> list[Outcome]: ...


__version__ = "0.1.0"
FLOWS = ("automl", "chain", "quickstart", "run", "sweep")
# Where each name is; it is imported when it is used, so that importing this package costs nothing.
_PLACES = {
    "jobs.chain_outcome": ("ChainOutcome",),
    "jobs.errors": (
        "CancelUnconfirmed",
        "InvalidInput",
        "JobCanceled",
        "JobFailed",
        "MissingDependency",
        "SubmitFailed",
        "TaoError",
        "Unreachable",
    ),
    "jobs.handle": ("JobHandle",),
    "jobs.outcome": ("Outcome",),
    "jobs.points": ("SweepOutcome",),
    "jobs.search_outcome": ("SearchOutcome",),
    "jobs.state": ("JobState",),
    "launch.verbs": ("Job", "JobStatus"),
    "runner.entrypoint": ("build_entrypoint",),
    "sdk.core_api": ("Sdk", "aconnect", "connect"),
}
_WHERE = {name: module for module, names in _PLACES.items() for name in names}
__all__ = [
    "CancelUnconfirmed",
    "ChainOutcome",
    "InvalidInput",
    "Job",
    "JobCanceled",
    "JobFailed",
    "JobHandle",
    "JobState",
    "JobStatus",
    "MissingDependency",
    "Outcome",
    "Sdk",
    "SearchOutcome",
    "SubmitFailed",
    "SweepOutcome",
    "TaoError",
    "Unreachable",
    "__version__",
    "aconnect",
    "automl",
    "build_entrypoint",
    "chain",
    "connect",
    "quickstart",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"prefect_tao.{_WHERE[name]}"), name)
    if name not in FLOWS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    from prefect_tao.flows.plain import plain_call

    return plain_call(name)


def __dir__() -> list[str]:
    return sorted(__all__)
