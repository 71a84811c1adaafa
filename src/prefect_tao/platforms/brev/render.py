"""A job as a container on an instance: what the Docker driver sends, and the machine that it is sent to. Pure."""

from __future__ import annotations

from dataclasses import replace

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.brev.instances import name_of
from prefect_tao.platforms.brev.settings import BrevSettings
from prefect_tao.platforms.docker import render as containers
from prefect_tao.platforms.docker.settings import DockerSettings
from prefect_tao.platforms.fields import RemoteFields
from prefect_tao.platforms.fields_of_containers import ContainerFields
from prefect_tao.runner.inside.schemes import bucket_name

_SAME = (*RemoteFields.model_fields, *ContainerFields.model_fields, "gpus")


# Where jobs write on an instance that is made for them, when there is no bucket: every login may write there.
ON_INSTANCE = "/var/tmp/prefect-tao"  # noqa: S108 - the machine is the job's alone


def check(settings: BrevSettings) -> None:
    """Raises InvalidInput where results would end with the instance that is made for a job."""
    if not settings.instance and not settings.s3_bucket_name and not settings.results_root:
        raise InvalidInput(
            "brev is not set up: results would end with the instance that is made for a job",
            "keep them in a bucket (S3_BUCKET_NAME), name a folder of this machine that they are copied to "
            "(TAO_RESULTS_ROOT), or name an instance of yours in the block",
        )
    if is_carried(settings) and not str(settings.results_root).startswith("/"):
        raise InvalidInput(
            f"{settings.results_root} is not an absolute path", "give the whole path of a folder of this machine"
        )


def is_carried(settings: BrevSettings) -> bool:
    """Whether results are copied from a job's own instance to this machine before it is deleted."""
    return not settings.instance and not settings.s3_bucket_name


def results_here(key: str, settings: BrevSettings) -> str:
    """Where the results of a key are, for people and handles."""
    if is_carried(settings):
        return f"{str(settings.results_root).rstrip('/')}/{key}"
    return containers.results_of(key, docker_settings(settings, "none", None))


def docker_settings(settings: BrevSettings, instance: str, ssh_folder: str | None) -> DockerSettings:
    """How the Docker driver reaches the engine of an instance."""
    same = {name: getattr(settings, name) for name in _SAME}
    same["s3_bucket_name"] = bucket_name(settings.s3_bucket_name or "") or None
    if not settings.instance:  # its disk ends with it
        same["results_root"] = ON_INSTANCE if is_carried(settings) else None
    return DockerSettings(host=f"ssh://{instance}", ssh_path=ssh_folder, **same)


def render(request: JobRequest, key: str, attempt: int, settings: BrevSettings, target: str) -> Rendered:
    """The container, and the instance that it runs on. Raises InvalidInput."""
    instance = settings.instance or name_of(JobName(key, attempt), settings)
    made = containers.render(request, key, attempt, docker_settings(settings, instance, None), target)
    first = f"# on the instance {instance}, " + ("which is yours" if settings.instance else _made_of(settings))
    return replace(made, text=f"{first}\n{made.text}")


def _made_of(settings: BrevSettings) -> str:
    what = ", ".join(settings.instance_types) or f"the cheapest type{_with(settings)} that has the GPUs"
    most = f", for at most ${settings.max_price_per_hour:g} an hour" if settings.max_price_per_hour else ""
    return f"made for this job of {what}{most}, and deleted after it"


def _with(settings: BrevSettings) -> str:
    return f" with {settings.gpu_name}" if settings.gpu_name else ""
