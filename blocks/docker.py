"""The block of both Docker platforms: which engine, and how containers are started there."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.blocks.core import Block

from prefect_tao.blocks.tao_block import PlatformBlock
from prefect_tao.platforms.docker.settings import DockerFields


class TaoDocker(DockerFields, PlatformBlock, Block):
    """A Docker engine here or on another host: the platforms local-docker and remote-docker, told apart by the host.

    Example:
        Save one under a name and launch on it:

        ```python
        from prefect_tao.blocks import TaoDocker

        TaoDocker(results_root="/data/results").save("workstation")
        TaoDocker(host="ssh://me@gpu-box", results_root="/data/results").save("gpu-box")
        # then: prefect-tao run --target local-docker/workstation --gpus 1 --image IMAGE -- python train.py
        #       prefect-tao run --target remote-docker/gpu-box --gpus 1 --image IMAGE -- python train.py
        ```
    """

    _block_type_name = "TAO Docker"
    _block_type_slug = "tao-docker"
    _description = "Runs TAO jobs as containers of a Docker engine, on this machine or on another one."

    @property
    def local(self) -> bool:
        """Whether the engine is on this machine: then its target is local-docker, else remote-docker.

        Of a context only the machine that has it knows; there the launch tells when the target is the other one.
        """
        return self.host.startswith("unix://")

    def platform_among(self, platforms: Sequence[str]) -> str:
        """The one that is here, or the one that is not."""
        return "local-docker" if self.local else "remote-docker"
