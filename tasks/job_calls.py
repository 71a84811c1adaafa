"""The core verbs as tasks, for people's own flows: each call is a node in the run graph, with its own state and log.

`create_job` launches once per flow run, step and target; a retried flow attaches to its jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from prefect_tao.launch.job_words import launch_parameters
from prefect_tao.launch.verbs import Job, JobStatus, Verbs
from prefect_tao.runner.entrypoint import Entrypoint
from prefect_tao.tasks.cancellation import canceled_run, remember_target, root_id
from prefect_tao.tasks.targets.opening import canonical, open_target, saved_for
from prefect_tao.tasks.targets.secret_values import load_secrets

AnyJob = Job | str


async def verbs_of(target: str, why_not: Callable[[], Any] | None = None) -> Verbs:
    """The verbs on a target, as its block says, in this event loop. Raises InvalidInput, MissingDependency."""
    opened = await open_target(target)

    def place() -> AbstractAsyncContextManager[None]:
        return opened.room.place(why_not) if opened.room.is_limited else nullcontext()

    return Verbs(canonical(target), opened, await saved_for(target), load_secrets, place)


@task(cache_policy=NO_CACHE, task_run_name="create job on {target}")
async def create_job(
    image: str | None = None,
    command: str | Entrypoint | None = None,
    gpu_count: int | None = None,
    env_vars: Mapping[str, str] | None = None,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | Sequence[str] | None = None,
    *,
    target: str = "process",
    key: str | None = None,
    step: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> Job:
    """Launch a job exactly once in this flow run, or attach to it; two equal jobs of a flow differ by `step`.

    `key` takes the place of the flow run, so that another run attaches too. `more` holds further parameters of
    `prefect_tao.run`, such as nodes or time_limit. Raises InvalidInput, SubmitFailed, Unreachable.
    """
    given = {"image": image, "gpu_count": gpu_count, "env_vars": env_vars, "inputs": inputs, "outputs": outputs}
    await remember_target(target)
    verbs = await verbs_of(target, canceled_run(root_id()))
    parameters = launch_parameters(command, {**given, **(more or {})})
    job = await verbs.create_job(parameters, key or root_id(), step, owner=root_id())
    for finding in job.findings:
        get_run_logger().warning("%s", finding.message)
    get_run_logger().info("%s %s on %s", "attached to" if job.attached else "launched", job.id, target)
    return job


@task(cache_policy=NO_CACHE)
async def get_job_status(job: AnyJob, target: str = "process") -> JobStatus:
    """Where a job stands. A job that is given by its id is looked for on `target`; so below."""
    return await (await _verbs(job, target)).get_job_status(_id(job))


@task(cache_policy=NO_CACHE)
async def get_job_logs(job: AnyJob, tail: int | None = None, target: str = "process") -> str:
    """A job's output, or its last lines, without secret values."""
    return await (await _verbs(job, target)).get_job_logs(_id(job), tail)


@task(cache_policy=NO_CACHE)
async def cancel_job(job: AnyJob, timeout: float = 60.0, target: str = "process") -> bool:
    """End a job; true when its platform says that it is over. Raises CancelUnconfirmed."""
    return await (await _verbs(job, target)).cancel_job(_id(job), timeout)


@task(cache_policy=NO_CACHE)
async def get_failure_analysis(job: AnyJob, target: str = "process") -> dict[str, Any] | None:
    """Why a job failed, as a map; None for one that is not over, or ended well."""
    verdict = await (await _verbs(job, target)).get_failure_analysis(_id(job))
    return verdict.as_failure_analysis() if verdict else None


@task(cache_policy=NO_CACHE)
async def get_job_results_dir(job: AnyJob, target: str = "process") -> str:
    """Where a job keeps its results."""
    return (await (await _verbs(job, target)).handle(_id(job))).results


@task(cache_policy=NO_CACHE)
async def get_job_replicas(job: AnyJob, target: str = "process") -> list[dict[str, Any]]:
    """The parts of a job, and what keeps each from running."""
    return await (await _verbs(job, target)).get_job_replicas(_id(job))


@task(cache_policy=NO_CACHE)
async def list_jobs(target: str = "process", status: str | None = None, limit: int = 20) -> list[Job]:
    """Our jobs on a target, newest first."""
    return await (await verbs_of(target)).list_jobs(status, limit)


@task(cache_policy=NO_CACHE)
async def check_path(remote_path: str, target: str = "process") -> bool:
    """Whether a path or location is there, as jobs on the target see it."""
    return await (await verbs_of(target)).check_path(remote_path)


@task(cache_policy=NO_CACHE)
async def list_path(remote_path: str, target: str = "process") -> list[str]:
    """What is in a folder or location, one level, as whole paths."""
    return await (await verbs_of(target)).list_path(remote_path)


@task(cache_policy=NO_CACHE)
async def list_instances(target: str) -> list[dict[str, Any]]:
    """The machines that are rented on a target. Raises InvalidInput where it has none of its own."""
    return await (await verbs_of(target)).list_instances()


@task(cache_policy=NO_CACHE)
async def delete_instance(instance_id: str, target: str) -> bool:
    """Give a machine back; true when it is gone. Raises InvalidInput where the target has none of its own."""
    return await (await verbs_of(target)).delete_instance(instance_id)


async def _verbs(job: AnyJob, target: str) -> Verbs:
    return await verbs_of(job.target if isinstance(job, Job) else target)


def _id(job: AnyJob) -> str:
    return job.id if isinstance(job, Job) else job
