"""The block of the slurm platform: how to log in, where results go, and what a job gets when it asks for nothing."""

from __future__ import annotations

from typing import Annotated

from prefect.blocks.core import Block
from pydantic import Field, SecretStr

from prefect_tao.blocks.tao_block import After, PlatformBlock
from prefect_tao.platforms.fields import Variable
from prefect_tao.platforms.slurm.settings import SlurmFields


class TaoSlurm(SlurmFields, PlatformBlock, Block):
    """A SLURM cluster behind its login nodes. Log-in is by key file or ssh agent; no key is stored here.

    Example:
        Save one under a name and launch on it:

        ```python
        from prefect_tao.blocks import TaoSlurm

        TaoSlurm(
            user="me",
            hostnames=["login1.example.com", "login2.example.com"],
            partition="gpu",
            ssh_key_path="~/.ssh/id_ed25519",
            results_root="/lustre/teams/vision/me/results",
        ).save("cluster")
        # then: prefect-tao run --target slurm/cluster --gpus 4 -- python train.py
        ```
    """

    _block_type_name = "TAO SLURM"
    _block_type_slug = "tao-slurm"
    _description = "Runs TAO jobs on a SLURM cluster, over ssh to its login nodes."

    ssh_key_passphrase: Annotated[SecretStr, Variable("SSH_KEY_PASSPHRASE"), After("ssh_key_path")] = Field(
        SecretStr(""), title="Passphrase", description="Of the key file, where it has one."
    )
