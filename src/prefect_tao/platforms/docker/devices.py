"""The GPUs of the engine's host: looked at from its side, and handed to a container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from prefect_tao.jobs.request import ALL_GPUS
from prefect_tao.platforms.docker import helper
from prefect_tao.platforms.docker.client import Engine
from prefect_tao.platforms.docker.render import GPUS, LOCKED, LOCKS
from prefect_tao.platforms.doubt import Refused, is_in_doubt
from prefect_tao.platforms.files import Files
from prefect_tao.platforms.gpu_locks import EVERY
from prefect_tao.platforms.gpus import LOOK, Seen, parse

EVERY_ONE = -1  # in the engine's words
MOST_IMAGES = 4
CANNOT_RUN = (126, 127)


def look(engine: Engine, host: Files, image: str | None, info: Mapping[str, Any]) -> Seen | None:
    """The GPUs as a container of the job's image sees them, else the host, else any image; None if none can look.

    Raises Refused when the engine cannot give GPUs to containers, or nvidia-smi itself fails there.
    """
    if image and (seen := _in_image(engine, image, info)):
        return seen
    if told := host.run(LOOK):
        return parse(told)
    for other in _other_images(engine) if has_runtime(info) else ():
        with suppress(Refused):
            if seen := _in_image(engine, other, info):
                return seen
    return None


def _in_image(engine: Engine, image: str, info: Mapping[str, Any]) -> Seen | None:
    """What nvidia-smi says in an image; None where it cannot be run there: no shell, or other libraries."""
    if not has_runtime(info):
        return None
    try:
        told = helper.run(engine, image, ["/bin/sh", "-c", LOOK], **request_for(["all"], info))
    except Refused as error:
        if why_not(error) or is_in_doubt(error):
            raise
        return None
    if told.code not in (0, *CANNOT_RUN):
        raise Refused(told.code, f"nvidia-smi fails there with exit code {told.code}: {told.text.strip()[-200:]}")
    return parse(told.text) if told.code == 0 else None


def _other_images(engine: Engine) -> list[str]:
    """A few to try: the smallest start soonest, and the largest has most likely what it takes."""
    there = helper.images(engine)
    return list(dict.fromkeys([*there[: MOST_IMAGES - 1], *there[-1:]]))


def is_tegra(info: Mapping[str, Any]) -> bool:
    """Whether the engine is on a Jetson, whose GPU only NVIDIA's runtime can hand out."""
    return "tegra" in str(info.get("KernelVersion", "")).lower()


def has_runtime(info: Mapping[str, Any]) -> bool:
    """Whether NVIDIA's container toolkit is registered with the engine."""
    return "nvidia" in (info.get("Runtimes") or {})


def request_for(ids: Sequence[str], info: Mapping[str, Any], count: int | None = None) -> dict[str, Any]:
    """What HostConfig needs so that a container gets these GPUs."""
    if is_tegra(info):
        return {"Runtime": "nvidia"}
    if count is not None or list(ids) == ["all"]:
        return {"DeviceRequests": [{"Count": EVERY_ONE if count is None else count, "Capabilities": [["gpu"]]}]}
    return {"DeviceRequests": [{"DeviceIDs": list(ids), "Capabilities": [["gpu"]]}]}


def give(
    body: dict[str, Any],
    wanted: int,
    ids: Sequence[str],
    info: Mapping[str, Any],
    locks: str,
    seen: Seen | None = None,
) -> None:
    """Put the chosen GPUs into a create request, with the host's folder of locks that keep other jobs off them.

    A GPU is locked by both its names where they are known. Where it is not known which ones there are, the engine
    chooses, and the job has to have all of them for itself.
    """
    if ids:
        body["HostConfig"] |= request_for(ids, info)
    elif wanted == ALL_GPUS:
        body["HostConfig"] |= request_for(["all"], info)
    else:
        body["HostConfig"] |= request_for([], info, wanted)
    uuids = [gpu.uuid for gpu in (seen.gpus if seen else ()) if gpu.number in ids]
    # A bind of this kind is made by the engine where it is missing; those of the other kind then fail.
    body["HostConfig"].setdefault("Binds", []).append(f"{locks}:{LOCKS}")
    body["Labels"] |= {GPUS: ",".join(ids or [EVERY]), LOCKED: ",".join(uuids)}
    if is_tegra(info):
        shown = ",".join(ids) or "all"
        body["Env"] += [f"NVIDIA_VISIBLE_DEVICES={shown}", "NVIDIA_DRIVER_CAPABILITIES=all"]


def why_not(error: Refused) -> str | None:
    """What the engine's words mean where it could not hand out GPUs."""
    if "could not select device driver" in error.said or "unknown runtime specified nvidia" in error.said.lower():
        return "the engine cannot give GPUs to containers"
    if "nvidia-container-cli" in error.said or "failed to inject CDI" in error.said:
        return "NVIDIA's runtime could not hand out the GPUs"
    return None
