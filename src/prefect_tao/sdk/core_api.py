"""A target as plain calls under the names of the TAO SDK; the async twin of each is its name after an `a`."""

from __future__ import annotations

import logging
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.target import Target
from prefect_tao.launch.job_secrets import surrounding_secrets
from prefect_tao.launch.job_words import launch_parameters
from prefect_tao.launch.session import open_session
from prefect_tao.launch.verbs import ONLY_STEP, Job, JobStatus, Verbs
from prefect_tao.preflight.resolve.resolving import named_platform, open_catalog
from prefect_tao.runner.entrypoint import Entrypoint
from prefect_tao.sdk.shared_loop import awaited, plain, twin, wait_for

logger = logging.getLogger("prefect_tao.sdk")
AnyJob = Job | str


def connect(target: str = "process") -> Sdk:
    """Jobs on one target, as plain calls for scripts and notebooks.

    `target` is `process`, `docker` or another platform as the environment sets it up, or PLATFORM/BLOCK for a saved
    block such as `slurm/polar`. Raises InvalidInput when there is no such platform or block, MissingDependency.

    Example:
        >>> from prefect_tao import connect
        >>> sdk = connect("process")
        >>> job = sdk.create_job(command="echo hello", key="my-first-job")
        >>> sdk.get_job_status(job.id).status
    """
    return Sdk(wait_for(open_verbs(target)))


async def aconnect(target: str = "process") -> Sdk:
    """As `connect`, for async code.

    Example:
        >>> sdk = await aconnect("slurm/polar")
        >>> job = await sdk.acreate_job(image="team/trainer:1", command="python train.py", gpu_count=8)
    """
    return Sdk(await awaited(open_verbs(target)))


async def open_verbs(target: str) -> Verbs:
    """The verbs on a target, in this event loop; Prefect is needed only for a saved block. Raises as `connect` does."""
    parsed = Target.parse(target)
    parsed = parsed._replace(platform=named_platform(open_catalog(), parsed.platform))
    if parsed.block is None:
        return Verbs(parsed, open_session(parsed), find_secrets=_found)
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    from prefect_tao.tasks.job_calls import verbs_of
    from prefect_tao.tasks.targets.servers import use_server

    use_server()
    return await verbs_of(target)


async def _found(names: Iterable[str], supplied: Mapping[str, str]) -> dict[str, str]:
    """What the environment has, and Prefect's Secret blocks where a server runs; none is started for them."""
    found = await surrounding_secrets(wanted := list(names), supplied)
    lacking = [name for name in wanted if name not in found]
    if not lacking:
        return found
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    from prefect_tao.tasks.targets.secret_values import from_running_server

    return {**found, **await from_running_server(lacking)}


class Sdk:
    """Jobs on one target. Every call has an async twin: `acreate_job` for `create_job`, and so on.

    Jobs are named by their id, or given as the `Job` that `create_job` returned; any process on any machine that
    reaches the target may ask. A job goes on when this process ends.
    """

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs

    @property
    def target(self) -> str:
        """What was connected to."""
        return str(self._verbs.target)

    def __repr__(self) -> str:
        return f"<prefect_tao connection to {self.target}>"

    def __enter__(self) -> Sdk:
        return self

    def __exit__(self, *_: types.TracebackType | object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections; jobs go on."""
        wait_for(self._verbs.platform.close())

    # -- create --------------------------------------------------------------------------------------------------------

    @plain
    async def create_job(
        self,
        image: str | None = None,
        command: str | Entrypoint | None = None,
        gpu_count: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | Sequence[str] | None = None,
        *,
        key: str | None = None,
        **more: Any,
    ) -> Job:
        """Check a job at all gates and launch it exactly once; return as soon as its platform has it.

        `key` makes a repeated call attach to the job of that key, from any process, as `prefect-tao run --run-key`
        does; one that failed is tried again. Without it each call is a new job. `gpu_count` is per node; left out, it
        is what the target gives by default. `command` may be what `build_entrypoint` returned, or its ["command"].
        `more` is any parameter of `prefect_tao.run`: nodes, cpus, memory, time_limit, specs, args, secrets, or model
        and action in place of a command.

        Raises InvalidInput with all that stands in the way, before anything is launched; SubmitFailed, Unreachable.

        Example:
            >>> job = sdk.create_job(
            ...     image="team/trainer:1",
            ...     command="python train.py --data /data",
            ...     gpu_count=1,
            ...     inputs={"/data": "s3://bucket/train"},
            ...     outputs=["/results"],
            ...     key="trial-7",
            ... )
            >>> print(job.id, job.results_dir)
        """
        if key is not None and not (isinstance(key, str) and key.strip()):
            raise InvalidInput(f"{key!r} is no key of a job", "give any text that names this launch, or no key")
        given = {"image": image, "gpu_count": gpu_count, "env_vars": env_vars, "inputs": inputs, "outputs": outputs}
        parameters = launch_parameters(command, {**given, **more})
        return await self._verbs.create_job(parameters, key or str(uuid4()), ONLY_STEP, is_new=key is None)

    acreate_job = twin(create_job)

    # -- look ----------------------------------------------------------------------------------------------------------

    @plain
    async def get_job_status(self, job_id: AnyJob) -> JobStatus:
        """Where a job stands: `status` is Pending, Running, Complete, Error or Canceled, `message` the detail.

        A platform that does not answer makes it Unreachable, which decides nothing. Raises InvalidInput when the target
        knows no such job.

        Example:
            >>> while sdk.get_job_status(job.id).status not in ("Complete", "Error", "Canceled"):
            ...     time.sleep(60)
        """
        return await self._verbs.get_job_status(_id(job_id))

    aget_job_status = twin(get_job_status)

    @plain
    async def get_job_logs(self, job_id: AnyJob, tail: int | None = None) -> str:
        """A job's output, or its last `tail` lines, without secret values. Raises InvalidInput, Unreachable.

        Example:
            >>> print(sdk.get_job_logs(job.id, tail=200))
        """
        return await self._verbs.get_job_logs(_id(job_id), tail)

    aget_job_logs = twin(get_job_logs)

    @plain
    async def get_failure_analysis(self, job_id: AnyJob) -> dict[str, Any] | None:
        """Why a job failed, as a map; None for one that is not over, or ended well. Raises InvalidInput, Unreachable.

        `err_class` is ERR_PROGRAM, ERR_INFRA and so on, `suggestion` says what to do, `job_failure_by_node_event` holds
        what happened to its machines; `cause` and `category` say what the verdict is.

        Example:
            >>> if analysis := sdk.get_failure_analysis(job.id):
            ...     print(analysis["err_class"], analysis["suggestion"])
        """
        verdict = await self._verbs.get_failure_analysis(_id(job_id))
        return verdict.as_failure_analysis() if verdict else None

    aget_failure_analysis = twin(get_failure_analysis)

    @plain
    async def get_job_results_dir(self, job_id: AnyJob) -> str:
        """Where a job keeps its results: a folder, or a location in storage. Raises InvalidInput, Unreachable.

        Example:
            >>> sdk.list_path(sdk.get_job_results_dir(job.id))
        """
        return (await self._verbs.handle(_id(job_id))).results

    aget_job_results_dir = twin(get_job_results_dir)

    @plain
    async def get_job_replicas(self, job_id: AnyJob) -> list[dict[str, Any]]:
        """The parts of a job: containers, pods or tasks. Raises InvalidInput, Unreachable.

        Example:
            >>> for replica in sdk.get_job_replicas(job.id):
            ...     if issue := replica["status"].get("readiness_issue"):
            ...         print(issue["reason"], issue["message"])
        """
        return await self._verbs.get_job_replicas(_id(job_id))

    aget_job_replicas = twin(get_job_replicas)

    @plain
    async def list_jobs(self, status: str | None = None, limit: int = 20) -> list[Job]:
        """Our jobs on the target, newest first, all or those in one state. Raises InvalidInput, Unreachable.

        Example:
            >>> for job in sdk.list_jobs("Running"):
            ...     print(job.id, job.labels.get("step"))
        """
        return await self._verbs.list_jobs(status, limit)

    alist_jobs = twin(list_jobs)

    # -- end -----------------------------------------------------------------------------------------------------------

    @plain
    async def cancel_job(self, job_id: AnyJob, timeout: float = 60.0) -> bool:
        """End a job; True when its platform says that it is over, also of one that was over before.

        Raises CancelUnconfirmed when the platform does not say so within `timeout` seconds, InvalidInput, Unreachable.

        Example:
            >>> sdk.cancel_job(job.id)
            True
        """
        return await self._verbs.cancel_job(_id(job_id), timeout)

    acancel_job = twin(cancel_job)

    # -- rented machines ----------------------------------------------------------------------------------------------

    @plain
    async def list_instances(self) -> list[dict[str, Any]]:
        """The machines that are rented on the target. Raises InvalidInput where it has none of its own.

        Example:
            >>> for instance in sdk.list_instances():
            ...     print(instance["id"], instance["status"])
        """
        return await self._verbs.list_instances()

    alist_instances = twin(list_instances)

    @plain
    async def delete_instance(self, instance_id: str) -> bool:
        """Give a machine back; True when it is gone. Raises InvalidInput where the target has none of its own.

        Example:
            >>> sdk.delete_instance("7f3k2")
            True
        """
        return await self._verbs.delete_instance(instance_id)

    adelete_instance = twin(delete_instance)

    # -- paths ---------------------------------------------------------------------------------------------------------

    @plain
    async def check_path(self, remote_path: str) -> bool:
        """Whether a path or location is there, as jobs on the target see it. Raises InvalidInput, Unreachable.

        Example:
            >>> assert sdk.check_path("s3://my-bucket/coco/")
        """
        return await self._verbs.check_path(remote_path)

    acheck_path = twin(check_path)

    @plain
    async def list_path(self, remote_path: str) -> list[str]:
        """What is in a folder or location, one level, as whole paths; folders end with a slash.

        Raises InvalidInput for one that is not there, Unreachable.

        Example:
            >>> files = sdk.list_path("s3://my-bucket/coco/train/")
        """
        return await self._verbs.list_path(remote_path)

    alist_path = twin(list_path)


def _id(job: AnyJob) -> str:
    return job.id if isinstance(job, Job) else job
