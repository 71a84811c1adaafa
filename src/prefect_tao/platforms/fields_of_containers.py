"""The fields that platforms share whose jobs are containers of a Docker engine."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from prefect_tao.platforms.fields import Fields, Variable, Word, Words


class ContainerFields(Fields):
    """How containers are started by a Docker engine, wherever that is."""

    network: Annotated[Word | None, Variable("DOCKER_NETWORK")] = Field(
        None, title="Network", description="The network that jobs join, made when missing; tao_default when left out."
    )
    username: Annotated[str | None, Variable("DOCKER_USERNAME")] = Field(
        None, title="Registry user", description="For private images; $oauthtoken with an NGC key."
    )
    mounts: Words = Field(default_factory=list, title="Mounts", description="As /path or /path:/inside[:ro].")
    gpu_ids: Words | None = Field(
        None, title="GPU ids", description="The GPUs that jobs may have, such as 0,1; all of them when left out."
    )
    user: Annotated[str | None, Variable("DOCKER_USER")] = Field(
        None,
        title="User",
        description="The uid:gid that owns results on the engine's host; yours there when left out.",
        pattern=r"^\d+(:\d+)?$",
    )
