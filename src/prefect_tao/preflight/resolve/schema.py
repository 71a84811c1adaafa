"""Whether given values fit an action's schema: known keys, types, ranges and choices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prefect_tao.catalog.nouns import SearchParameter
from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.resolve.problems import did_you_mean, fail, nearest, setting, shown, warn
from prefect_tao.preflight.resolve.trees import MISSING
from prefect_tao.runner.inside.pointers import parse_pointer

Schema = Mapping[str, Any]
_CONDITION = re.compile(r"\s*(>=|<=|>|<)\s*([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")
_KINDS = {
    "number": "float",
    "integer": "int",
    "ordered_int": "int",
    "boolean": "bool",
    "array": "list",
    "str": "string",
    "dict": "object",
    "collection": "object",
}
_EXPECTED = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "object": "a map",
}
_EXAMPLES = {"float": 0.001, "int": 1, "bool": "true", "string": "text", "list": "[1, 2]", "object": "{a: 1}"}


def check_value(schema: Schema, pointer: str, value: Any, words: Iterable[str] = ()) -> list[Finding]:
    """What is wrong with `value` at `pointer`; maps are looked into. `words` are short for keys."""
    if isinstance(value, Mapping) and value:
        return [one for key, inner in value.items() for one in check_value(schema, f"{pointer}.{key}", inner)]
    leaf, known = find_leaf(schema, pointer)
    if not known:
        return [_unknown([*words, *leaf_pointers(schema)], pointer, value)]
    return [] if leaf is None else check_leaf(leaf, pointer, value)


def find_leaf(schema: Schema, pointer: str) -> tuple[Schema | None, bool]:
    """The schema at `pointer`, None where it leaves everything open, and whether the key is known at all."""
    node = schema
    try:
        steps = parse_pointer(pointer)
    except ValueError:
        return None, False
    for step in steps:
        if isinstance(step, int):
            if not isinstance(node.get("items"), Mapping):
                return None, True
            node = node["items"]
            continue
        inside = node.get("properties")
        if not isinstance(inside, Mapping) or not inside:
            return None, node is schema or _kind(node) in ("object", "list", "")
        if not isinstance(inside.get(step), Mapping):
            return None, bool(node.get("additionalProperties"))
        node = inside[step]
    return node, True


def leaf_pointers(schema: Schema, prefix: str = "") -> Iterator[str]:
    """All keys that a schema knows."""
    for key, node in (schema.get("properties") or {}).items():
        pointer = f"{prefix}.{key}" if prefix else key
        yield pointer
        if isinstance(node, Mapping):
            yield from leaf_pointers(node, pointer)


def check_parameter(parameter: SearchParameter, value: Any) -> list[Finding]:
    """What is wrong with a value by what AutoML knows of its key: type and choice bind, the searched range only warns.

    The range is the one worth searching, which is often narrower than what the model can run with.
    """
    name = parameter.name
    found = check_leaf(
        {"type": parameter.type, "enum": list(parameter.options), "math_cond": parameter.condition}, name, value
    )
    range_only = {"minimum": parameter.min, "maximum": parameter.max}
    if found or isinstance(value, bool) or not isinstance(value, (int, float)):
        return found
    if expected := _out_of_range(range_only, value):
        message = f"{name}: {shown(value)} is outside the usual range; expected {expected}"
        return [warn(name, message, "check that it is intended")]
    return []


def check_leaf(leaf: Schema, pointer: str, value: Any) -> list[Finding]:
    """What is wrong with one value: its type first, then its range or choice."""
    if value is None or value == MISSING:
        return []
    kind = _kind(leaf)
    choices = [choice for choice in leaf.get("enum") or () if choice not in (None, "")]
    if choices and kind != "list":
        return [] if _among(value, choices) else [_not_a_choice(pointer, value, choices)]
    if not _is_kind(kind, value):
        example = _EXAMPLES.get(kind, "value")
        remedy = f"write {setting(pointer, leaf.get('default') or example)}"
        return [_wrong(pointer, value, _EXPECTED[kind], remedy)]
    if kind in ("float", "int") and (expected := _out_of_range(leaf, value)):
        return [_wrong(pointer, value, expected, "choose a value in that range")]
    return []


def _kind(leaf: Schema) -> str:
    name = str(leaf.get("type") or "")
    name = _KINDS.get(name, name)
    return "list" if name.startswith("list") else name


def _is_kind(kind: str, value: Any) -> bool:
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    types: dict[str, type | tuple[type, ...]] = {
        "bool": bool,
        "string": str,
        "list": (list, tuple),
        "object": Mapping,
    }
    return kind not in types or isinstance(value, types[kind])


def _among(value: Any, choices: list[Any]) -> bool:
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)


def _out_of_range(leaf: Schema, value: float) -> str:
    least, most = _number(leaf.get("minimum")), _number(leaf.get("maximum"))
    if least is not None and value < least:
        return f"{least:g} or more"
    if most is not None and value > most:
        return f"{most:g} or less"
    above, below = _number(leaf.get("exclusiveMinimum")), _number(leaf.get("exclusiveMaximum"))
    if above is not None and value <= above:
        return f"more than {above:g}"
    if below is not None and value >= below:
        return f"less than {below:g}"
    condition = _CONDITION.fullmatch(str(leaf.get("math_cond") or ""))
    if condition and not _holds(value, condition[1], float(condition[2])):
        return f"a number {condition[1]} {condition[2]}"
    return ""


def _holds(value: float, sign: str, bound: float) -> bool:
    return {">": value > bound, ">=": value >= bound, "<": value < bound, "<=": value <= bound}[sign]


def _number(value: Any) -> float | None:
    """A bound; generated schemas also write inf, -inf or nothing."""
    try:
        return None if value in (None, "") else float(value)
    except (TypeError, ValueError):
        return None


def _by_last_name(pointer: str, known: Sequence[str]) -> list[str]:
    """Keys whose last name comes close: people leave out where it stands."""
    names = nearest(pointer.rpartition(".")[2], {key.rpartition(".")[2] for key in known}, 1)
    return [key for key in known if key.rpartition(".")[2] in names][:3]


def _unknown(known: Sequence[str], pointer: str, value: Any) -> Finding:
    close = nearest(pointer, known) or _by_last_name(pointer, known)
    return fail(
        pointer,
        f"{pointer}: not a key of this action's spec (got {shown(value)})",
        did_you_mean(close, f"remove it, or where a newer image knows it: --allow-key {pointer} (allow_keys=[...])"),
    )


def _not_a_choice(pointer: str, value: Any, choices: list[Any]) -> Finding:
    close = nearest(str(value), map(str, choices), 1)
    return _wrong(pointer, value, f"one of {', '.join(map(str, choices))}", did_you_mean(close, "choose one of these"))


def _wrong(pointer: str, value: Any, expected: str, remedy: str) -> Finding:
    return fail(pointer, f"{pointer}: {shown(value)}; expected {expected}", remedy)
