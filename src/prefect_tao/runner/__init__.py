"""What runs beside the user's command inside a container, and the builder that embeds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect_tao.runner.entrypoint import build_entrypoint

__all__ = ["build_entrypoint"]


def __getattr__(name: str) -> Any:
    # Late, because the nouns of jobs use what lies below this package.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from prefect_tao.runner.entrypoint import build_entrypoint

    return build_entrypoint
