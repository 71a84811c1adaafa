"""The flow `run`: one action, or one plain command, on one target.

Prefect builds the form of a deployment from the signature and the docstring, so annotations are not postponed here.
"""

from typing import Annotated, Any, Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime.flow_run import get_parameters as parameters
from pydantic import Field

from prefect_tao.flows.steps import canceled, launch_step, run_step, step_name, with_count
from prefect_tao.jobs.errors import JobCanceled
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import ALL_GPUS, masked
from prefect_tao.preflight.resolve.all_gpus import wants_all
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.command_launch import plain_launch
from prefect_tao.preflight.resolve.parameters import Parameters, ask_from, proofs_from, request_from
from prefect_tao.preflight.resolve.policy import AutoMLPolicy
from prefect_tao.preflight.resolve.resolving import resolve_ask, runs_image
from prefect_tao.tasks import confirmation
from prefect_tao.tasks.cancellation import cancel_jobs
from prefect_tao.tasks.runkeys import known_key
from prefect_tao.tasks.targets.opening import canonical, catalog_of

NAME_LENGTH = 60


def _run_name() -> str:
    """The run's name in the UI: what runs where, cut to what fits into a list."""
    given = parameters()
    what = " ".join(word for word in (given.get("model"), given.get("action")) if word) or str(
        given.get("command") or "nothing"
    )
    return f"{masked(' '.join(what.split()))[:NAME_LENGTH]} on {given.get('target', 'process')}"


@flow(
    name="run",
    flow_run_name=_run_name,
    persist_result=True,
    result_serializer="json",
    on_cancellation=[cancel_jobs],
)
async def run(
    command: str | None = None,
    model: str | None = None,
    action: str | None = None,
    target: str = "process",
    train_root: str | list[str] | None = None,
    eval_root: str | list[str] | None = None,
    inference_root: str | list[str] | None = None,
    calibration_root: str | list[str] | None = None,
    train_wds_root: str | list[str] | None = None,
    data_format: str | None = None,
    specs: dict[str, Any] | None = None,
    overrides: dict[str, Any] | None = None,
    args: dict[str, Any] | None = None,
    inputs: dict[str, Any] | None = None,
    outputs: dict[str, Any] | list[str] | None = None,
    image: str | None = None,
    confirm_image: bool = False,
    gpus: Annotated[int | None, Field(ge=ALL_GPUS)] = None,
    nodes: Annotated[int | None, Field(ge=1)] = None,
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
    automl_policy: AutoMLPolicy = "on",
    mount_proof: dict[str, str] | None = None,
    json_required_fields: dict[str, list[str]] | None = None,
    paths: dict[str, str] | None = None,
    step: str | None = None,
    run_key: str | None = None,
    long_running_enabled: bool = True,
    status_interval_minutes: Annotated[float, Field(gt=0)] = 5.0,
) -> Outcome | JobHandle | State[None]:
    """Launch one job exactly once and, unless told otherwise, stay with it to its end.

    Returns the outcome, or the handle of a detached launch. Raises InvalidInput before anything is launched, JobFailed
    with cause and remedy. When the run is cancelled, the job ends, verified; when it crashes, the job goes on, and a
    retry attaches to it.

    Args:
        command: What to run, as a shell would; leave it out to run an action of a model from the catalog.
        model: The model, by name, alias, arch or Hugging Face id.
        action: The model's action, such as train or export; a train is checked for real progress.
        target: Where: process, or PLATFORM/BLOCK such as slurm/polar.
        train_root: Where the training data is; the catalog maps its files to spec keys.
        eval_root: Where the evaluation data is.
        inference_root: Where the data for inference is.
        calibration_root: Where the calibration data is.
        train_wds_root: Where training data in WebDataset shards is.
        data_format: The form of the data below the roots, where a model knows several.
        specs: The spec, nested; with a command it is written to the file that {config_path} names.
        overrides: Single spec values by dotted key or short word such as num_epochs; dataset keys win over roots.
        args: Arguments of a command, appended as --key value.
        inputs: Declared inputs of a command by spec key, or {path: location}.
        outputs: Declared outputs of a command by spec key, or a list of paths.
        image: Container image; naming one confirms it.
        confirm_image: Accept the catalog's default image.
        gpus: GPUs per node; -1 for all that a node has.
        nodes: Number of nodes.
        cpus: CPU cores per node.
        memory: Memory per node, for example 64G.
        time_limit: Wall time of one attempt, for example 4h.
        shm: Size of /dev/shm, for example 8G.
        env: Environment variables; never secrets.
        secrets: Names of secrets, such as HF_TOKEN; never values.
        config_format: The form of a command's spec file.
        flags: Flags of a command, appended as --flag.
        upload_excludes: Patterns of output files not to keep.
        workdir: Folder in which the command starts.
        automl_policy: on lets AutoML search where a model has it; off runs one plain training.
        mount_proof: By path, how it is mounted into the job, for platforms that cannot be asked.
        json_required_fields: By dataset key, fields that every annotation record must have.
        paths: Further locations to look at before the launch, by a label.
        step: Names this job within the run; needed for two equal jobs in one flow.
        run_key: Attach to the jobs of an earlier run, by its key or by the id of its flow run.
        long_running_enabled: Stay attached; off: launch, report the handle, stop.
        status_interval_minutes: Minutes between status lines.
    """
    given = dict(locals())  # the parameters by name; nothing else is there yet
    run_key = await known_key(run_key)
    resolved = await _resolved(given)
    # Named after what was asked for: how many GPUs a machine has may be another number in the next try.
    proofs, step = proofs_from(given), step_name(resolved, step)
    if wants_all(given):
        resolved = await _resolved(await with_count(given, target, run_key))
    asked = (
        command is None and runs_image(resolved) and not proofs.image_confirmed and await confirmation.is_interactive()
    )
    confirm = confirmation.confirm_image if asked else None
    try:
        if not long_running_enabled:
            handle = await launch_step(resolved, target, step, run_key, proofs, confirm)
            get_run_logger().info("detached: prefect-tao watch %s --target %s", handle.name, target)
            return handle
        minutes = status_interval_minutes
        return (await run_step(resolved, target, step, run_key, proofs, minutes=minutes, confirm=confirm)).outcome
    except JobCanceled as error:
        return canceled(error)


async def _resolved(given: Parameters) -> Resolved:
    if given["command"] is not None:
        return plain_launch(request_from(given), canonical(given["target"]).platform)
    return resolve_ask(ask_from(given), given["automl_policy"], await catalog_of(given["target"]))
