"""What a search may vary: one axis for each number or choice, and what a point on them means in a spec."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from prefect_tao.catalog.nouns import SearchParameter
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.searching.ranges import DECADES, Limits, check_ranges, limits_of

_WHOLE = ("int", "ordered_int")


@dataclass(frozen=True)
class Space:
    """The axes of a search. A sampler knows only them; `values` says what a point is in the spec."""

    axes: Mapping[str, BaseDistribution]
    first: Mapping[str, Any] = field(repr=False)
    _parts: tuple[_Part, ...] = field(repr=False)
    weights: Mapping[str, tuple[float, ...]] = field(default_factory=dict, repr=False)  # how likely each choice is
    starts: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)  # points to try right after the first one

    @property
    def is_conditional(self) -> bool:
        """Whether what one value may be depends on another that is searched too."""
        return any(part.bound for part in self._parts)

    def starting_with(self, found: Iterable[Mapping[str, Any]]) -> Space:
        """The same space, where these values come first: the best of earlier searches, for example.

        A value that is out of reach now is moved to the nearest one; a parameter without a value keeps its first one.
        """
        own = self.values(self.first)
        points = [self.point({**own, **{name: one[name] for name in own if name in one}}) for one in found]
        fresh = [point for index, point in enumerate(points) if point not in [self.first, *points[:index]]]
        return replace(self, starts=tuple(fresh))

    def values(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """The spec's keys and values of a point; a value that another one limits is moved to its limit."""
        found = {part.name: part.read(point) for part in self._parts}
        for part in self._parts:
            if part.bound in found:
                found[part.name], found[part.bound] = _related(part, found[part.name], found[part.bound])
        return found

    def point(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Where values of the spec lie. Raises KeyError or ValueError where they are none of this space."""
        return {name: place for part in self._parts for name, place in part.places(values[part.name]).items()}


@dataclass(frozen=True)
class _Part:
    """One key of the spec: the axes it is made of, and its value at a point."""

    name: str
    axes: Mapping[str, BaseDistribution]
    start: tuple[Any, ...]  # where the axes stand for the template's own value
    is_list: bool = False
    is_rising: bool = False
    choices: tuple[Any, ...] = ()  # an axis that counts them
    base: int = 0  # an axis of exponents
    bound: str = ""  # the key whose value limits this one
    is_above: bool = False  # whether it must be above that, or not above it

    def read(self, point: Mapping[str, Any]) -> Any:
        found = [point[axis] for axis in self.axes]
        if self.is_list:
            return sorted(found) if self.is_rising else found
        if self.choices:
            return self.choices[found[0]]
        return self.base ** found[0] if self.base else found[0]

    def places(self, value: Any) -> dict[str, Any]:
        """Where a value stands on its axes."""
        if self.choices:
            return dict.fromkeys(self.axes, self.choices.index(value))
        if self.base:
            return dict.fromkeys(self.axes, round(math.log(value, self.base)))
        found = value if self.is_list else [value]
        return {name: _placed(axis, one) for (name, axis), one in zip(self.axes.items(), found, strict=True)}


def space_of(
    parameters: Sequence[SearchParameter],
    spec: Mapping[str, Any],
    ranges: Mapping[str, Mapping[str, Any]] | None = None,
    schema: Mapping[str, Any] | None = None,
) -> Space:
    """The space of `parameters` around the values that `spec` has for them; `ranges` are a person's own limits.

    Raises InvalidInput where nothing is left to search, or a range cannot be: beyond what the `schema` allows, or of a
    parameter that is not searched.
    """
    names = [parameter.name for parameter in parameters]
    check_ranges(names, ranges or {}, schema or {})
    if not names:
        raise InvalidInput("there is nothing to search: no parameter is left", "name some with --parameter")
    limits = {
        one.name: limits_of(one, spec.get(one.name, one.default), (ranges or {}).get(one.name)) for one in parameters
    }
    parts = tuple(_part(one, limits[one.name], names, spec) for one in parameters)
    axes = {name: axis for part in parts for name, axis in part.axes.items()}
    first = {name: value for part in parts for name, value in zip(part.axes, part.start, strict=True)}
    weights = {name: one.weights for name, one in limits.items() if one.weights and name in axes}
    return Space(axes, first, parts, weights)


def _part(parameter: SearchParameter, limits: Limits, searched: Sequence[str], spec: Mapping[str, Any]) -> _Part:
    name = parameter.name
    if limits.options:
        return _choice(parameter, limits)
    if parameter.type == "bool":
        return _Part(name, {name: CategoricalDistribution([False, True])}, (bool(limits.start),))
    if parameter.type.startswith("list") and not limits.is_single:
        return _list(parameter, limits)
    relation, _, operand = parameter.condition.partition(" ")
    if relation == "^":
        return _powers(name, limits, int(operand))
    bound = limits.depends_on or parameter.depends_on
    is_above = operand == "depends_on" and relation.startswith(">")
    if bound and bound not in searched:
        limits = _held(limits, spec.get(bound), is_above)
        bound = ""
    axis = _number(limits, parameter.type in _WHOLE, int(operand) if relation == "/" else 1)
    return _Part(name, {name: axis}, (_on(axis, limits.start),), bound=bound, is_above=is_above)


def _choice(parameter: SearchParameter, limits: Limits) -> _Part:
    """Choices have no order, unless the schema says so: then the axis counts them, and near ones are alike."""
    name, options = parameter.name, limits.options
    start = limits.start if limits.start in options else options[0]
    if not parameter.type.startswith("ordered"):
        return _Part(name, {name: CategoricalDistribution(list(options))}, (start,))
    ordered = tuple(sorted(options))
    axis = IntDistribution(0, len(ordered) - 1)
    return _Part(name, {f"{name} (place)": axis}, (ordered.index(start),), choices=ordered)


def _list(parameter: SearchParameter, limits: Limits) -> _Part:
    start = list(limits.start) if isinstance(limits.start, Sequence) else []
    if not start:
        remedy = f"give its elements a value, or leave {parameter.name} out"
        raise InvalidInput(f"{parameter.name}: the length of the list is not known", remedy)
    is_whole = all(isinstance(one, int) for one in start)
    axis = _number(limits, is_whole, 1)
    axes = {f"{parameter.name}[{index}]": axis for index in range(len(start))}
    is_rising = all(one < other for one, other in itertools.pairwise(start))
    return _Part(parameter.name, axes, tuple(_on(axis, one) for one in start), is_list=True, is_rising=is_rising)


def _powers(name: str, limits: Limits, base: int) -> _Part:
    low, high = math.ceil(round(math.log(limits.low, base), 9)), math.floor(round(math.log(limits.high, base), 9))
    if low > high:
        raise InvalidInput(f"{name}: no power of {base} lies between {limits.low:g} and {limits.high:g}")
    axis = IntDistribution(low, high)
    start = _on(axis, round(math.log(max(limits.start or 0, limits.low), base)))
    return _Part(name, {f"log{base}({name})": axis}, (start,), base=base)


def _number(limits: Limits, is_whole: bool, step: int) -> IntDistribution | FloatDistribution:
    log = limits.low > 0 and (limits.log or limits.high / limits.low >= DECADES)
    if not is_whole:
        return FloatDistribution(limits.low, limits.high, log=log)
    low, high = math.ceil(limits.low / step) * step, math.floor(limits.high / step) * step
    if low > high:
        raise InvalidInput(f"no multiple of {step} lies between {limits.low:g} and {limits.high:g}")
    return IntDistribution(low, high, log=log and step == 1, step=step)


def _on(axis: IntDistribution | FloatDistribution, value: Any) -> Any:
    """The place on the axis that is nearest to a value; the middle where there is none."""
    if not isinstance(value, int | float):
        value = math.sqrt(axis.low * axis.high) if axis.log else (axis.low + axis.high) / 2
    if isinstance(axis, IntDistribution):
        value = axis.low + round((value - axis.low) / axis.step) * axis.step
    return min(max(value, axis.low), axis.high)


def _placed(axis: BaseDistribution, value: Any) -> Any:
    if isinstance(axis, IntDistribution | FloatDistribution):
        return _on(axis, value)
    if not axis._contains(axis.to_internal_repr(value)):
        raise ValueError(f"{value!r} is not on its axis")
    return value


def _held(limits: Limits, other: Any, is_above: bool) -> Limits:
    """Limits beside a value that stays as it is."""
    if not isinstance(other, int | float):
        return limits
    return limits.within(low=other + 1) if is_above else limits.within(high=other)


def _related(part: _Part, value: Any, other: Any) -> tuple[Any, Any]:
    if not part.is_above:
        return min(value, other), other
    axis: Any = next(iter(part.axes.values()))
    least = 1 if isinstance(axis, IntDistribution) else (axis.high - axis.low) / 1000
    value = min(max(value, other + least), axis.high)
    return value, min(other, value - least)
