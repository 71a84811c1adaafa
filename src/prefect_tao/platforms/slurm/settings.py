"""The settings of the slurm platform."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from prefect_tao.platforms.fields import FROZEN, InShape, RemoteFields, Variable, Word, Words


def _split_options(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    first, *others = value.replace(",-", " -").split(" -")
    return [first.strip(" ,"), *(f"-{other.strip(' ,')}" for other in others)]


# Options of sbatch, which may hold commas and spaces: one text is parted only where the next option begins.
Options = Annotated[
    list[Annotated[str, StringConstraints(pattern=r"^--?[A-Za-z][^\n]*$")]], BeforeValidator(_split_options)
]


class SlurmFields(RemoteFields):
    """How to log in, where results go, and what a job gets when it asks for nothing."""

    user: Annotated[Word, Variable("SLURM_USER")] = Field(
        title="User", description="The name you log in with on the login nodes."
    )
    hostnames: Annotated[Words, Variable("SLURM_HOSTNAME")] = Field(
        min_length=1, title="Login nodes", description="Names, or aliases of ~/.ssh/config; tried in this order."
    )
    partition: Annotated[Word, Variable("SLURM_PARTITION")] = Field(
        title="Partition", description="One or several with commas; sinfo lists them."
    )
    account: Annotated[Word | None, Variable("SLURM_ACCOUNT")] = Field(
        None, title="Account", description="Where the site wants --account."
    )
    qos: Word | None = Field(None, title="QOS", description="Where the site wants --qos.")
    reservation: Word | None = Field(None, title="Reservation", description="Nodes that are set aside for you.")
    constraint: Annotated[str, StringConstraints(pattern=r"^[^\s-][^\n]*$")] | None = Field(
        None, title="Constraint", description="Features that nodes must have, such as a100."
    )
    extra_flags: Options = Field(
        default_factory=list,
        title="Further sbatch options",
        description="As --name=value; not those that have a field or that every job gets.",
    )
    ssh_key_path: Annotated[str | None, Variable("SSH_KEY_PATH")] = Field(
        None,
        title="SSH key file",
        description="A private key on the machine that runs the flow; else the agent and ~/.ssh/config say which.",
    )
    known_hosts: Annotated[str | None, Variable("SLURM_KNOWN_HOSTS")] = Field(
        None,
        title="Known hosts file",
        description="With the login nodes' host keys; ~/.ssh/known_hosts when left out. An unknown key is refused.",
    )
    ssh_port: Annotated[int | None, Variable("SLURM_SSH_PORT")] = Field(
        None, ge=1, le=65535, title="SSH port", description="As ~/.ssh/config says when left out, else 22."
    )
    results_root: Annotated[str | None, Variable("SLURM_BASE_RESULTS_DIR", ("TAO_RESULTS_ROOT",))] = Field(
        None,
        title="Base folder",
        description="A folder of the cluster's shared file system that is yours: jobs, results and images go there.",
    )
    container_mounts: Annotated[Words, Variable("SLURM_CONTAINER_MOUNTS")] = Field(
        default_factory=lambda: ["/lustre"], title="Container mounts", description="As /path or /path:/inside[:flags]."
    )
    nodes: Annotated[int, InShape("num_nodes")] = Field(
        1, ge=1, title="Nodes", description="Of a job that asks for none."
    )
    gpus: Annotated[int, InShape("num_gpus")] = Field(
        4, ge=0, title="GPUs", description="Per node, of a job that asks for none."
    )
    max_gpus_per_node: Annotated[int, InShape("max_num_gpus_per_node")] = Field(
        8, ge=0, title="Most GPUs per node", description="What a node of the partition has."
    )
    cpus: Annotated[int, InShape("cpus_per_task")] = Field(
        16, ge=1, title="CPUs", description="Per task, of a job that asks for none."
    )
    time_hours: Annotated[float, Variable("SLURM_TIME_HOURS", is_credential=False), InShape("time_hours")] = Field(
        4, gt=0, title="Hours", description="The time limit of a job that asks for none."
    )
    timeout_hours: Annotated[float, Variable("SLURM_TIMEOUT_HOURS", is_credential=False)] = Field(
        3.8,
        gt=0,
        title="Hours for the command",
        description="After these the command is asked to end, so that its last checkpoint is kept.",
    )
    max_time_hours: Annotated[float, InShape("max_time_hours")] = Field(
        4, gt=0, title="Most hours", description="What the partition allows."
    )
    use_requeue: Annotated[bool, Variable("SLURM_USE_REQUEUE", is_credential=False)] = Field(
        True, title="Requeue", description="Let SLURM start preempted jobs again."
    )
    use_sqsh: bool = Field(
        True,
        title="Convert images",
        description="Make a squashfs file of each image once, instead of pulling it per job.",
    )
    force_reconvert_latest: bool = Field(
        False, title="Convert :latest again", description="For every launch, because the tag may have moved."
    )
    sqsh_partition: Word = Field("cpu", title="Conversion partition", description="Where images are converted.")
    sqsh_minutes: int = Field(30, ge=1, title="Conversion minutes", description="The time limit of a conversion.")
    sqsh_memory_gb: int = Field(32, ge=1, title="Conversion memory in GB", description="The memory of a conversion.")

    allow_s3_inputs: bool = Field(
        False,
        title="Allow S3 inputs",
        description="Let jobs download more than 1 GB from s3:// while their GPUs wait; many sites end such jobs.",
    )

    allow_bare: Annotated[bool, Variable("SLURM_ALLOW_BARE", is_credential=False)] = Field(
        False,
        title="Allow jobs without an image",
        description="Let commands that name no image run on the nodes themselves, with python3 as it is there.",
    )

    @model_validator(mode="before")
    @classmethod
    def _hours_follow(cls, values: Any) -> Any:
        """Who says only how long jobs are means the other two to fit."""
        if not isinstance(values, dict) or _blank_or_word(values.get("time_hours")):
            return values
        hours = float(values["time_hours"])
        kept = min(0.2, 0.05 * hours)  # for the last checkpoint
        return {"timeout_hours": hours - kept, "max_time_hours": max(4.0, hours), **values}

    @model_validator(mode="after")
    def _hours_fit(self) -> Self:
        if not self.timeout_hours <= self.time_hours <= self.max_time_hours:
            raise ValueError(
                f"timeout_hours ({self.timeout_hours:g}) must not exceed time_hours ({self.time_hours:g}), "
                f"nor time_hours max_time_hours ({self.max_time_hours:g})"
            )
        return self


def _blank_or_word(value: Any) -> bool:
    try:
        return float(value) <= 0
    except (TypeError, ValueError):
        return True


class SlurmSettings(SlurmFields):
    """What the driver takes."""

    model_config = FROZEN
