"""Which GPUs a machine has, who uses them, and which ones a job gets; the locks that keep jobs apart are beside it."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prefect_tao.jobs.request import ALL_GPUS

FIELDS = "index,uuid,name,memory.total,memory.used,compute_cap,driver_version"
# The three questions in one go: what is there, who uses it, and which CUDA the driver knows.
LOOK = (
    f"nvidia-smi --query-gpu={FIELDS} --format=csv,noheader,nounits && echo == && "
    "nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader && echo == && nvidia-smi"
)
# A display or a monitor takes a little; who trains takes more.
IDLE_MIB = 600


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


# -- this machine ------------------------------------------------------------------------------------------------------


def inventory(allowed: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """The GPUs here that jobs may have, each with its further names.

    Those are `allowed`, else as PREFECT_TAO_GPUS says, else all that nvidia-smi lists.
    """
    listed = _listed_here()
    given = os.environ.get("PREFECT_TAO_GPUS")
    if allowed is None and given is not None:
        allowed = [part.strip() for part in given.split(",") if part.strip()]
    if allowed is None:
        return {number: (uuid,) for number, uuid in listed.items()}
    names = {**{uuid: number for number, uuid in listed.items()}, **listed}
    return {device: (names[device],) if device in names else () for device in allowed}


def _listed_here() -> Mapping[str, str]:
    """The UUID of each GPU by its number."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^GPU (\d+):.*\(UUID: ([\w-]+)\)", done.stdout, re.MULTILINE))
