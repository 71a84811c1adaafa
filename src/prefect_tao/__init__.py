"""Training jobs as Prefect tasks: checked first, launched exactly once, watched politely, cancelled for real.

`from prefect_tao import run` is a plain call for scripts; `prefect_tao.flows` holds the same as async flows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
