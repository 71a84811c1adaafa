"""Which Docker engine is meant: a socket here, another host over ssh, or tcp with TLS; by name, variable or context."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_tao.jobs.errors import InvalidInput

SOCKET = "/var/run/docker.sock"
SCHEMES = ("unix", "ssh", "tcp", "http", "https")


@dataclass(frozen=True)
class Endpoint:
    """Where the engine listens. `certs` is a folder with ca.pem, cert.pem and key.pem for tcp."""

    url: str
    certs: Path | None = None
    verify: bool = True

    @property
    def scheme(self) -> str:
        """unix, ssh or tcp."""
        scheme = self.url.partition("://")[0]
        return "tcp" if scheme in ("http", "https") else scheme

    @property
    def is_local(self) -> bool:
        """Whether the engine's socket is on this machine."""
        return self.scheme == "unix"


def resolve(host: str | None = None, context: str | None = None, certs: str | None = None) -> Endpoint:
    """The engine that is meant; as the docker command finds it where nothing is given. Raises InvalidInput."""
    if host and not context:
        return _given(host, certs)
    if not context and (host := os.environ.get("DOCKER_HOST")):
        return _given(host, certs)
    name = context or os.environ.get("DOCKER_CONTEXT") or _current_context()
    if name and name != "default":
        return _of_context(name)
    return Endpoint(f"unix://{_default_socket()}")


def _given(host: str, certs: str | None) -> Endpoint:
    _check(host)
    folder = certs or os.environ.get("DOCKER_CERT_PATH")
    wants_tls = bool(certs or os.environ.get("DOCKER_TLS_VERIFY"))
    if host.startswith(("tcp://", "https://")) and wants_tls:
        return Endpoint(host, Path(folder).expanduser() if folder else config_folder())
    return Endpoint(host)


def _check(host: str) -> None:
    if host.partition("://")[0] not in SCHEMES or "://" not in host:
        raise InvalidInput(
            f"{host!r} is no Docker engine", "write unix:///path/of/socket, ssh://user@host or tcp://host:port"
        )


def _default_socket() -> str:
    """The usual socket, or that of an engine without root where only this one is there."""
    rootless = Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere")) / "docker.sock"
    return str(rootless) if not Path(SOCKET).exists() and rootless.exists() else SOCKET


# -- contexts of the docker command, as it keeps them on disk ----------------------------------------------------------


def config_folder() -> Path:
    """Where the docker command keeps its settings."""
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def _current_context() -> str:
    try:
        return str(json.loads((config_folder() / "config.json").read_bytes()).get("currentContext") or "")
    except (OSError, ValueError, AttributeError):
        return ""


def _of_context(name: str) -> Endpoint:
    base, place = config_folder() / "contexts", hashlib.sha256(name.encode()).hexdigest()
    try:
        meta: dict[str, Any] = json.loads((base / "meta" / place / "meta.json").read_bytes())
        docker = meta["Endpoints"]["docker"]
        host = str(docker["Host"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInput(
            f"there is no docker context {name!r}", "see the names with: docker context ls; or give the host itself"
        ) from None
    _check(host)
    certs = base / "tls" / place / "docker"
    return Endpoint(host, certs if certs.is_dir() else None, not docker.get("SkipTLSVerify"))
