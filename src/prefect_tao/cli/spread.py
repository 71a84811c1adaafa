"""Commands that share options: a parameter that is a dataclass becomes one option per field."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with each of its dataclass parameters spread out, so that typer makes an option of every field."""
    hints = get_type_hints(command, include_extras=True)
    shared = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}

    @functools.wraps(command)
    def called(**given: Any) -> None:
        for name, kind in shared.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if kind := shared.get(parameter.name):
            parameters += _fields(kind)
        else:
            parameters.append(_keyword(parameter.name, parameter.default, hints[parameter.name]))
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _fields(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [_keyword(field.name, field.default, hints[field.name]) for field in fields(kind)]


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
