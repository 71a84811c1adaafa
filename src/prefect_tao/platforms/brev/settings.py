"""The settings of the brev platform."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from prefect_tao.platforms.fields import FROZEN, InShape, RemoteFields, Variable, Word, Words
from prefect_tao.platforms.fields_of_containers import ContainerFields


class BrevFields(ContainerFields, RemoteFields):
    """Which instances are used or made for jobs."""

    org_id: Annotated[Word | None, Variable("BREV_ORG_ID", is_credential=False)] = Field(
        None, title="Organization id", description="Needed where neither the login nor the token names it."
    )
    owner: Annotated[Word | None, Variable("BREV_OWNER", ("USER", "LOGNAME"), is_credential=False)] = Field(
        None,
        title="Owner",
        description="Whose instances these are: names carry a hash of it. Your login name when left out.",
    )
    results_root: Annotated[str | None, Variable("TAO_RESULTS_ROOT")] = Field(
        None,
        title="Results folder",
        description="On an instance of yours; else on this machine, where results are copied to without a bucket.",
    )
    instance: Word | None = Field(
        None, title="Instance", description="One of yours, never deleted; one is made per job when left out."
    )
    instance_types: Words = Field(
        default_factory=list, title="Instance types", description="To make an instance of, the preferred one first."
    )
    gpu_name: Word | None = Field(
        None, title="GPU", description="Such as A100: the cheapest type that has it, where no types are listed."
    )
    max_price_per_hour: float | None = Field(
        None, gt=0, title="Most dollars per hour", description="A launch never makes an instance that costs more."
    )
    min_disk_gb: int = Field(500, ge=1, title="Least disk in GB", description="Of an instance that is made.")
    ready_minutes: float = Field(
        15, gt=0, title="Minutes to get ready", description="A new instance needs ten before its first command."
    )
    gpus: Annotated[int, InShape("num_gpus")] = Field(1, ge=0, title="GPUs", description="Of a job that asks for none.")


class BrevSettings(BrevFields):
    """What the driver takes."""

    model_config = FROZEN
