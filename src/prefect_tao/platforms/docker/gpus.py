"""Which GPUs the engine's host has, who uses them, and which ones a job gets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from prefect_tao.jobs.request import ALL_GPUS
from prefect_tao.platforms.docker import container_starter, helper
from prefect_tao.platforms.docker.client import Engine, Refused
from prefect_tao.platforms.docker.host import Host
from prefect_tao.platforms.docker.render import GPUS, LOCK_VOLUME, LOCKED, LOCKS, volume

EVERY_ONE = -1  # in the engine's words
FIELDS = "index,uuid,name,memory.total,memory.used,compute_cap,driver_version"
# The three questions in one go: what is there, who uses it, and which CUDA the driver knows.
LOOK = (
    f"nvidia-smi --query-gpu={FIELDS} --format=csv,noheader,nounits && echo == && "
    "nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader && echo == && nvidia-smi"
)
# A display or a monitor takes a little; who trains takes more.
IDLE_MIB = 600
MOST_IMAGES = 4
CANNOT_RUN = (126, 127)


class Gpu(NamedTuple):
    """One GPU as nvidia-smi tells."""

    number: str
    uuid: str
    name: str
    total_mib: int
    used_mib: int
    capability: str
    driver: str
    processes: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether somebody computes on it."""
        return self.processes > 0 or self.used_mib > IDLE_MIB


class Seen(NamedTuple):
    """All GPUs, and the newest CUDA that the driver runs."""

    gpus: tuple[Gpu, ...]
    cuda: str = ""


def look(engine: Engine, host: Host, image: str | None, info: Mapping[str, Any]) -> Seen | None:
    """The GPUs as a container of the job's image sees them, else the host, else any image; None if nobody can look.

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
        if why_not(error):
            raise
        return None
    if told.code not in (0, *CANNOT_RUN):
        raise Refused(told.code, f"nvidia-smi fails there with exit code {told.code}: {told.text.strip()[-200:]}")
    return parse(told.text) if told.code == 0 else None


def _other_images(engine: Engine) -> list[str]:
    """A few to try: the smallest start soonest, and the largest has most likely what it takes."""
    there = helper.images(engine)
    return list(dict.fromkeys([*there[: MOST_IMAGES - 1], *there[-1:]]))


def parse(text: str) -> Seen:
    """What nvidia-smi printed."""
    listed, users, summary = (text.split("==\n") + ["", ""])[:3]
    processes = Counter(line.partition(",")[0].strip() for line in users.splitlines())
    gpus = []
    for line in listed.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(FIELDS.split(",")):
            number, uuid, name, total, used, capability, driver = parts
            gpus.append(Gpu(number, uuid, name, _mib(total), _mib(used), capability, driver, processes[uuid]))
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", summary)
    return Seen(tuple(gpus), cuda[1] if cuda else "")


def _mib(text: str) -> int:
    return int(float(text)) if re.fullmatch(r"[\d.]+", text) else 0


# -- choosing ----------------------------------------------------------------------------------------------------------


def candidates(seen: Seen | None, allowed: Sequence[str] | None) -> list[str]:
    """The ids that jobs may have: as the block says, by index where that can be told."""
    if seen is None:
        return list(allowed or ())
    by_name = {name: gpu.number for gpu in seen.gpus for name in (gpu.number, gpu.uuid)}
    return [by_name.get(name, name) for name in allowed] if allowed else [gpu.number for gpu in seen.gpus]


def choose(wanted: int, ids: Sequence[str], reserved: Iterable[str], seen: Seen | None) -> list[str]:
    """The best `wanted` of `ids`: those that no job of ours has first, then those that nobody computes on."""
    if wanted == ALL_GPUS:
        return list(ids)
    claims = Counter(reserved)
    busy = {gpu.number for gpu in seen.gpus if gpu.is_busy} if seen else set()
    ranked = sorted(ids, key=lambda name: (claims[name], name in busy, ids.index(name)))
    return sorted(ranked[:wanted], key=ids.index)


# -- asking ------------------------------------------------------------------------------------------------------------


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
    body: dict[str, Any], wanted: int, ids: Sequence[str], info: Mapping[str, Any], seen: Seen | None = None
) -> None:
    """Put the chosen GPUs into a create request, with the locks that keep other jobs off them.

    A GPU is locked by both its names where they are known. Where nobody could tell which ones there are, the engine
    chooses, and the job has to have all of them for itself.
    """
    if ids:
        body["HostConfig"] |= request_for(ids, info)
    elif wanted == ALL_GPUS:
        body["HostConfig"] |= request_for(["all"], info)
    else:
        body["HostConfig"] |= request_for([], info, wanted)
    uuids = [gpu.uuid for gpu in (seen.gpus if seen else ()) if gpu.number in ids]
    body["HostConfig"]["Mounts"].append(volume(LOCK_VOLUME, LOCKS))
    body["Labels"] |= {GPUS: ",".join(ids or [container_starter.EVERY]), LOCKED: ",".join(uuids)}
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
