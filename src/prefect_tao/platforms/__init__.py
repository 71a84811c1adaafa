"""One driver per platform behind one contract, loaded when used; one that cannot be loaded says what to install."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

from pydantic import ValidationError

from prefect_tao.environment import variables
from prefect_tao.jobs.errors import InvalidInput, MissingDependency
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.target import Target
from prefect_tao.platforms.docker.settings import DockerSettings
from prefect_tao.platforms.fields import Fields, Variable
from prefect_tao.platforms.process.settings import ProcessSettings
from prefect_tao.platforms.slurm.settings import SlurmSettings

SettingsT = TypeVar("SettingsT", bound=Fields)

# name -> (module, class, extra that brings what the module imports)
DRIVERS: Mapping[str, tuple[str, str, str | None]] = {
    "local-docker": ("prefect_tao.platforms.docker.driver", "DockerPlatform", "docker"),
    "process": ("prefect_tao.platforms.process.driver", "ProcessPlatform", None),
    "remote-docker": ("prefect_tao.platforms.docker.driver", "DockerPlatform", "docker"),
    "slurm": ("prefect_tao.platforms.slurm.driver", "SlurmPlatform", "slurm"),
}
SETTINGS: Mapping[str, type[Fields]] = {
    "local-docker": DockerSettings,
    "process": ProcessSettings,
    "remote-docker": DockerSettings,
    "slurm": SlurmSettings,
}


def known(platform: str) -> str:
    """`platform` if there is a driver for it; raises InvalidInput with the nearest name otherwise."""
    if platform in DRIVERS:
        return platform
    near = difflib.get_close_matches(platform, DRIVERS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InvalidInput(f"there is no platform {platform!r}", f"{hint}known platforms: {', '.join(sorted(DRIVERS))}")


def open_platform(target: str, given: Mapping[str, Any] | None = None) -> Platform:
    """The driver of `target`; `given` is what its block says, and variables say the rest.

    Raises InvalidInput, MissingDependency.
    """
    name = known(Target.parse(target).platform)
    module_name, class_name, extra = DRIVERS[name]
    try:
        driver = getattr(import_module(module_name), class_name)
        platform: Platform = driver(target, _settings(target, SETTINGS[name], given or {}))
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"the platform of {target} needs the package {error.name}", f"pip install 'prefect-tao[{extra}]'"
        ) from None
    return platform


def _settings(target: str, kind: type[SettingsT], given: Mapping[str, Any]) -> SettingsT:
    try:
        return kind.filled(given, variables())
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False, include_context=False)
        if not_said := [str(one["loc"][0]) for one in wrong if one["type"] == "missing"]:
            raise InvalidInput(_lacking(target, kind, not_said), _how_to_save(target, kind, not_said)) from None
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong)
        raise InvalidInput(f"the settings of {target} are wrong: {said}", "correct its block or variables") from None
    except ValueError as error:  # the file with variables cannot be read
        raise InvalidInput(str(error)) from None


def _lacking(target: str, kind: type[Fields], fields: Sequence[str]) -> str:
    titles = [str(kind.model_fields[field].title or field).lower() for field in fields]
    return f"{target} is not set up: it needs {', '.join(titles)}"


def _how_to_save(target: str, kind: type[Fields], fields: Sequence[str]) -> str:
    platform, marks = Target.parse(target).platform, kind.marked(Variable)
    names = ", ".join(marks[field].name if field in marks else field for field in fields)
    saves = f"prefect-tao setup {platform} --name NAME"
    return f"save them as a block: {saves}, which takes {names} where they are set; then use --target {platform}/NAME"
