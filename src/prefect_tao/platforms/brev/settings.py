"""The settings of the brev platform."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from prefect_tao.platforms.fields import FROZEN, InShape, RemoteFields, Word, Words


class BrevFields(RemoteFields):
    """Which instances are used or made for jobs."""

    org_id: Word | None = Field(None, title="Organization id", description="Where the token does not tell it.")
    instance: Word | None = Field(
        None, title="Instance", description="One of yours, never deleted; one is made per job when left out."
    )
    instance_types: Words = Field(
        default_factory=list, title="Instance types", description="To make an instance of, the preferred one first."
    )
    gpu_name: Word | None = Field(
        None, title="GPU", description="Such as A100: the cheapest type that has it, where no types are listed."
    )
    min_disk_gb: int = Field(500, ge=1, title="Least disk in GB", description="Of an instance that is made.")
    ready_minutes: int = Field(
        15, ge=1, title="Minutes to get ready", description="A new instance needs ten before its first command."
    )
    keep_instance: bool = Field(
        False,
        title="Keep instances",
        description="Stop an instance that was made instead of deleting it; disks still cost.",
    )
    gpus: Annotated[int, InShape("num_gpus")] = Field(1, ge=0, title="GPUs", description="Of a job that asks for none.")


class BrevSettings(BrevFields):
    """What the driver takes."""

    model_config = FROZEN
