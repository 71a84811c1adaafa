"""The block of the lepton platform: the workspace, its token, and where in it jobs run."""

from __future__ import annotations

from typing import Annotated

from prefect.blocks.core import Block
from pydantic import Field, SecretStr

from prefect_tao.blocks.tao_block import PlatformBlock
from prefect_tao.platforms.fields import Variable
from prefect_tao.platforms.lepton.settings import LeptonFields


class TaoLepton(LeptonFields, PlatformBlock, Block):
    """A workspace of DGX Cloud Lepton.

    Example:
        Save one under a name and launch on it:

        ```python
        from prefect_tao.blocks import TaoLepton

        TaoLepton.from_env().save("team")  # LEPTON_WORKSPACE_ID and LEPTON_AUTH_TOKEN
        # then: prefect-tao run --target lepton/team --gpus 8 --image IMAGE -- python train.py
        ```
    """

    _block_type_name = "TAO Lepton"
    _block_type_slug = "tao-lepton"
    _description = "Runs TAO jobs as batch jobs of a DGX Cloud Lepton workspace."

    auth_token: Annotated[SecretStr, Variable("LEPTON_AUTH_TOKEN", ("LEPTON_WORKSPACE_TOKEN",))] = Field(
        title="Token", description="From the settings of the workspace."
    )
