"""What `create_job` is given, in the words of the TAO SDK, as the parameters of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.launch.parameters.declared import StepParameters
from prefect_tao.launch.parameters.derived import checked, parameters
from prefect_tao.runner.entrypoint import Entrypoint, EntrypointCommand

OURS = {"gpu_count": "gpus", "env_vars": "env", "num_nodes": "nodes", "shm_size": "shm"}
# What belongs to the target and not to one job.
SAVED = ("partition", "account", "mounts", "namespace", "node_selector", "tolerations", "resource_shape")
ELSEWHERE = {
    "target": "name it once, where you connect",
    "run_key": "give it as key",
    "long_running_enabled": "create_job never waits; prefect_tao.run does",
}
PLANNED = ("command", "specs", "args", "flags", "inputs", "outputs", "config_format", "upload_excludes", "workdir")


def launch_parameters(command: str | Entrypoint | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the launch. Raises InvalidInput with the nearest name for one that there is not."""
    named = {OURS.get(name, name): value for name, value in given.items() if value is not None}
    if isinstance(command, EntrypointCommand):
        command = command.entrypoint
    if isinstance(command, Entrypoint):
        if twice := [name for name in PLANNED if name in named]:
            raise InvalidInput(
                f"{', '.join(twice)} was given to build_entrypoint and to create_job", "give it to build_entrypoint"
            )
        named |= _planned(command)
    elif command is not None:
        named["command"] = command
    for name in named:
        if name not in parameters(StepParameters) or name == "target":
            raise InvalidInput(f"create_job has no parameter {name!r}", _remedy(name))
    return checked(StepParameters, named)


def _planned(entrypoint: Entrypoint) -> dict[str, Any]:
    """What an entrypoint was built from, so that the gates see its data and its job is built the same way."""
    plan = entrypoint.plan
    unused = {"config": "args", "args": "specs", "passthrough": ""}[entrypoint.mode]
    kept = {name: plan[name] for name in PLANNED if plan[name] and name != unused}
    if entrypoint.mode != "passthrough":
        key = "specs" if entrypoint.mode == "config" else "args"
        kept[key] = plan[key]
    return {**kept, **({"time_limit": str(plan["time_limit"])} if plan["time_limit"] else {})}


def _remedy(name: str) -> str:
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    if name in SAVED:
        return f"{name} belongs to the target: save it in its block with prefect-tao setup, or in the Prefect UI"
    names: Sequence[str] = [*parameters(StepParameters), *OURS]
    near = get_close_matches(name, names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + "help(prefect_tao.run) lists them all"
