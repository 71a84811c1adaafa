"""The flow `run`: one action, or one plain command, on one target.

Prefect builds the form of a deployment from the signature and the docstring, so annotations are not postponed here.
"""

from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime.flow_run import get_parameters as parameters
from pydantic import Field

from prefect_tao.flows.steps import canceled, launch_step, run_step
from prefect_tao.jobs.errors import JobCanceled
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import JobRequest
from prefect_tao.tasks.cancellation import cancel_jobs

TARGET_PATTERN = r"^[a-z0-9-]+(/[a-z0-9-]+)?$"
NAME_LENGTH = 60


def _run_name() -> str:
    """The run's name in the UI: what runs where, cut to what fits into a list."""
    given = parameters()
    what = " ".join(word for word in (given["model"], given["action"]) if word) or str(given["command"])
    return f"{' '.join(what.split())[:NAME_LENGTH]} on {given['target']}"


@flow(
    name="run",
    flow_run_name=_run_name,
    persist_result=True,
    result_serializer="json",
    on_cancellation=[cancel_jobs],
)
async def run(
    command: str,
    target: Annotated[str, Field(pattern=TARGET_PATTERN)] = "process",
    specs: dict[str, Any] | None = None,
    args: dict[str, Any] | None = None,
    inputs: dict[str, Any] | None = None,
    outputs: dict[str, Any] | list[str] | None = None,
    image: str | None = None,
    gpus: Annotated[int, Field(ge=0)] = 0,
    nodes: Annotated[int, Field(ge=1)] = 1,
    cpus: int | None = None,
    memory: str | None = None,
    time_limit: str | None = None,
    shm: str | None = None,
    env: dict[str, str] | None = None,
    secrets: list[str] | None = None,
    config_format: Literal["yaml", "toml", "json"] = "yaml",
    flags: list[str] | None = None,
    upload_excludes: list[str] | None = None,
    workdir: str | None = None,
    model: str | None = None,
    action: str | None = None,
    step: str = "run",
    run_key: str | None = None,
    long_running_enabled: bool = True,
    status_interval_minutes: Annotated[float, Field(gt=0)] = 5.0,
) -> Outcome | JobHandle | State[None]:
    """Launch one job exactly once and, unless told otherwise, stay with it to its end.

    Returns the outcome, or the handle of a detached launch. Raises InvalidInput before anything is launched, JobFailed
    with cause and remedy. When the run is cancelled, the job ends, verified; when it crashes, the job goes on, and a
    retry attaches to it.

    Args:
        command: What to run, as a shell would; {config_path} names the spec file.
        target: Where: process, or PLATFORM/BLOCK such as slurm/polar.
        specs: The spec, nested; written to the file that {config_path} names.
        args: Arguments, appended as --key value.
        inputs: Declared inputs by spec key, or, for a plain command, {path: location}.
        outputs: Declared outputs by spec key, or, for a plain command, a list of paths.
        image: Container image, where the target runs containers.
        gpus: GPUs per node.
        nodes: Number of nodes.
        cpus: CPU cores per node.
        memory: Memory per node, for example 64G.
        time_limit: Wall time of one attempt, for example 4h.
        shm: Size of /dev/shm, for example 8G.
        env: Environment variables; never secrets.
        secrets: Names of secrets, such as HF_TOKEN; never values.
        config_format: The form of the spec file.
        flags: Flags, appended as --flag.
        upload_excludes: Patterns of output files not to keep.
        workdir: Folder in which the command starts.
        model: Model name, for labels.
        action: Action name; a train is checked for real progress.
        step: Names this job within the run.
        run_key: Attach to the jobs of an earlier run with the same key.
        long_running_enabled: Stay attached; off: launch, report the handle, stop.
        status_interval_minutes: Minutes between status lines.
    """
    request = JobRequest.build(
        command=command,
        image=image,
        specs=specs,
        args=args,
        flags=flags or (),
        inputs=inputs or {},
        outputs=outputs or (),
        config_format=config_format,
        upload_excludes=upload_excludes or (),
        workdir=workdir,
        resources={
            "gpus": gpus,
            "nodes": nodes,
            "cpus": cpus,
            "memory": memory,
            "time_limit": time_limit,
            "shm": shm,
        },
        env=env or {},
        secrets=secrets or (),
        model=model,
        action=action,
    )
    if not long_running_enabled:
        handle = await launch_step(request, target, step, run_key)
        get_run_logger().info("detached: prefect-tao watch %s --target %s", handle.name, target)
        return handle
    try:
        return (await run_step(request, target, step, run_key, minutes=status_interval_minutes)).outcome
    except JobCanceled as error:
        return canceled(error)
