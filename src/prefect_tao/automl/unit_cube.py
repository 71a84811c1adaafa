"""Points of a search space as points of a cube, where every axis is as long as the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

Array = NDArray[np.float64]


class UnitCube:
    """Each axis is one coordinate from 0 to 1; what a model sees of it are features, where choices are apart."""

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self.space = dict(space)
        self.names = list(space)

    def __len__(self) -> int:
        return len(self.names)

    def holds(self, params: Mapping[str, Any]) -> bool:
        """Whether a trial's parameters are those of this space."""
        return params.keys() == self.space.keys() and all(
            axis._contains(axis.to_internal_repr(params[name])) for name, axis in self.space.items()
        )

    def coordinates(self, params: Mapping[str, Any]) -> list[float]:
        """Where a trial's parameters lie."""
        return [_coordinate(axis, params[name]) for name, axis in self.space.items()]

    def params(self, point: Iterable[float]) -> dict[str, Any]:
        """The parameters of a point."""
        return {name: _value(axis, float(place)) for (name, axis), place in zip(self.space.items(), point, strict=True)}

    def features(self, points: Array) -> Array:
        """What a model sees: whole numbers at their own place, and each choice as far from every other one."""
        columns: list[Array] = []
        for index, axis in enumerate(self.space.values()):
            column = points[:, index]
            if isinstance(axis, CategoricalDistribution):
                chosen = np.minimum((column * len(axis.choices)).astype(int), len(axis.choices) - 1)
                columns.append(np.eye(len(axis.choices))[chosen] / np.sqrt(2))
            elif isinstance(axis, IntDistribution):
                columns.append(np.array([[_coordinate(axis, _value(axis, place))] for place in column]))
            else:
                columns.append(column[:, None])
        return np.hstack(columns)


def _scale(axis: Any) -> tuple[float, float]:
    """The ends of an axis; whole numbers have half a step on either side, so that each has the same room."""
    if isinstance(axis, FloatDistribution):
        low, high = axis.low, axis.high
    else:
        half = (axis.step or 1) / 2
        low, high = axis.low - half, axis.high + half
    return (float(np.log(low)), float(np.log(high))) if axis.log else (low, high)


def _coordinate(axis: Any, value: Any) -> float:
    if isinstance(axis, CategoricalDistribution):
        return (axis.to_internal_repr(value) + 0.5) / len(axis.choices)
    low, high = _scale(axis)
    place = float(np.log(value)) if axis.log else float(value)
    return (place - low) / (high - low) if high > low else 0.5


def _value(axis: Any, place: float) -> Any:
    if isinstance(axis, CategoricalDistribution):
        return axis.choices[min(int(place * len(axis.choices)), len(axis.choices) - 1)]
    low, high = _scale(axis)
    number = low + place * (high - low)
    number = float(np.exp(number)) if axis.log else number
    if axis.step:
        number = axis.low + round((number - axis.low) / axis.step) * axis.step
    number = min(max(number, axis.low), axis.high)
    return int(number) if isinstance(axis, IntDistribution) else float(number)
