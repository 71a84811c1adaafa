"""Which GPUs a machine has, who uses them, and which ones a job gets; the locks that keep jobs apart are beside it."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prefect_tao.jobs.request import ALL_GPUS
from prefect_tao.platforms import gpu_locks
from prefect_tao.platforms.gpu_locks import EVERY

FIELDS = "index,uuid,name,memory.total,memory.used,compute_cap,driver_version"
# The three questions in one go: what is there, who uses it, and which CUDA the driver knows.
LOOK = (
    f"nvidia-smi --query-gpu={FIELDS} --format=csv,noheader,nounits && echo == && "
    "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader && echo == && nvidia-smi"
)
# A display or a monitor takes a little; who trains takes more.
IDLE_MIB = 600
BUSY_REMEDY = "wait until they have ended, ask for fewer, or choose another target"


class Gpu(NamedTuple):
    """One GPU as nvidia-smi tells."""

    number: str
    uuid: str
    name: str
    total_mib: int
    used_mib: int
    capability: str
    driver: str
    processes: tuple[str, ...] = ()

    @property
    def is_busy(self) -> bool:
        """Whether somebody computes on it."""
        return bool(self.processes) or self.used_mib > IDLE_MIB

    @property
    def users(self) -> str:
        """Who computes on it, as far as that can be seen: from a container the processes of others cannot."""
        who = ", ".join(self.processes) or "what cannot be seen from there"
        return f"GPU {self.number} is in use by {who} ({self.used_mib} MiB used)"


class Seen(NamedTuple):
    """All GPUs, and the newest CUDA that the driver runs."""

    gpus: tuple[Gpu, ...]
    cuda: str = ""


def parse(text: str) -> Seen:
    """What nvidia-smi printed."""
    listed, users, summary = (text.split("==\n") + ["", ""])[:3]
    processes: dict[str, list[str]] = {}
    for line in users.splitlines():
        uuid, pid, program = ([part.strip() for part in line.split(",", 2)] + ["", ""])[:3]
        processes.setdefault(uuid, []).append(f"process {pid}" + (f" ({program})" if program else ""))
    gpus = []
    for line in listed.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(FIELDS.split(",")):
            number, uuid, name, total, used, capability, driver = parts
            gpus.append(
                Gpu(number, uuid, name, _mib(total), _mib(used), capability, driver, tuple(processes.get(uuid, ())))
            )
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


def busy(ids: Sequence[str], reserved: Iterable[str], seen: Seen | None, named: bool = False) -> list[Gpu]:
    """Those of `ids` that others than our jobs compute on: they are not handed out, and no lock tells when they end.

    A display may take memory for good. A person who has `named` the GPUs knows that; processes count all the same.
    """
    ours = set(reserved)
    if seen is None or EVERY in ours:
        return []
    return [
        gpu
        for gpu in seen.gpus
        if gpu.number in ids and not ours & {gpu.number, gpu.uuid} and (gpu.processes if named else gpu.is_busy)
    ]


def shortage(wanted: int, ids: Sequence[str], in_use: Sequence[Gpu]) -> str:
    """Why a launch cannot have so many of `ids` now, because others compute there; empty when it can."""
    free = len(ids) - len(in_use)
    if (len(ids) if wanted == ALL_GPUS else wanted) <= free or not in_use:
        return ""
    asked = "all" if wanted == ALL_GPUS else wanted
    return f"{asked} were asked for, and {free} of {len(ids)} can be had: {'; '.join(gpu.users for gpu in in_use)}"


def choose(wanted: int, ids: Sequence[str], reserved: Iterable[str]) -> list[str]:
    """The best `wanted` of `ids`: those first that no job of ours has."""
    if wanted == ALL_GPUS:
        return list(ids)
    claims = Counter(reserved)
    ranked = sorted(ids, key=lambda name: (claims[name], ids.index(name)))
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


def look_here() -> Seen | None:
    """The GPUs of this machine and who uses them; None where nvidia-smi does not tell."""
    try:
        done = subprocess.run(["/bin/sh", "-c", LOOK], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse(done.stdout) if done.returncode == 0 else None


def busy_here(devices: Mapping[str, Sequence[str]], named: bool) -> list[Gpu]:
    """Those of `devices` here that others than our jobs compute on; our jobs hold locks."""
    seen = look_here() if devices else None
    if seen is None:
        return []
    ids = [gpu.number for gpu in seen.gpus if {gpu.number, gpu.uuid} & set(devices)]
    return busy(
        ids, gpu_locks.taken({gpu.number: (gpu.uuid,) for gpu in seen.gpus}, gpu_locks.lock_folder()), seen, named
    )


def _listed_here() -> Mapping[str, str]:
    """The UUID of each GPU by its number."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return dict(re.findall(r"^GPU (\d+):.*\(UUID: ([\w-]+)\)", done.stdout, re.MULTILINE))
