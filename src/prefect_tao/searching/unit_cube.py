"""Points of a search space as points of a cube, where every axis is as long as the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

    def __init__(
        self, space: Mapping[str, BaseDistribution], weights: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        self.space = dict(space)
        self.names = list(space)
        self._edges = {
            name: np.cumsum([0.0, *_shares(axis, (weights or {}).get(name))])
            for name, axis in space.items()
            if isinstance(axis, CategoricalDistribution)
        }

    def __len__(self) -> int:
        return len(self.names)

    def holds(self, params: Mapping[str, Any]) -> bool:
        """Whether a trial's parameters are those of this space."""
        return params.keys() == self.space.keys() and all(
            axis._contains(axis.to_internal_repr(params[name])) for name, axis in self.space.items()
        )

    def coordinates(self, params: Mapping[str, Any]) -> list[float]:
        """Where a trial's parameters lie."""
        return [self._coordinate(name, params[name]) for name in self.space]

    def params(self, point: Iterable[float]) -> dict[str, Any]:
        """The parameters of a point."""
        return {name: self._value(name, float(place)) for name, place in zip(self.space, point, strict=True)}

    def features(self, points: Array) -> Array:
        """What a model sees: whole numbers at their own place, and each choice as far from every other one."""
        columns: list[Array] = []
        for index, (name, axis) in enumerate(self.space.items()):
            column = points[:, index]
            if isinstance(axis, CategoricalDistribution):
                columns.append(np.eye(len(axis.choices))[self._chosen(name, column)] / np.sqrt(2))
            elif isinstance(axis, IntDistribution):
                columns.append(np.array([[_coordinate(axis, _value(axis, place))] for place in column]))
            else:
                columns.append(column[:, None])
        return np.hstack(columns)

    def _chosen(self, name: str, places: Any) -> Any:
        """The choices at some places: each has a stretch of the axis, as long as it is likely."""
        edges = self._edges[name]
        return np.clip(np.searchsorted(edges, places, side="right") - 1, 0, len(edges) - 2)

    def _coordinate(self, name: str, value: Any) -> float:
        axis = self.space[name]
        if isinstance(axis, CategoricalDistribution):
            chosen, edges = int(axis.to_internal_repr(value)), self._edges[name]
            return float(edges[chosen] + edges[chosen + 1]) / 2
        return _coordinate(axis, value)

    def _value(self, name: str, place: float) -> Any:
        axis = self.space[name]
        if isinstance(axis, CategoricalDistribution):
            return axis.choices[int(self._chosen(name, place))]
        return _value(axis, place)


def _shares(axis: CategoricalDistribution, weights: Sequence[float] | None) -> list[float]:
    given = list(weights or [1.0] * len(axis.choices))
    return [one / sum(given) for one in given]


def _scale(axis: Any) -> tuple[float, float]:
    """The ends of an axis; whole numbers have half a step on either side, so that each has the same room."""
    if isinstance(axis, FloatDistribution):
        low, high = axis.low, axis.high
    else:
        half = (axis.step or 1) / 2
        low, high = axis.low - half, axis.high + half
    return (float(np.log(low)), float(np.log(high))) if axis.log else (low, high)


def _coordinate(axis: Any, value: Any) -> float:
    low, high = _scale(axis)
    place = float(np.log(value)) if axis.log else float(value)
    return (place - low) / (high - low) if high > low else 0.5


def _value(axis: Any, place: float) -> Any:
    low, high = _scale(axis)
    number = low + place * (high - low)
    number = float(np.exp(number)) if axis.log else number
    if axis.step:
        number = axis.low + round((number - axis.low) / axis.step) * axis.step
    number = min(max(number, axis.low), axis.high)
    return int(number) if isinstance(axis, IntDistribution) else float(number)
