"""One driver per platform behind one contract, loaded when used; one that cannot be loaded says what to install."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from prefect_tao.environment import variables
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import REACHABLE, Finding, Level
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.target import Target
from prefect_tao.platforms.fields import Fields, Variable
from prefect_tao.platforms.registry import registered

SettingsT = TypeVar("SettingsT", bound=Fields)


def drivers() -> list[str]:
    """The platforms that jobs can be launched on."""
    return [name for name, info in registered().items() if info.driver]


def has_driver(platform: str) -> bool:
    """Whether jobs can be launched on this platform."""
    return platform in drivers()


def known(platform: str) -> str:
    """`platform` if there is a driver for it; raises InvalidInput with the nearest name otherwise."""
    names = drivers()
    if platform in names:
        return platform
    near = difflib.get_close_matches(platform, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InvalidInput(f"there is no platform {platform!r}", f"{hint}known platforms: {', '.join(names)}")


def open_platform(target: str, given: Mapping[str, Any] | None = None) -> Platform:
    """The driver of `target`; `given` is what its block says, and variables say the rest.

    Raises InvalidInput, MissingDependency.
    """
    info = registered()[known(Target.parse(target).platform)]
    driver: Any = info.load_driver()
    platform: Platform = driver(target, _settings(target, info.settings, given or {}))
    return platform


def shape_around(platform: str) -> dict[str, Any]:
    """The usual shape of jobs there as variables alone say it; empty where they do not make it up."""
    try:
        return registered()[platform].settings.filled({}, variables()).shape() if platform in registered() else {}
    except (ValueError, InvalidInput):  # opening it says what is wrong
        return {}


def _settings(target: str, kind: type[SettingsT], given: Mapping[str, Any]) -> SettingsT:
    try:
        return kind.filled(given, variables())
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False, include_context=False)
        if not_said := [str(one["loc"][0]) for one in wrong if one["type"] == "missing"]:
            raise _not_set_up(_lacking(target, kind, not_said), _how_to_save(target, kind, not_said)) from None
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong)
        raise InvalidInput(f"the settings of {target} are wrong: {said}", "correct its block or variables") from None


def _not_set_up(cause: str, remedy: str) -> InvalidInput:
    """What a target without a block lacks; which variables those are is found one by one where they are looked for."""
    found = Finding(level=Level.FAIL, subject=REACHABLE, message=cause, remedy=remedy, follows=True)
    return InvalidInput(cause, remedy, [found])


def _lacking(target: str, kind: type[Fields], fields: Sequence[str]) -> str:
    titles = [str(kind.model_fields[field].title or field).lower() for field in fields]
    return f"{target} is not set up: it needs {', '.join(titles)}"


def _how_to_save(target: str, kind: type[Fields], fields: Sequence[str]) -> str:
    platform, marks = Target.parse(target).platform, kind.marked(Variable)
    names = ", ".join(marks[field].name if field in marks else field for field in fields)
    saves = f"prefect-tao setup {platform} --name NAME"
    return f"save them as a block: {saves}, which takes {names} where they are set; then use --target {platform}/NAME"
