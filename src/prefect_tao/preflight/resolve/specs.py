"""The spec of a launch: layers from template to single keys, later ones win; then the checks of what came out."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from prefect_tao.catalog.nouns import ActionEntry, ModelEntry, PlatformEntry
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.request import Resources
from prefect_tao.preflight.resolve.datasets import example_root, is_training
from prefect_tao.preflight.resolve.given import Given
from prefect_tao.preflight.resolve.problems import CLOSE, did_you_mean, fail, nearest, setting, warn
from prefect_tao.preflight.resolve.schema import check_parameter, check_value, find_leaf
from prefect_tao.preflight.resolve.trees import MISSING, Tree, covers, expand, is_blank, is_unset, merge, put
from prefect_tao.runner.inside.pointers import get_pointer, walk

MANY_KEYS = 500  # a larger file was hardly typed by hand, and comparing names takes a millisecond each
_PATH_WORDS = ("path", "dir", "file", "root", "checkpoint", "folder", "json", "engine")


def base_spec(name: str, model: ModelEntry, action: ActionEntry) -> Tree:
    """The template with the model's defaults; those of the train section only where it trains or is in the template."""
    tree = copy.deepcopy(action.template)
    for pointer, value in model.defaults.items():
        if is_training(name) or not covers("train", pointer) or get_pointer(tree, pointer) is not None:
            _lay_over(tree, pointer, value)
    return tree


def count_key(name: str, model_key: str | None, action: ActionEntry) -> str | None:
    """The key for the GPUs or nodes of an action; actions that do not train have their own section, or none."""
    if model_key is None or is_training(name) or not covers("train", model_key):
        return model_key if model_key and _has_key(action, model_key, is_training(name)) else None
    own = name + model_key.removeprefix("train")
    return own if _has_key(action, own, False) else None


def _has_key(action: ActionEntry, key: str, otherwise: bool) -> bool:
    if action.mode != "config":
        return key in action.template
    if action.full_schema:
        return find_leaf(action.full_schema, key)[1]
    return otherwise or get_pointer(action.template, key) is not None


def count_values(gpu_key: str | None, node_key: str | None, resources: Resources) -> dict[str, Any]:
    """The values that make a spec use the compute shape."""
    values: dict[str, Any] = {}
    if gpu_key and resources.gpus > 0:
        values[gpu_key] = resources.gpus
        if gpu_key.endswith(".num_gpus") and resources.gpus > 1:
            # A training that gets a number without the ids waits for ranks that never start.
            values[gpu_key.removesuffix("num_gpus") + "gpu_ids"] = list(range(resources.gpus))
    if node_key:
        values[node_key] = resources.nodes
    return values


def lay_datasets(tree: Tree, values: Mapping[str, Any]) -> None:
    """Put dataset values into `tree`; a list gets one element per root, each with what the template's first one has."""
    lengths: dict[str, int] = {}
    for pointer in values:
        if indexed := re.match(r"(.*?)\[(\d+)\]", pointer):
            lengths[indexed[1]] = max(lengths.get(indexed[1], 0), int(indexed[2]) + 1)
    for head, length in lengths.items():
        old = get_pointer(tree, head)
        first = old[0] if isinstance(old, list) and old else None
        put(tree, head, [copy.deepcopy(first) for _ in range(length)])
    for pointer, value in values.items():
        put(tree, pointer, value)


def lay_values(tree: Tree, values: Mapping[str, Any]) -> None:
    """Put values into `tree`; what is meant for the first element of a list is meant for all."""
    for pointer, value in values.items():
        for spot in expand(tree, pointer):
            put(tree, spot, value)


def lay_given(tree: Tree, given: Given, datasets: Mapping[str, Any], flat: bool) -> list[Finding]:
    """Lay what a person gave over the rest; what the file left open of the datasets is filled from the roots again."""
    findings = []
    merge(tree, given.spec)
    for pointer, value in given.overrides.items():
        if flat:
            tree[pointer] = value
            continue
        try:
            _lay_over(tree, pointer, value)
        except ValueError as error:
            findings.append(fail(pointer, str(error), "correct the key, or set the object that contains it"))
    for pointer, value in datasets.items():
        if not given.is_direct(pointer) and is_unset(get_pointer(tree, pointer)) and _has_place(tree, pointer):
            put(tree, pointer, value)
    return findings


def _lay_over(tree: Tree, pointer: str, value: Any) -> None:
    there = get_pointer(tree, pointer)
    if isinstance(there, dict) and isinstance(value, Mapping):
        merge(there, value)
    else:
        put(tree, pointer, value)


def _has_place(tree: Tree, pointer: str) -> bool:
    """Whether the lists on the way have the elements that `pointer` names: a person's own list is never extended."""
    ends = [mark.end() for mark in re.finditer(r"\]", pointer)]
    places = [get_pointer(tree, pointer[:end]) for end in ends if end < len(pointer)]
    if any(not isinstance(place, dict) for place in places):
        return False
    return not pointer.endswith("]") or get_pointer(tree, pointer) is not None


# -- checks ------------------------------------------------------------------------------------------------------------


def check_given(given: Given, model: ModelEntry, action: ActionEntry) -> list[Finding]:
    """Every given value against the schema, or where there is none against what the catalog knows."""
    if action.full_schema:
        return _fit_schema(action.full_schema, given, model, action)
    parameters = {parameter.name: parameter for parameter in model.automl.parameters}
    known = known_keys(model, action)
    found: list[Finding] = []
    others: dict[str, str] = {}
    for pointer, value in given.values.items():
        if pointer in parameters:
            found += check_parameter(parameters[pointer], value)
        else:
            others.setdefault(_first_element(pointer), pointer)
    if len(others) <= MANY_KEYS:
        found += [one for pointer in others.values() for one in _resembles(pointer, known)]
    return found


def _fit_schema(schema: Mapping[str, Any], given: Given, model: ModelEntry, action: ActionEntry) -> list[Finding]:
    """What the schema refuses; a key that the catalog itself names for the action is one, whatever the schema says."""
    known = known_keys(model, action)
    found: list[Finding] = []
    for pointer, value in given.values.items():
        plain = _first_element(pointer)
        if find_leaf(schema, pointer)[1] or not any(covers(key, plain) for key in known):
            found += check_value(schema, pointer, value, model.shorthand)
    return found


def let_through(findings: Iterable[Finding], keys: Sequence[str]) -> list[Finding]:
    """The findings, those about `keys` as warnings: a person knows of an image that is newer than the schema."""
    return [
        warn(f"allowed {one.subject}", f"{one.message}; let through by allow_keys", "", one.gate)
        if one.blocks and any(covers(key, one.subject) for key in keys)
        else one
        for one in findings
    ]


def known_keys(model: ModelEntry, action: ActionEntry) -> set[str]:
    """All keys that the catalog names for an action, and the shorthand words."""
    named: Iterable[str | None] = (
        *(pointer for pointer, _ in walk(action.template)),
        *action.inputs,
        *action.outputs,
        *action.datasets,
        *action.handoff,
        *model.shorthand,
        *model.shorthand.values(),
        *model.defaults,
        *(parameter.name for parameter in model.automl.parameters),
        model.gpu_key,
        model.node_key,
    )
    return {_first_element(key) for key in named if key}


def _first_element(pointer: str) -> str:
    return re.sub(r"\[\d+\]", "[0]", pointer)


def _resembles(pointer: str, known: set[str]) -> list[Finding]:
    plain = _first_element(pointer)
    if any(covers(plain, key) or covers(key, plain) for key in known):
        return []
    close = nearest(plain, known, 2, CLOSE)
    if not close:
        return []
    message = f"{pointer}: not a key that the catalog knows for this action"
    return [warn(pointer, message, did_you_mean(close, ""))]


def leftovers(
    tree: Tree, model: str, action: ActionEntry, platform: PlatformEntry, said: Iterable[str]
) -> list[Finding]:
    """A finding for every ??? that is left, and for every required input without a value; `said` are reported."""
    said, unneeded = list(said), {*action.outputs, *action.idle_keys}
    waiting = {pointer: True for pointer, value in walk(tree) if value == MISSING and pointer not in unneeded}
    required = (pointer for pointer, value in walk(action.template) if value == MISSING and pointer not in unneeded)
    waiting |= {pointer: True for pointer in required if get_pointer(tree, pointer) == ""}
    for key, rule in action.inputs.items():
        optional = rule.get("optional") or rule.get("type") == "local_glob" or _is_optional_dataset(action, key)
        if not optional and is_blank(get_pointer(tree, key)):
            waiting[key] = True
    return [
        _no_value(pointer, action, example_root(platform, model, "train"))
        for pointer in waiting
        if not any(covers(key, pointer) or covers(pointer, key) for key in said)
    ]


def _is_optional_dataset(action: ActionEntry, pointer: str) -> bool:
    return any(rule.optional and covers(key, pointer) for key, rule in action.datasets.items())


def _no_value(pointer: str, action: ActionEntry, root: str) -> Finding:
    example = "VALUE"
    leaf = find_leaf(action.full_schema, pointer)[0] if action.full_schema else None
    if leaf and leaf.get("enum"):
        example = str(leaf["enum"][0])
    elif action.inputs.get(pointer, {}).get("type") == "list":
        example = "[VALUE, VALUE]"
    elif pointer in action.inputs or pointer.rpartition(".")[2].rpartition("_")[2] in _PATH_WORDS:
        example = root.rpartition("/")[0] + "/" + pointer.rpartition(".")[2]
    return fail(
        pointer,
        f"{pointer}: no value yet; one is required",
        f"give it, for example {setting(pointer, example)}",
    )


def clear_optional(tree: Tree, action: ActionEntry) -> None:
    """Empty the ??? of what may stay empty: outputs, which the runner fills, and inputs that are optional."""
    free = [*action.outputs, *(key for key, rule in action.inputs.items() if rule.get("optional"))]
    free += [key for key, word in action.handoff.items() if word in ("resume_model", "output_dir")]
    for key in free:
        for spot in expand(tree, key):
            if get_pointer(tree, spot) == MISSING:
                put(tree, spot, None)
    for key, rule in action.datasets.items():
        value = get_pointer(tree, key)
        if rule.optional and value is not None and is_blank(value):
            put(tree, key, [] if isinstance(value, list) else None)


def open_resume(tree: Tree, action: ActionEntry) -> None:
    """Give every resume key a place in the spec, so that the runner can point it at an earlier attempt's checkpoint."""
    for key, word in action.handoff.items():
        if word == "resume_model" and get_pointer(tree, key) is None and action.config_format != "toml":
            put(tree, key, None)
