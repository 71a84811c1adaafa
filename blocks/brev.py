"""The block of the brev platform: which instances are used or made for jobs, and a token where nobody is logged in."""

from __future__ import annotations

from typing import Annotated

from prefect.blocks.core import Block
from pydantic import Field, SecretStr

from prefect_tao.blocks.tao_block import PlatformBlock
from prefect_tao.platforms.brev.settings import BrevFields
from prefect_tao.platforms.fields import Variable


class TaoBrev(BrevFields, PlatformBlock, Block):
    """GPU instances of NVIDIA Brev: one of yours, or one made for the job and deleted after it.

    Example:
        Save one under a name and launch on it:

        ```python
        from prefect_tao.blocks import TaoBrev

        block = TaoBrev.from_env()  # BREV_API_TOKEN, or none after `brev login`
        block.instance_types = ["g6e.xlarge", "g5.xlarge"]
        block.save("spot")
        # then: prefect-tao run --target brev/spot --gpus 1 --image IMAGE -- python train.py
        ```
    """

    _block_type_name = "TAO Brev"
    _block_type_slug = "tao-brev"
    _description = "Runs TAO jobs as containers on NVIDIA Brev instances."

    api_token: Annotated[SecretStr, Variable("BREV_API_TOKEN", ("BREV_API_KEY",))] = Field(
        SecretStr(""),
        title="API token",
        description="From the settings of the Brev console; not needed after brev login.",
    )
