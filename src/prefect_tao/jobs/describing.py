"""Progress in words, the same in logs, artifacts and on the terminal."""

from __future__ import annotations

from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.jobs.statusfile import Progress

MAX_METRICS = 4


def describe(progress: Progress) -> str:
    """Progress in one line: epoch 3/12, val_loss 0.31, about 2 min left."""
    parts = []
    if progress.epoch is not None:
        parts.append(f"epoch {progress.epoch}" + (f"/{progress.max_epoch}" if progress.max_epoch else ""))
    elif progress.step is not None:
        parts.append(f"step {progress.step}" + (f"/{progress.max_step}" if progress.max_step else ""))
    parts += [f"{name} {value:.4g}" for name, value in sorted(progress.metrics.items())[:MAX_METRICS]]
    if progress.eta_seconds:
        parts.append(f"about {format_seconds(progress.eta_seconds)} left")
    return ", ".join(parts)
