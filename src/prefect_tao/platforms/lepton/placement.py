"""Where in a workspace a job runs: its node group, its shape, and the storage it mounts. Pure.

Each choice takes what the workspace offers; what is not offered is told with the nearest that is.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import ALL_GPUS
from prefect_tao.platforms.lepton.render import mount, parse_mount
from prefect_tao.platforms.lepton.settings import LeptonSettings

# Which volume is taken where several are there and none is named: the fastest kind first.
PREFERRED = ("lustre", "filestore")


@dataclass(frozen=True)
class NodeGroup:
    """Machines that a workspace has for itself."""

    id: str
    name: str
    volumes: tuple[Mapping[str, Any], ...] = ()
    ready_nodes: int = 0
    has_queue: bool = False

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> NodeGroup:
        """The node group as the workspace lists it."""
        metadata, spec, status = (raw.get(part) or {} for part in ("metadata", "spec", "status"))
        return cls(
            id=str(metadata.get("id") or ""),
            name=str(metadata.get("name") or metadata.get("id") or ""),
            volumes=tuple(one for one in spec.get("volumes") or () if isinstance(one, dict) and one.get("name")),
            ready_nodes=int(status.get("ready_nodes") or 0),
            has_queue=bool(status.get("quota_enabled")),
        )


@dataclass(frozen=True)
class OfferedShape:
    """What one worker may have."""

    name: str
    gpus: int = 0
    cpus: float = 0.0
    memory_mb: int = 0

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> OfferedShape:
        """The shape as the workspace lists it."""
        metadata, spec = raw.get("metadata") or {}, raw.get("spec") or {}
        return cls(
            name=str(metadata.get("id") or spec.get("name") or ""),
            gpus=int(spec.get("accelerator_num") or 0),
            cpus=float(spec.get("cpu") or 0),
            memory_mb=int(spec.get("memory_in_mb") or 0),
        )


def node_group(offered: Sequence[NodeGroup], wanted: str | None) -> NodeGroup | None:
    """The node group of this name or id, or the only one; None in a workspace that has none. Raises InvalidInput."""
    names = ", ".join(one.name for one in offered) or "none"
    if wanted is None:
        if len(offered) > 1:
            raise InvalidInput(f"the workspace has several node groups: {names}", "name one in the block (node_group)")
        return offered[0] if offered else None
    for one in offered:
        if wanted in (one.id, one.name):
            return one
    raise InvalidInput(
        f"the workspace has no node group {wanted!r}", f"{_near(wanted, [one.name for one in offered])}it has: {names}"
    )


def job_shape(offered: Sequence[OfferedShape], gpus: int, settings: LeptonSettings) -> str:
    """The shape that is named, or the smallest one for this number of GPUs. Raises InvalidInput."""
    by_name = {one.name: one for one in offered}
    if wanted := settings.resource_shape:
        if wanted in by_name:
            return wanted
        names = ", ".join(sorted(by_name)) or "none"
        near = _near(wanted, list(by_name))
        raise InvalidInput(f"the shape {wanted!r} is not offered there", f"{near}offered are: {names}")
    if gpus == ALL_GPUS:
        gpus = most_gpus(offered)
    if not gpus:
        preferred = [name for name in settings.cpu_shapes if name in by_name]
        plain = sorted((one for one in offered if not one.gpus), key=_size)
        if preferred or plain:
            return preferred[0] if preferred else plain[0].name
        raise InvalidInput("no shape without GPUs is offered there", f"ask for GPUs: {_counts(offered)}")
    fitting = sorted((one for one in offered if one.gpus == gpus), key=_size)
    if not fitting:
        raise InvalidInput(f"no shape with {gpus} GPUs is offered there", f"ask for {_counts(offered)}")
    return fitting[0].name


def most_gpus(offered: Sequence[OfferedShape]) -> int:
    """All GPUs of a node."""
    return max((one.gpus for one in offered), default=0)


def job_mounts(paths: Sequence[str], group: NodeGroup | None, settings: LeptonSettings) -> list[dict[str, str]]:
    """What the job mounts: as the block says, else the best volume of the node group where a path needs one.

    Raises InvalidInput for a volume that is not there, and for a path that no mount holds.
    """
    volumes = group.volumes if group else ()
    given = [parse_mount(text) for text in settings.mounts]
    if given:
        found = [{**one, "from": source_of(_volume(one["from"], volumes))} for one in given]
    elif paths:
        if not volumes:
            raise InvalidInput(
                f"{paths[0]} is a path, and the node group has no storage to mount", "use s3:// locations instead"
            )
        best = preferred_volume(volumes)
        inside = str(best.get("default_mount_path") or f"/mnt/{best['name']}")
        found = [mount(source_of(best), "/", inside)]
    else:
        found = []
    for path in paths:
        if not any(_is_below(path, one["mount_path"]) for one in found):
            places = ", ".join(one["mount_path"] for one in found)
            raise InvalidInput(f"{path} is on no storage that the job mounts", f"give a path below {places}")
    return found


def volume_of(one: Mapping[str, str], group: NodeGroup | None) -> str:
    """The name of the volume that a mount is of."""
    volumes = group.volumes if group else ()
    return next((str(volume["name"]) for volume in volumes if source_of(volume) == one["from"]), one["from"])


def preferred_volume(volumes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The one that is taken where none is named."""
    for word in PREFERRED:
        for one in volumes:
            if word in str(one["name"]).lower():
                return one
    return volumes[0]


def source_of(volume: Mapping[str, Any]) -> str:
    """What a job calls a volume by."""
    kind = str(volume.get("from") or "")
    return "node-local" if kind == "local" else f"node-{kind}:{volume['name']}"


def may_mount(rules: Any, path: str, user: str | None) -> bool:
    """Whether storage permissions let `user` mount a path; without rules everybody may. An unknown user is believed."""
    listed = [one for one in rules if isinstance(one, dict)] if isinstance(rules, list) else []
    if not listed:
        return True
    for one in listed:
        users = one.get("allowed_users") or []
        if _is_below(path, str(one.get("path_prefix") or "/")) and (not users or user is None or user in users):
            return True
    return False


def allowed_paths(rules: Any) -> str:
    """The paths that permissions name, for people."""
    return ", ".join(str(one.get("path_prefix")) for one in rules if isinstance(one, dict) and one.get("path_prefix"))


def _volume(name: str, volumes: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    names = [str(one["name"]) for one in volumes]
    if name not in names:
        offered = ", ".join(names) or "none"
        raise InvalidInput(f"the node group has no volume {name!r}", f"{_near(name, names)}it has: {offered}")
    return volumes[names.index(name)]


def _is_below(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder.rstrip("/") + "/")


def _size(one: OfferedShape) -> tuple[float, int, str]:
    return one.cpus, one.memory_mb, one.name


def _counts(offered: Sequence[OfferedShape]) -> str:
    counts = sorted({one.gpus for one in offered if one.gpus})
    return " or ".join(map(str, counts)) + " per node" if counts else "a node group with GPUs: none is offered here"


def _near(wanted: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
    return f"did you mean {near[0]}? " if near else ""
