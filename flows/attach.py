"""The flow `watch`: attach to a job, wherever it was launched, and stay with it to its end.

Prefect builds the form of a deployment from the signature and the docstring, so annotations are not postponed here.
"""

from typing import Annotated, Any

from pydantic import Field

from prefect_tao.flows.launch_flow import launch_flow
from prefect_tao.flows.steps import step_label
from prefect_tao.jobs.byname import find_by_name
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.tasks import watch_job
from prefect_tao.tasks.targets.opening import open_target


@launch_flow("watch", "watch {job} on {target}")
async def watch(
    job: Annotated[str, Field(pattern=r"^tao-(job-)?[0-9a-f]{16}-[0-9]+$")],
    target: str = "process",
    status_interval_minutes: Annotated[float, Field(gt=0)] = 5.0,
) -> Outcome:
    """Attach to a job by its name, from any machine that can reach its target, and wait for its end.

    Further attempts are started as the run that launched it would. Cancelling this run ends the job.

    Args:
        job: The job's name, such as tao-0123456789abcdef-1; `prefect-tao jobs` lists them.
        target: Where the job is: process, or PLATFORM/BLOCK such as slurm/polar.
        status_interval_minutes: Minutes between status lines.
    """
    platform = (await open_target(target)).platform
    handle = await find_by_name(platform, job)
    request = await platform.request_of(handle)
    if request is None:
        raise InvalidInput(
            f"{target} does not say what {job} was asked to do", f"prefect-tao watch {job} --target {target} shows it"
        )
    label = step_label(request, target)
    # Prefect's types describe the call from sync code.
    state: Any = await watch_job(request, handle, label, status_interval_minutes, return_state=True)  # type: ignore[misc]
    outcome: Outcome = await state.aresult()
    return outcome
