"""A job as files: `job.sh`, for people to read, `run.sh` with the runner and its plan, and `job.json`. Pure."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from prefect_tao.jobs.describing import command_text, spec_lines
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.base import GRACE_SECONDS, job_variables
from prefect_tao.runner.entrypoint import entrypoint_for

JOB, SCRIPT, RUN, CLAIM, STOP, LOG, END = "job.json", "job.sh", "run.sh", "claim", "stop", "log.txt", "end.json"
SECRETS = "secrets-"
# The first process to link its identity to this name has the job; any other leaves and takes its secrets with it.
TAKE = f"""echo "$$.$(cut -d' ' -f22 /proc/$$/stat).$SHELF_HERE" > ".claim-$$"
ln ".claim-$$" {CLAIM} 2>/dev/null || {{ rm -f ".claim-$$" "$TAO_SECRETS_FILE"; exit 0; }}
rm ".claim-$$"
export TAO_NATIVE_ID="$(cat {CLAIM})"
"""


def render(request: JobRequest, key: str, attempt: int, folder: Path, results: Path) -> Rendered:
    """What `folder` will hold. Raises InvalidInput for more than this machine has."""
    if request.resources.nodes > 1 or request.resources.gpus > 1:
        raise InvalidInput("the shelf has one machine with one GPU", "use --nodes 1 and --gpus 0 or 1")
    own = {"TAO_WORK_DIR": str(folder), "TAO_STOP_FILE": str(folder / STOP), "TMPDIR": str(folder)}
    env = job_variables(key, attempt, request.env, str(results), **own)
    text = _script(request, folder, env)
    command = request.command.replace("{python}", shlex.quote(sys.executable))
    run = entrypoint_for(request.model_copy(update={"command": command}), grace=GRACE_SECONDS).script()
    job = {"digest": request.digest, "labels": request.labels, "request": request.model_dump(mode="json")}
    files = {SCRIPT: text.encode(), RUN: run.encode(), JOB: json.dumps(job).encode()}
    return Rendered(request, key, attempt, text, files)


def _script(request: JobRequest, folder: Path, env: dict[str, str]) -> str:
    turn = f"flock --no-fork {shlex.quote(str(folder.parent.parent / 'gpu'))} " if request.resources.gpus else ""
    about = [f"# {folder.name}, on a shelf of this machine", f"# secrets by name: {' '.join(request.secrets)}"]
    about += [f"# {line}" for line in command_text(request).splitlines()]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(env.items())]
    start = [f"cd {shlex.quote(str(folder))} || exit", TAKE + f"exec {turn}sh {RUN}", ""]
    return "\n".join([*about, *spec_lines(request), *exports, *start])
