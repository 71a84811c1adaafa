"""Between which limits a parameter is searched: the catalog's, closed where they are open, or a person's own."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefect_tao.catalog.nouns import SearchParameter
from prefect_tao.catalog.skill_info import schema_leaf
from prefect_tao.jobs.errors import InvalidInput

DECADES = 1000  # from this ratio of its ends on, a range is searched by orders of magnitude
KEYS = ("valid_min", "valid_max", "valid_options", "option_weights", "depends_on", "disable_list")


@dataclass(frozen=True)
class Limits:
    """The range or the choices of one parameter, and the value to start from."""

    name: str
    start: Any
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    options: tuple[Any, ...] = ()
    weights: tuple[float, ...] = ()
    depends_on: str = ""
    is_single: bool = False  # one number, where the spec could also have a list of them

    def within(self, low: float | None = None, high: float | None = None) -> Limits:
        """The same with narrower ends. Raises InvalidInput when nothing is left."""
        low = self.low if low is None else max(low, self.low)
        high = self.high if high is None else min(high, self.high)
        if not (math.isfinite(low) and math.isfinite(high)) or low > high:
            raise InvalidInput(f"{self.name}: there is nothing to search between {low:g} and {high:g}")
        return replace(self, low=low, high=high)


def limits_of(parameter: SearchParameter, start: Any, own: Mapping[str, Any] | None) -> Limits:
    """Where a parameter is searched. Without a person's own range, its own value lies inside. Raises InvalidInput."""
    own = _known(parameter.name, own or {})
    found = Limits(parameter.name, start, log=parameter.log, depends_on=str(own.get("depends_on") or ""))
    if own.get("disable_list") is True:
        start = start[0] if isinstance(start, list) and start else start
        found = replace(found, start=start, is_single=True)
    options = _options(parameter, own)
    if options or parameter.type in ("bool", "categorical"):
        return replace(found, options=options, weights=_weights(parameter, own, options))
    low, high = _ends(parameter, start) if not parameter.type.startswith("list") else (parameter.min, parameter.max)
    low, high = _number(parameter.name, own, "valid_min", low), _number(parameter.name, own, "valid_max", high)
    if low is None or high is None:
        raise InvalidInput(f"{parameter.name}: its range is not known", "give valid_min and valid_max for it")
    return _open(parameter, replace(found, low=low, high=high)).within()


def check_ranges(names: Sequence[str], ranges: Mapping[str, Mapping[str, Any]], schema: Mapping[str, Any]) -> None:
    """Each range is one of a parameter that is searched, and within what the schema allows. Raises InvalidInput."""
    for name, own in ranges.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            remedy = f"did you mean {near[0]}?" if near else f"searched are {', '.join(names)}"
            raise InvalidInput(f"{name} has a range, but is not searched", remedy)
        leaf = schema_leaf(schema, name) or {}
        lows = [float(leaf[key]) for key in ("minimum", "exclusiveMinimum") if _is_number(leaf.get(key))]
        highs = [float(leaf[key]) for key in ("maximum", "exclusiveMaximum") if _is_number(leaf.get(key))]
        given = [own[key] for key in ("valid_min", "valid_max") if _is_number(own.get(key))]
        wrong = [one for one in given if (lows and one < max(lows)) or (highs and one > min(highs))]
        if wrong:
            allowed = f"from {max(lows):g} " if lows else ""
            allowed += f"up to {min(highs):g}" if highs else "on"
            raise InvalidInput(f"{name}: {wrong[0]:g} is outside what the schema allows", f"it takes values {allowed}")


def _known(name: str, own: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in own:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            remedy = f"did you mean {near[0]}?" if near else f"a range has {', '.join(KEYS)}"
            raise InvalidInput(f"{name}: a range has no {key}", remedy)
    return own


def _options(parameter: SearchParameter, own: Mapping[str, Any]) -> tuple[Any, ...]:
    asked = tuple(own.get("valid_options") or parameter.options)
    wrong = [one for one in asked if parameter.options and one not in parameter.options]
    if wrong:
        there = ", ".join(map(str, parameter.options))
        raise InvalidInput(f"{parameter.name}: {wrong[0]!r} is not one of its options", f"choose from {there}")
    without = own.get("disable_list")
    left = tuple(one for one in asked if one not in (without if isinstance(without, list | tuple) else ()))
    if asked and not left:
        raise InvalidInput(f"{parameter.name}: disable_list leaves no option", "leave the parameter out instead")
    return left


def _weights(parameter: SearchParameter, own: Mapping[str, Any], options: tuple[Any, ...]) -> tuple[float, ...]:
    given = own.get("option_weights")
    if given is None:
        by_option = dict(zip(parameter.options, parameter.weights, strict=False))
        return tuple(by_option.get(one, 0.0) for one in options) if by_option else ()
    if len(given) != len(options) or any(not _is_number(one) or one < 0 for one in given) or not sum(given):
        raise InvalidInput(f"{parameter.name}: option_weights must be {len(options)} numbers, not all of them 0")
    return tuple(map(float, given))


def _ends(parameter: SearchParameter, start: Any) -> tuple[float, float]:
    """The catalog's ends; what it leaves open is closed around the value to start from, which lies inside."""
    value = float(start) if _is_number(start) else None
    low = parameter.min if parameter.min is not None else _below(value)
    high = parameter.max if parameter.max is not None else _above(value, low)
    if value is None:
        return low, high
    return min(low, value), max(high, value)


def _below(value: float | None) -> float:
    return value / 10 if value and value > 0 else 10 * value if value else 0.0


def _above(value: float | None, low: float) -> float:
    return value * 10 if value and value > 0 else max(1.0, low + 1.0)


def _open(parameter: SearchParameter, limits: Limits) -> Limits:
    """Limits under a condition such as `> 0`."""
    relation, _, operand = parameter.condition.partition(" ")
    try:
        bound = float(operand)
    except ValueError:
        return limits
    is_whole = parameter.type in ("int", "ordered_int")
    least = 1.0 if is_whole else (limits.high - limits.low) / 1000
    if relation in (">", ">="):
        above = bound + (least if relation == ">" and limits.low <= bound else 0.0)
        return limits.within(low=above)
    if relation in ("<", "<="):
        return limits.within(high=bound - (least if relation == "<" and limits.high >= bound else 0.0))
    return limits


def _number(name: str, own: Mapping[str, Any], key: str, otherwise: float | None) -> float | None:
    value = own.get(key)
    if value is None:
        return otherwise
    if not _is_number(value) or not math.isfinite(value):
        raise InvalidInput(f"{name}: {key} must be a number, not {value!r}")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
