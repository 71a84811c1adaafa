"""The flow `run`: one action, or one plain command, on one target.

Annotations are evaluated here, not postponed: Prefect builds the form of a deployment from them.
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
    command: Annotated[str, Field(description="What to run, as a shell would; {config_path} names the spec file.")],
    target: Annotated[
        str,
        Field(description="Where: process, or <platform>/<block name> such as slurm/polar.", pattern=TARGET_PATTERN),
    ] = "process",
    specs: Annotated[dict[str, Any] | None, Field(description="The spec, nested; written to {config_path}.")] = None,
    args: Annotated[dict[str, Any] | None, Field(description="Arguments, appended as --key value.")] = None,
    inputs: Annotated[
        dict[str, Any] | None, Field(description="Declared inputs by spec key, or {path: location}.")
    ] = None,
    outputs: Annotated[
        dict[str, Any] | list[str] | None, Field(description="Declared outputs by spec key, or paths.")
    ] = None,
    image: Annotated[str | None, Field(description="Container image, where the target runs containers.")] = None,
    gpus: Annotated[int, Field(ge=0, description="GPUs per node.")] = 0,
    nodes: Annotated[int, Field(ge=1, description="Number of nodes.")] = 1,
    cpus: Annotated[int | None, Field(description="CPU cores per node.")] = None,
    memory: Annotated[str | None, Field(description="Memory per node, for example 64G.")] = None,
    time_limit: Annotated[str | None, Field(description="Wall time of one attempt, for example 4h.")] = None,
    shm: Annotated[str | None, Field(description="Size of /dev/shm, for example 8G.")] = None,
    env: Annotated[dict[str, str] | None, Field(description="Environment variables; never secrets.")] = None,
    secrets: Annotated[list[str] | None, Field(description="Names of secrets, such as HF_TOKEN; never values.")] = None,
    config_format: Literal["yaml", "toml", "json"] = "yaml",
    flags: Annotated[list[str] | None, Field(description="Flags, appended as --flag.")] = None,
    upload_excludes: Annotated[list[str] | None, Field(description="Patterns of output files not to keep.")] = None,
    workdir: Annotated[str | None, Field(description="Folder in which the command starts.")] = None,
    model: Annotated[str | None, Field(description="Model name, for labels.")] = None,
    action: Annotated[str | None, Field(description="Action name; a train is checked for real progress.")] = None,
    step: Annotated[str, Field(description="Names this job within the run.")] = "run",
    run_key: Annotated[str | None, Field(description="Attach to the jobs of an earlier run with the same key.")] = None,
    long_running_enabled: Annotated[
        bool, Field(description="Stay attached; off: launch, report the handle, stop.")
    ] = True,
    status_interval_minutes: Annotated[float, Field(gt=0, description="Minutes between status lines.")] = 5.0,
) -> Outcome | JobHandle | State[None]:
    """Launch one job exactly once and, unless told otherwise, stay with it to its end.

    Returns the outcome, or the handle of a detached launch. Raises InvalidInput before anything is launched, JobFailed
    with cause and remedy. When the run is cancelled, the job ends, verified; when it crashes, the job goes on, and a
    retry attaches to it.
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
        return await run_step(request, target, step, run_key, status_interval_minutes)
    except JobCanceled as error:
        return canceled(error)
