"""The settings of both Docker platforms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from prefect_tao.platforms.fields import FROZEN, InShape, RemoteFields, Variable, Word, Words
from prefect_tao.platforms.fields_of_containers import ContainerFields


class EngineFields(RemoteFields):
    """Which engine."""

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


class DockerFields(ContainerFields, EngineFields):
    """Which engine, and how containers are started there."""

    pull_policy: Annotated[Literal["missing", "always", "never"], Variable("DOCKER_PULL_POLICY")] = Field(
        "missing", title="Pull images", description="When an image is pulled."
    )
    auto_remove: Annotated[bool, Variable("DOCKER_AUTO_REMOVE")] = Field(
        False, title="Remove ended containers", description="Their logs and exit codes go with them."
    )
    tmpfs: Words = Field(default_factory=lambda: ["/dev/shm"], title="In memory", description="Folders held in memory.")  # noqa: S108 - inside the container
    gpus: Annotated[int, InShape("num_gpus")] = Field(
        0, ge=-1, title="GPUs", description="Of a job that does not say; -1 for all of them."
    )


class DockerSettings(DockerFields):
    """What the driver takes."""

    model_config = FROZEN

    @classmethod
    def filled(cls, given: Mapping[str, Any], environ: Mapping[str, str]) -> Self:
        """As all settings, but a context and a TLS folder count by the docker command's own rules, in endpoint.py."""
        ours = {name: value for name, value in environ.items() if name not in ("DOCKER_CONTEXT", "DOCKER_CERT_PATH")}
        return super().filled(given, ours)
