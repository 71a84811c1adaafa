"""One driver per platform behind one contract, loaded when used; one that cannot be loaded says what to install."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from prefect_tao.jobs.errors import InvalidInput, MissingDependency
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.target import Target

# name -> (module, class, extra that brings what the module imports)
DRIVERS: Mapping[str, tuple[str, str, str | None]] = {
    "local-docker": ("prefect_tao.platforms.docker.driver", "DockerPlatform", "docker"),
    "process": ("prefect_tao.platforms.process.driver", "ProcessPlatform", None),
    "remote-docker": ("prefect_tao.platforms.docker.driver", "DockerPlatform", "docker"),
    "slurm": ("prefect_tao.platforms.slurm.driver", "SlurmPlatform", "slurm"),
}


def known(platform: str) -> str:
    """`platform` if there is a driver for it; raises InvalidInput with the nearest name otherwise."""
    if platform in DRIVERS:
        return platform
    near = difflib.get_close_matches(platform, DRIVERS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InvalidInput(f"there is no platform {platform!r}", f"{hint}known platforms: {', '.join(sorted(DRIVERS))}")


def open_platform(target: str, settings: Mapping[str, Any] | None = None) -> Platform:
    """The driver of `target`, made with the settings of its block. Raises InvalidInput, MissingDependency."""
    module_name, class_name, extra = DRIVERS[known(Target.parse(target).platform)]
    try:
        platform: Platform = getattr(import_module(module_name), class_name)(target=target, **(settings or {}))
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"the platform of {target} needs the package {error.name}", f"pip install 'prefect-tao[{extra}]'"
        ) from None
    return platform
