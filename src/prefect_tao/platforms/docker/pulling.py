"""Images: whether they are there, whether they could be pulled, and pulling them with the right login."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from prefect_tao.jobs.errors import MissingDependency, SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.platforms.container_jobs import NGC, NGC_USER
from prefect_tao.platforms.docker.client import NOT_FOUND, Engine
from prefect_tao.platforms.doubt import SERVER_ERRORS, Refused, checked, is_in_doubt, sure

PULL_IDLE_SECONDS = 300
HUB = "docker.io"
CREDENTIALS = ("NGC_KEY", "DOCKER_USERNAME", "DOCKER_PASSWORD", "DOCKER_REGISTRY")
# What the engine calls its processor, in the words of images.
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "ppc64le": "ppc64le", "s390x": "s390x"}


def registry_of(image: str) -> str:
    """The registry that an image comes from."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else HUB


def login_for(image: str, credentials: Mapping[str, str]) -> dict[str, str] | None:
    """The login that was supplied for the image's registry; None when there is none."""
    registry = registry_of(image)
    user, password = credentials.get("DOCKER_USERNAME", ""), credentials.get("DOCKER_PASSWORD", "")
    theirs = credentials.get("DOCKER_REGISTRY", "").removeprefix("https://").removeprefix("http://").partition("/")[0]
    key = credentials.get("NGC_KEY", "")
    if password and theirs and _known_as(theirs) == registry:
        return {"username": user, "password": password, "serveraddress": registry}
    if key and registry == NGC:
        return {"username": NGC_USER, "password": key, "serveraddress": registry}
    # Of a password without a registry only one thing is known: the docker command would mean the public one.
    if password and not theirs and registry == HUB:
        return {"username": user, "password": password, "serveraddress": registry}
    return None


def _known_as(registry: str) -> str:
    """The public registry has several names."""
    return HUB if registry in ("index.docker.io", "registry-1.docker.io", "registry.hub.docker.com") else registry


def supplied(credentials: Mapping[str, str]) -> dict[str, str]:
    """What is known of registries: what the block says, else the variables of this process."""
    around = {name: os.environ[name] for name in CREDENTIALS if os.environ.get(name)}
    return {**around, **{name: credentials[name] for name in CREDENTIALS if credentials.get(name)}}


def _header(image: str, credentials: Mapping[str, str]) -> dict[str, str]:
    """The login as the engine wants it; the docker command's own logins count where none was supplied."""
    login: Mapping[str, Any] | None = login_for(image, credentials)
    if login is None:
        auth, errors = _module("docker.auth"), _module("docker.errors")
        with suppress(errors.DockerException):  # the program that keeps the logins is missing: go without, as a guest
            login = auth.resolve_authconfig(auth.load_config(), registry_of(image))
    plain = {key.lower(): value for key, value in (login or {}).items()}
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(plain).encode()).decode()}


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"the logins of the docker command need the package {error.name}", "pip install 'prefect-tao[docker]'"
        ) from None


def inspect(engine: Engine, image: str) -> dict[str, Any] | None:
    """What the engine knows of an image that is there."""
    try:
        found: dict[str, Any] = engine.json("GET", f"/images/{image}/json")
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        return None
    return found


def pull(engine: Engine, image: str, credentials: Mapping[str, str]) -> None:
    """Pull an image. Raises SubmitFailed with what the registry said, Unreachable."""
    headers = _header(image, credentials)
    try:
        sure(lambda: _pull(engine, image, headers))
    except Refused as error:
        raise SubmitFailed(f"{image} could not be pulled: {error.said}", remedy_for(image, error.said)) from error
    except OSError as error:
        raise Unreachable(f"the pull of {image} broke off: {error}", "launch again: it goes on") from error


def _pull(engine: Engine, image: str, headers: Mapping[str, str]) -> None:
    """One try; what is there of the image stays, so another one goes on."""
    name = image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"
    with engine.stream(
        "POST", "/images/create", params={"fromImage": name}, headers=headers, timeout=PULL_IDLE_SECONDS
    ) as answer:
        for line in answer.iter_lines():
            told = json.loads(line) if line else {}
            if "error" in told:
                raise Refused(SERVER_ERRORS, str(told["error"]))


def remedy_for(image: str, said: str) -> str:
    """What to do when the registry gave nothing out."""
    words, registry = said.lower(), registry_of(image)
    if any(
        word in words for word in ("unauthorized", "denied", "no basic auth", "authentication required", "forbidden")
    ):
        if registry == NGC:
            return f"set a valid NGC_KEY, or on the engine's host: docker login {NGC} -u '{NGC_USER}'"
        return f"name a registry block in the TAO Docker block, or run: docker login {registry}"
    if any(word in words for word in ("manifest unknown", "not found", "does not exist", "no such image")):
        return "correct the image's name or tag"
    if "no matching manifest" in words:
        return "use an image that is built for the processor of the engine's host"
    if "no space left" in words:
        return "free space on the engine's host: docker image prune, docker system df"
    return f"check that the engine's host reaches {registry}, then launch again"


# -- findings ----------------------------------------------------------------------------------------------------------


def findings(
    engine: Engine, image: str, policy: str, credentials: Mapping[str, str], info: Mapping[str, Any], where: str
) -> list[Finding]:
    """Whether the image is there or could be pulled, and whether the engine's processor can run it."""
    machine = _MACHINES.get(str(info.get("Architecture")), str(info.get("Architecture")))
    there = inspect(engine, image)
    if there and policy != "always":
        return [_fits(image, [str(there.get("Architecture"))], machine, "is there", where)]
    if policy == "never":
        remedy = "pull it on the engine's host, or set the pull policy to missing"
        return [_said(Level.FAIL, f"image: {image} is not there, and the block says never to pull", where, remedy)]
    try:
        headers = _header(image, credentials)
        told = checked(lambda: engine.json("GET", f"/distribution/{image}/json", headers=headers))
    except Refused as error:
        level = Level.UNKNOWN if is_in_doubt(error) else Level.FAIL
        return [_said(level, f"image: {image}: {error.said}", where, remedy_for(image, error.said))]
    built_for = [str(one.get("architecture")) for one in told.get("Platforms") or [] if one.get("architecture")]
    return [_fits(image, built_for, machine, "can be pulled", where)]


def _fits(image: str, built_for: list[str], machine: str, state: str, where: str) -> Finding:
    if built_for and machine not in built_for:
        message = f"image: {image} is built for {', '.join(built_for)}, and the engine's host is {machine}"
        return _said(Level.FAIL, message, where, "use an image that is built for that processor")
    return _said(Level.OK, f"image: {image} {state}", where)


def _said(level: Level, message: str, where: str, remedy: str = "") -> Finding:
    return Finding(level=level, subject="image", message=message, checked_from=where, remedy=remedy)
