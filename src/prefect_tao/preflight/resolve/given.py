"""What a person wrote into the spec: a file's nested map and single keys, kept apart from what the catalog fills in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from prefect_tao.catalog.nouns import ActionEntry, ModelEntry
from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.resolve.ask import Ask
from prefect_tao.preflight.resolve.problems import fail, setting, shown
from prefect_tao.preflight.resolve.trees import MISSING, Tree, covers, is_unset, merge, put
from prefect_tao.runner.inside.pointers import parse_pointer, walk

_EXPONENT = re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+")


@dataclass
class Given:
    """The file's map, the single keys by pointer, and what is wrong with them."""

    spec: Tree = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @cached_property
    def values(self) -> dict[str, Any]:
        """Everything given, by pointer; single keys win over the file, and what is unset in a file was not given."""
        from_file = {pointer: value for pointer, value in walk(self.spec) if not is_unset(value)}
        return from_file | {pointer: value for pointer, value in self._single() if value != MISSING}

    def _single(self) -> Iterator[tuple[str, Any]]:
        """The single keys; a map is laid over what is there, so only what it names counts as given."""
        for pointer, value in self.overrides.items():
            yield from walk_maps(value, pointer)

    def is_direct(self, pointer: str) -> bool:
        """Whether a person gave `pointer` itself, or the whole of what it is part of."""
        return any(covers(key, pointer) for key in self.values)

    def is_declined(self, pointer: str) -> bool:
        """Whether a person said that `pointer` is to stay empty."""
        return any(covers(key, pointer) and value is None for key, value in self.overrides.items())

    def get(self, pointer: str | None) -> Any:
        """The value given at exactly this pointer."""
        return self.values.get(pointer) if pointer else None


def read_given(ask: Ask, model: ModelEntry, action: ActionEntry) -> Given:
    """The ask's spec and overrides, with shorthand words replaced by the keys they mean."""
    given = Given()
    if action.mode == "passthrough":
        if ask.spec or ask.overrides:
            message = f"spec: {', '.join([*ask.spec, *ask.overrides])} given, but {ask.action} runs a plain command"
            given.findings.append(fail("spec", message, "leave the spec out; such an action takes none"))
        return given
    flat = action.mode == "args"
    _read_spec(given, ask.spec, flat)
    for word, value in ask.overrides.items():
        pointer = model.shorthand.get(word, word)
        if pointer in given.overrides and given.overrides[pointer] != numbers(value):
            message = f"{pointer}: given twice, as {shown(given.overrides[pointer])} and {shown(value)}"
            given.findings.append(fail(pointer, message, "give it once"))
        elif flat or _is_pointer(given, pointer, value):
            given.overrides[pointer] = numbers(value)
    return given


def _is_pointer(given: Given, pointer: str, value: Any) -> bool:
    try:
        parse_pointer(pointer)
    except ValueError:
        message = f"{pointer!r}: not a key of a spec (value {shown(value)})"
        remedy = "pointers look like train.num_epochs or dataset.train_data_sources[0].image_dir"
        given.findings.append(fail(pointer, message, remedy))
        return False
    return True


def _read_spec(given: Given, spec: Mapping[str, Any], flat: bool) -> None:
    """Take the file's map. A flat dotted key is refused, yet its value is used to look for further problems."""
    merge(given.spec, {key: numbers(value) for key, value in spec.items() if flat or not _is_dotted(key)})
    if flat:
        return
    for key, value in spec.items():
        if not _is_dotted(key):
            continue
        given.findings.append(_flat_key(key, value))
        try:
            put(given.spec, key, numbers(value))
        except ValueError:
            continue
    for key in _dotted_below(given.spec):
        given.findings.append(_flat_key(key, ...))


def _is_dotted(key: object) -> bool:
    return isinstance(key, str) and "." in key and not key.startswith(".")


def _dotted_below(tree: Any) -> list[str]:
    if isinstance(tree, Mapping):
        own = [key for key in tree if _is_dotted(key)]
        return own + [found for value in tree.values() for found in _dotted_below(value)]
    return [found for value in tree for found in _dotted_below(value)] if isinstance(tree, list) else []


def _flat_key(key: str, value: Any) -> Finding:
    parts = key.split(".")
    example = "{" + ": {".join(parts) + ": ..." + "}" * len(parts)
    of = "" if value is ... else f" (value {shown(value)})"
    return fail(
        key,
        f"{key}: a flat key in the spec file{of}; a spec file holds nested maps",
        f"write {example} in the file, or give it as {setting(key, '...')}",
    )


def walk_maps(value: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    """The leaves of nested maps by pointer; a list, or an empty map, is a leaf."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from walk_maps(inner, f"{pointer}.{key}")
    else:
        yield pointer, value


def numbers(value: Any) -> Any:
    """`value` with numbers such as 1e-4 as numbers: YAML takes them for text, TAO for numbers."""
    if isinstance(value, Mapping):
        return {key: numbers(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [numbers(inner) for inner in value]
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
