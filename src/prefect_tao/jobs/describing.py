"""Progress and work in words, the same in logs, artifacts, rendered texts and on the terminal."""

from __future__ import annotations

import json

from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.runner.inside.configs import config_text

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


def last_word(seen: Observation) -> str:
    """How far a job has come, and of one that failed, why."""
    why = seen.reason
    if seen.state is JobState.ERROR and not why and seen.exit_code is not None:
        why = f"exit code {seen.exit_code}"
    far = describe(seen.progress) if seen.progress else ""
    return f"{why}; {far}" if far and why and seen.state.terminal else far or why


def spec_lines(request: JobRequest) -> list[str]:
    """The spec file as comments of a rendered text."""
    if request.specs is None:
        return []
    spec = config_text(request.specs, request.config_format)
    return [f"# {{config_path}} is spec.{request.config_format}:", *(f"#   {line}" for line in spec.split("\n"))]


def command_text(request: JobRequest) -> str:
    """The command, with the arguments that it is given."""
    arguments = "" if request.args is None else " " + json.dumps({**request.args, "flags": request.flags})
    return request.command + arguments
