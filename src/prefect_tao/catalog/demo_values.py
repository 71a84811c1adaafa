"""What in a skill bank's spec templates is only there as an example, or only for another action.

A template shows where things would be: `/data/eval`, `/results/dino.engine`, `<required>`. None of them was given by
the person who launches, so they become ???, the mark of a value that is still missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MISSING = "???"
# What the job fetches by itself is a real default, such as pretrained weights.
_FETCHED = ("hf_model://", "hf_dataset://", "ngc://")
_PLACEHOLDER = re.compile(r"<[^<>]+>")
_INDEX = re.compile(r"\[\d+\]")


def without_demo_values(template: Mapping[str, Any], action: Mapping[str, Any]) -> dict[str, Any]:
    """The template without examples at the keys that `action` declares, and without placeholders anywhere."""
    words = action.get("handoff") or {}
    handed = [key for key, word in words.items() if str(word).startswith(("parent", "resume"))]
    inputs = action.get("inputs") or {}
    plain = [key for key, rule in inputs.items() if (rule or {}).get("type") != "list"]
    given = [*plain, *(action.get("datasets") or {}), *handed]
    cleared: dict[str, Any] = _mapped(template, "", given, list(action.get("outputs") or {}))
    return cleared


def _mapped(value: Any, pointer: str, given: Iterable[str], made: Iterable[str]) -> Any:
    if isinstance(value, Mapping):
        spots = {key: f"{pointer}.{key}" if pointer else str(key) for key in value}
        return {key: _mapped(inner, spots[key], given, made) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, f"{pointer}[{index}]", given, made) for index, inner in enumerate(value)]
    if not isinstance(value, str):
        return value
    if _PLACEHOLDER.fullmatch(value.strip()):
        return MISSING
    if _is_among(pointer, made) and value.startswith("/"):
        return None  # the runner chooses the place
    if value and _is_among(pointer, given) and not value.startswith(_FETCHED):
        return MISSING
    return value


def idle_keys(name: str, actions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The missing values of an action's template that only other actions read: their sections, and their data."""
    own = actions[name]
    sections = {part for other in actions for part in (other, other.removeprefix("trt_"))}
    sections = {section for section in sections if section not in name}
    elsewhere = [key for other, fields in actions.items() if other != name for key in _declared(fields)]
    return [
        pointer for pointer in undeclared(own) if pointer.partition(".")[0] in sections or _is_among(pointer, elsewhere)
    ]


def undeclared(action: Mapping[str, Any]) -> list[str]:
    """The missing values of an action's template that it declares nowhere else."""
    return [pointer for pointer in _missing(action.get("template") or {}) if not _is_among(pointer, _declared(action))]


def _declared(action: Mapping[str, Any]) -> list[str]:
    return [key for part in ("inputs", "outputs", "datasets", "handoff") for key in action.get(part) or {}]


def _is_among(pointer: str, keys: Iterable[str]) -> bool:
    """Whether the value at `pointer` is that of one of `keys`, or part of it; of a list the first stands for all."""
    plain = _INDEX.sub("", pointer)
    return any(plain == key or plain.startswith(f"{key}.") for key in (_INDEX.sub("", one) for one in keys))


def _missing(value: Any, pointer: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _missing(inner, f"{pointer}.{key}" if pointer else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _missing(inner, f"{pointer}[{index}]")
    elif value == MISSING:
        yield pointer
