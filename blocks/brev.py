"""The block of the brev platform: the token, and which instances are used or made for jobs."""

from __future__ import annotations

from typing import Annotated

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr

from prefect_tao.blocks.base import PlatformBlock, Variable, Word, Words


class TaoBrev(PlatformBlock, Block):
    """GPU instances of NVIDIA Brev: one of yours, or one made for the job and deleted after it.

    Example:
        Save one under a name and launch on it:

        ```python
        from prefect_tao.blocks import TaoBrev

        block = TaoBrev.from_env()  # BREV_API_TOKEN
        block.instance_types = ["g6e.xlarge", "g5.xlarge"]
        block.save("spot")
        # then: prefect-tao run --target brev/spot --gpus 1 --image IMAGE -- python train.py
        ```
    """

    _block_type_name = "TAO Brev"
    _block_type_slug = "tao-brev"
    _logo_url = HttpUrl("https://github.com/brevdev.png")
    _description = "Runs TAO jobs as containers on NVIDIA Brev instances."

    api_token: Annotated[SecretStr, Variable("BREV_API_TOKEN", ("BREV_API_KEY",))] = Field(
        title="API token", description="From the settings of the Brev console."
    )
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
    gpus: int = Field(1, ge=0, title="GPUs", description="Of a job that asks for none.")
