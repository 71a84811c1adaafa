"""Volumes of a Pod: what a mount text means, and where our own files are mounted. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.platforms.kubernetes.settings import KubernetesSettings

HOME = "/prefect-tao"
WORK = "/prefect-tao-work"
SHM = "/dev/shm"  # noqa: S108 - inside the container
RESULTS = "/results"
_MOUNT = re.compile(r"(?P<source>(?:pvc|host|nfs)://[^:]+):(?P<inside>/[^:]*)(?::(?P<mode>ro|rw))?")


class Mount(NamedTuple):
    """A volume and where it is in the container."""

    source: dict[str, Any]
    inside: str
    read_only: bool = False
    sub_path: str = ""

    def is_above(self, path: str) -> bool:
        """Whether `path` is on this volume."""
        return path == self.inside or path.startswith(self.inside.rstrip("/") + "/")


def parse_mount(text: str) -> Mount:
    """The mount that a text means. Raises InvalidInput."""
    match = _MOUNT.fullmatch(text)
    if match is None:
        raise InvalidInput(
            f"{text!r} is no mount",
            "write pvc://CLAIM:/inside, pvc://CLAIM/sub/folder:/inside, host:///path:/inside or "
            "nfs://SERVER/path:/inside, each with :ro at its end for one that is only read",
        )
    scheme, _, rest = match["source"].partition("://")
    name, _, path = rest.partition("/")
    read_only = match["mode"] == "ro"
    inside = posixpath.normpath(match["inside"])
    if scheme == "pvc":
        return Mount({"persistentVolumeClaim": {"claimName": name}}, inside, read_only, path.strip("/"))
    if scheme == "nfs":
        return Mount({"nfs": {"server": name, "path": f"/{path}"}}, inside, read_only)
    return Mount({"hostPath": {"path": posixpath.normpath(f"/{path}")}}, inside, read_only)


def mounts_of(settings: KubernetesSettings) -> list[Mount]:
    """What the block mounts, the claim for results among them. Raises InvalidInput."""
    found = [parse_mount(text) for text in settings.mounts]
    if settings.results_claim:
        claim = {"persistentVolumeClaim": {"claimName": settings.results_claim}}
        found.insert(0, Mount(claim, posixpath.normpath(settings.results_root or RESULTS)))
    return found


def results_mount(settings: KubernetesSettings) -> str | None:
    """The folder for results on a volume; None where there is none, so that they go to S3 or end with the Pod."""
    root = settings.results_root or (RESULTS if settings.results_claim else None)
    return posixpath.normpath(root) if root else None


def volumes(mounts: Sequence[Mount]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and their mounts, as a Pod has them; a source that is mounted twice is one volume."""
    names: dict[str, str] = {}
    sources: list[dict[str, Any]] = []
    places: list[dict[str, Any]] = []
    for mount in mounts:
        name = names.setdefault(repr(mount.source), f"mount-{len(names)}")
        if len(names) > len(sources):
            sources.append({"name": name, **mount.source})
        place: dict[str, Any] = {"name": name, "mountPath": mount.inside}
        place |= {"readOnly": True} if mount.read_only else {}
        place |= {"subPath": mount.sub_path} if mount.sub_path else {}
        places.append(place)
    return sources, places
