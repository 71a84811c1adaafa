"""The block of the lepton platform: the workspace, its token, and where in it jobs run."""

from __future__ import annotations

from typing import Annotated

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr

from prefect_tao.blocks.base import PlatformBlock, Variable, Word, Words


class TaoLepton(PlatformBlock, Block):
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
    _logo_url = HttpUrl("https://github.com/leptonai.png")
    _description = "Runs TAO jobs as batch jobs of a DGX Cloud Lepton workspace."

    workspace_id: Annotated[Word, Variable("LEPTON_WORKSPACE_ID")] = Field(
        title="Workspace id", description="As the workspace's page shows it."
    )
    auth_token: Annotated[SecretStr, Variable("LEPTON_AUTH_TOKEN", ("LEPTON_WORKSPACE_TOKEN",))] = Field(
        title="Token", description="From the settings of the workspace."
    )
    workspace_url: Annotated[str | None, Variable("LEPTON_WORKSPACE_URL")] = Field(
        None,
        title="API address",
        description="Of a workspace that is not behind the public gateway, without a slash at its end.",
        pattern=r"^https?://\S*[^/\s]$",
    )
    workspace_origin_url: Annotated[str | None, Variable("LEPTON_WORKSPACE_ORIGIN_URL")] = Field(
        None, title="Origin", description="Only for a gateway that asks for it.", pattern="^https?://"
    )
    node_group: str | None = Field(
        None, title="Node group", description="By name or id; the only one there is when left out."
    )
    resource_shape: Word | None = Field(
        None, title="GPU shape", description="Such as gpu.8xh100-sxm; chosen by the number of GPUs when left out."
    )
    cpu_shapes: Words = Field(
        default_factory=lambda: ["cpu.medium", "cpu.large", "cpu.small"],
        title="CPU shapes",
        description="For jobs without GPUs, the preferred one first.",
    )
    image_pull_secret: Word | None = Field(
        None, title="Image pull secret", description="One that is there; made from the NGC key when left out."
    )
    mounts: Words = Field(
        default_factory=list,
        title="Mounts",
        description="Of the node group's storage, as volume:/path:/inside; found by themselves when left out.",
    )
    nodes: int = Field(1, ge=1, title="Nodes", description="Of a job that asks for none.")
    gpus: int = Field(1, ge=0, title="GPUs", description="Per node, of a job that asks for none.")
    ttl_seconds_after_finished: int = Field(
        259200, ge=0, title="Seconds kept", description="How long the workspace keeps an ended job and its logs."
    )
