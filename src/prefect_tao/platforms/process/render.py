"""A job as a folder: its description, its plan, and the environment that it adds. Pure."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from prefect_tao.jobs.describing import command_text, spec_lines
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.base import GRACE_SECONDS, job_variables
from prefect_tao.platforms.process import job_folder
from prefect_tao.runner.entrypoint import entrypoint_for


def render(request: JobRequest, key: str, attempt: int, folder: Path, results_root: Path) -> Rendered:
    """What `folder` will hold. Raises InvalidInput for more than one node."""
    if request.resources.nodes > 1:
        raise InvalidInput(
            f"process runs on this machine only, and {request.resources.nodes} nodes were asked for",
            "use --nodes 1, or a target with several nodes such as slurm or kubernetes",
        )
    asked = request
    # Only here can a command name the interpreter that runs prefect-tao; a container has its own python3.
    request = request.model_copy(update={"command": request.command.replace("{python}", shlex.quote(sys.executable))})
    entrypoint = entrypoint_for(request, grace=GRACE_SECONDS)
    own = {"TAO_WORK_DIR": str(folder), "TAO_STOP_FILE": str(folder / job_folder.STOP)}
    env = job_variables(key, attempt, request.env, str(results_root), **own)
    job = {
        "name": folder.name,
        "key": key,
        "attempt": attempt,
        "digest": asked.digest,
        "labels": request.labels,
        "env": env,
        "gpus": request.resources.gpus,
        "request": asked.model_dump(mode="json"),
    }
    files = {job_folder.JOB: json.dumps(job).encode(), job_folder.PLAN: json.dumps(entrypoint.plan).encode()}
    return Rendered(asked, key, attempt, _text(request, folder.name, env), files)


def _text(request: JobRequest, name: str, env: Mapping[str, str]) -> str:
    lines = [f"# {name}: a process group on this machine"]
    lines += [f"cd {request.workdir}"] if request.workdir else []
    lines += [f"export {key}={value!r}" for key, value in sorted(env.items())]
    lines += [f"# secrets by name: {', '.join(request.secrets)}"] if request.secrets else []
    lines += [f"# GPUs: {request.resources.gpus_shown}, as CUDA_VISIBLE_DEVICES"]
    return "\n".join([*lines, *spec_lines(request), command_text(request), ""])
