"""The block of both Docker platforms: which engine, and how containers are started there."""

from __future__ import annotations

from typing import Annotated, Literal

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl

from prefect_tao.blocks.base import PlatformBlock, Variable, Word, Words


class TaoDocker(PlatformBlock, Block):
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
    _logo_url = HttpUrl("https://github.com/docker.png")
    _description = "Runs TAO jobs as containers of a Docker engine, on this machine or on another one."

    host: Annotated[str, Variable("DOCKER_HOST")] = Field(
        "unix:///var/run/docker.sock",
        title="Engine",
        description="A socket on this machine, or another host as ssh://user@host or tcp://host:port.",
        pattern=r"^(unix|ssh|tcp|http|https)://\S+$",
    )
    context: Annotated[Word | None, Variable("DOCKER_CONTEXT")] = Field(
        None, title="Docker context", description="Instead of an engine: a context of the docker command here."
    )
    cert_path: Annotated[str | None, Variable("DOCKER_CERT_PATH")] = Field(
        None, title="TLS folder", description="With ca.pem, cert.pem and key.pem, for a tcp:// engine."
    )
    ssh_path: Annotated[str | None, Variable("HOST_SSH_PATH")] = Field(
        None, title="SSH folder", description="Keys and known hosts for an ssh:// engine; ~/.ssh when left out."
    )
    network: Annotated[Word | None, Variable("DOCKER_NETWORK")] = Field(
        None, title="Network", description="The network that jobs join, made when missing; tao_default when left out."
    )
    username: Annotated[str | None, Variable("DOCKER_USERNAME")] = Field(
        None, title="Registry user", description="For private images; $oauthtoken with an NGC key."
    )
    pull_policy: Annotated[Literal["missing", "always", "never"], Variable("DOCKER_PULL_POLICY")] = Field(
        "missing", title="Pull images", description="When an image is pulled."
    )
    auto_remove: Annotated[bool, Variable("DOCKER_AUTO_REMOVE")] = Field(
        False, title="Remove ended containers", description="Their logs and exit codes go with them."
    )
    mounts: Words = Field(default_factory=list, title="Mounts", description="As /path or /path:/inside[:ro].")
    tmpfs: Words = Field(default_factory=lambda: ["/dev/shm"], title="In memory", description="Folders held in memory.")  # noqa: S108 - inside the container
    gpus: int = Field(0, ge=-1, title="GPUs", description="Of a job that does not say; -1 for all of them.")
    gpu_ids: Words | None = Field(
        None, title="GPU ids", description="The GPUs that jobs may have, such as 0,1; all of them when left out."
    )
    user: Annotated[str | None, Variable("DOCKER_USER")] = Field(
        None,
        title="User",
        description="The uid:gid that owns results on the engine's host; yours there when left out.",
        pattern=r"^\d+(:\d+)?$",
    )

    @property
    def local(self) -> bool:
        """Whether the engine is on this machine: then its target is local-docker, else remote-docker.

        Of a context only the machine that has it knows; there the launch tells when the target is the other one.
        """
        return self.host.startswith("unix://")
