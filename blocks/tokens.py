"""The tokens that images and models need, saved once and named by the platforms' blocks."""

from __future__ import annotations

from typing import Annotated

from prefect.blocks.core import Block
from pydantic import Field, SecretStr

from prefect_tao.blocks.tao_block import TaoBlock
from prefect_tao.platforms.fields import Variable


class TaoNgcKey(TaoBlock, Block):
    """A key of NVIDIA NGC, for private images and pretrained models.

    Example:
        Save one under a name, and name it in a platform's block:

        ```python
        from prefect_tao.blocks import TaoDocker, TaoNgcKey

        TaoNgcKey.from_env().save("team")  # NGC_KEY
        TaoDocker(ngc_key="tao-ngc-key/team").save("workstation")
        ```
    """

    _block_type_name = "TAO NGC Key"
    _block_type_slug = "tao-ngc-key"
    _description = "A key of NVIDIA NGC, for private images and pretrained models."

    key: Annotated[SecretStr, Variable("NGC_KEY", ("NGC_API_KEY",))] = Field(
        title="Key", description="From the set-up page of your NGC account."
    )


class TaoHuggingFaceToken(TaoBlock, Block):
    """A token of Hugging Face, for models and datasets whose terms you have accepted.

    Example:
        Save one under a name, and name it in a platform's block:

        ```python
        from prefect_tao.blocks import TaoDocker, TaoHuggingFaceToken

        TaoHuggingFaceToken.from_env().save("me")  # HF_TOKEN
        TaoDocker(hugging_face_token="tao-hugging-face-token/me").save("workstation")
        ```
    """

    _block_type_name = "TAO Hugging Face Token"
    _block_type_slug = "tao-hugging-face-token"
    _description = "A token of Hugging Face, for models and datasets whose terms you have accepted."

    token: Annotated[SecretStr, Variable("HF_TOKEN", ("HUGGING_FACE_HUB_TOKEN",))] = Field(
        title="Token", description="A read token, made after accepting the model's terms."
    )
