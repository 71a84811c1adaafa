"""Whether a GPU host is new enough and has room, judged from what it reports about itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.finding import Finding, Level

_GIB = 1024**3
SCARCE_GIB = 1.0
_NAMES = {"driver": "NVIDIA driver", "cuda": "CUDA", "container_toolkit": "NVIDIA container toolkit"}
# Shown for a person to approve and run; nothing here is ever run by us. CUDA's version is the driver's.
_COMMANDS = {
    "driver": "sudo apt-get install -y nvidia-driver-{major}-open && sudo reboot",
    "cuda": "sudo apt-get install -y cuda-drivers && sudo reboot",
    "container_toolkit": "sudo apt-get install -y nvidia-container-toolkit && "
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
}


def host_minimum(catalog: Catalog, model: str) -> dict[str, str]:
    """The oldest versions that will do: the catalog's, where the model does not say otherwise."""
    entry = catalog.models.get(model)
    return {**catalog.host_minimum, **(entry.host_minimum if entry else {})}


def host_findings(versions: Mapping[str, str], minimum: Mapping[str, str], checked_from: str = "here") -> list[Finding]:
    """One finding per version that has a minimum; one that the host did not report is unknown."""
    return [_compare(name, versions.get(name, ""), wanted, checked_from) for name, wanted in minimum.items()]


def _compare(name: str, found: str, wanted: str, checked_from: str) -> Finding:
    title = _NAMES.get(name, name.replace("_", " "))
    have, need = _numbers(found), _numbers(wanted)
    if not have:
        level, message = Level.UNKNOWN, f"the version of {title} is not known; at least {wanted} is needed"
    elif have < need:
        level, message = Level.FAIL, f"{title} {found} is too old; at least {wanted} is needed"
    else:
        level, message = Level.OK, f"{title} {found}"
    return Finding(
        level=level,
        subject=f"host {name}",
        message=f"host: {message}",
        checked_from=checked_from,
        remedy="" if level is Level.OK else _remedy(name, need),
    )


def _numbers(version: str) -> tuple[int, ...]:
    found = re.search(r"\d+(?:\.\d+)*", version)
    numbers = [int(part) for part in found.group().split(".")] if found else []
    while numbers and not numbers[-1]:  # 13.0 is 13
        numbers.pop()
    return tuple(numbers)


def _remedy(name: str, need: tuple[int, ...]) -> str:
    command = _COMMANDS.get(name, "").format(major=need[0] if need else "")
    return f"on that host, on Debian or Ubuntu: {command}" if command else "install a newer version on that host"


def disk_finding(free: int, wanted_gb: float, where: str, checked_from: str = "here") -> Finding:
    """Whether `free` bytes at `where` are enough: what the model wants, and never less than anything can work with."""
    level, lack = Level.OK, ""
    if free < wanted_gb * _GIB:
        level, lack = Level.FAIL, f", and {wanted_gb:.1f} GiB are needed"
    elif free < SCARCE_GIB * _GIB:
        level, lack = Level.WARN, ", which a training soon fills"
    return Finding(
        level=level,
        subject="disk",
        message=f"disk: {free / _GIB:.1f} GiB free at {where}{lack}",
        checked_from=checked_from,
        remedy="" if level is Level.OK else f"free space at {where}, or choose another place for the results",
    )
