"""Reading and changing nested specs by pointer; unlike the runner's, these make the list elements on the way."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from prefect_tao.runner.inside.pointers import UNSET, get_pointer, parse_pointer

Tree = dict[str, Any]
MISSING = "???"


def put(tree: Tree, pointer: str, value: Any) -> None:
    """Put `value` at `pointer`; maps and lists come into being on the way. Raises ValueError on another shape."""
    steps = parse_pointer(pointer)
    spot: Any = tree
    for step, following in pairwise(steps):
        child = _child(spot, step, pointer)
        if is_unset(child):
            child = [] if isinstance(following, int) else {}
            _assign(spot, step, child, pointer)
        spot = child
    _assign(spot, steps[-1], copy.deepcopy(value), pointer)


def _child(spot: Any, step: str | int, pointer: str) -> Any:
    if isinstance(spot, dict) and isinstance(step, str):
        return spot.get(step)
    if isinstance(spot, list) and isinstance(step, int) and step <= len(spot):
        return spot[step] if step < len(spot) else None
    raise _misfit(spot, step, pointer)


def _assign(spot: Any, step: str | int, value: Any, pointer: str) -> None:
    if isinstance(spot, dict) and isinstance(step, str):
        spot[step] = value
    elif isinstance(spot, list) and isinstance(step, int) and step <= len(spot):
        spot[step : step + 1] = [value]
    else:
        raise _misfit(spot, step, pointer)


def _misfit(spot: Any, step: str | int, pointer: str) -> ValueError:
    if isinstance(spot, list) and isinstance(step, int):
        return ValueError(f"{pointer}: the list before [{step}] has {len(spot)} elements")
    kind = "a map" if isinstance(spot, dict) else "a list" if isinstance(spot, list) else f"the value {spot!r}"
    return ValueError(f"{pointer}: what holds {step!r} is {kind}")


def merge(base: Tree, over: Mapping[str, Any]) -> None:
    """Lay `over` on `base`: maps are joined, all else is replaced, and a ??? never hides a value."""
    for key, value in over.items():
        mine = base.get(key)
        if isinstance(mine, dict) and isinstance(value, Mapping):
            merge(mine, value)
        elif value != MISSING or is_unset(mine):
            base[key] = copy.deepcopy(value)


def is_unset(value: Any) -> bool:
    """Whether a leaf still waits for its value."""
    return not isinstance(value, (dict, list)) and value in UNSET


def is_blank(value: Any) -> bool:
    """Whether `value` holds no value at all: unset, empty, or made of such parts only."""
    if isinstance(value, dict):
        return all(is_blank(inner) for inner in value.values())
    if isinstance(value, list):
        return all(is_blank(inner) for inner in value)
    return is_unset(value)


def expand(tree: Tree, pointer: str) -> Iterator[str]:
    """`a[0].b` for every element that the list at `a` has; at least for the first."""
    head, mark, tail = pointer.partition("[0]")
    if not mark:
        yield pointer
        return
    value = get_pointer(tree, head)
    for index in range(max(1, len(value) if isinstance(value, list) else 1)):
        yield f"{head}[{index}]{tail}"


def covers(outer: str, inner: str) -> bool:
    """Whether `inner` is `outer` itself or lies below it."""
    return inner == outer or (inner.startswith(outer) and inner[len(outer)] in ".[")


def without_nulls(tree: Any, keep: frozenset[str], prefix: str = "") -> Any:
    """A copy without null values, for formats that have none; the pointers in `keep` stay."""
    if isinstance(tree, dict):
        spots = {key: f"{prefix}.{key}" if prefix else key for key in tree}
        return {
            key: without_nulls(value, keep, spots[key])
            for key, value in tree.items()
            if value is not None or spots[key] in keep
        }
    if isinstance(tree, list):
        return [without_nulls(value, keep, f"{prefix}[{index}]") for index, value in enumerate(tree)]
    return tree
