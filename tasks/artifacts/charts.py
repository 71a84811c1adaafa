"""Pictures of a search as SVG data URIs, the one form that Prefect's UI shows in Markdown; readable in both themes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from prefect_tao.tasks.artifacts.curves import COLORS, HEIGHT, MARGIN, WIDTH, data_uri

Points = Sequence[tuple[float, float]]
_TEXT = 'font-family="sans-serif" font-size="12" fill="#6b7280"'
_SMALL = 'font-family="sans-serif" font-size="10" fill="#6b7280"'
RIGHT = 20
SLICE_WIDTH, SLICES_IN_A_ROW = 213, 3


class Scale:
    """Places on one axis; by orders of magnitude where the values span three of them and are above 0."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        self.is_log = low > 0 and high / low >= 1000
        self.low, self.high = low, high
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        low, high, place = self.low, self.high, value
        if self.is_log:
            low, high, place = math.log(low), math.log(high), math.log(value)
        share = (place - low) / (high - low) if high > low else 0.5
        return self._start + share * (self._end - self._start)


def _frame(title: str, inside: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    return data_uri(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>'
        f'<text x="{MARGIN}" y="24" {_TEXT} font-weight="bold">{escape(title)}</text>{inside}</svg>'
    )


def _axes(x: Scale, y: Scale, across: str) -> str:
    bottom, right = HEIGHT - MARGIN, WIDTH - RIGHT
    return (
        f'<path d="M{MARGIN},{MARGIN - 10} V{bottom} H{right}" fill="none" stroke="#9ca3af"/>'
        f'<text x="4" y="{MARGIN}" {_TEXT}>{y.high:.3g}</text><text x="4" y="{bottom}" {_TEXT}>{y.low:.3g}</text>'
        f'<text x="{MARGIN}" y="{HEIGHT - 30}" {_TEXT}>{x.low:g}</text>'
        f'<text x="{right}" y="{HEIGHT - 30}" {_TEXT} text-anchor="end">{x.high:g}</text>'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" {_TEXT} text-anchor="middle">{escape(across)}</text>'
    )


def _scales(points: Points) -> tuple[Scale, Scale]:
    return (
        Scale([x for x, _ in points], MARGIN + 6, WIDTH - RIGHT - 6),
        Scale([y for _, y in points], HEIGHT - MARGIN - 6, MARGIN - 4),
    )


def _line(points: Points, x: Scale, y: Scale, color: str, width: float = 2.0) -> str:
    places = " ".join(f"{x(one):.1f},{y(other):.1f}" for one, other in points)
    return f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width}"/>'


def _dots(points: Points, x: Callable[[float], float], y: Callable[[float], float], color: str) -> str:
    return "".join(
        f'<circle cx="{x(one):.1f}" cy="{y(other):.1f}" r="3.5" fill="{color}" fill-opacity="0.7"/>'
        for one, other in points
    )


def history_picture(metric: str, values: Points, is_larger_better: bool) -> str:
    """Every trial's value, and the best one so far."""
    best: list[tuple[float, float]] = []
    for number, value in values:
        so_far = best[-1][1] if best else value
        best.append((number, max(so_far, value) if is_larger_better else min(so_far, value)))
    x, y = _scales(values)
    inside = _axes(x, y, "trial") + _dots(values, x, y, COLORS[0]) + _line(best, x, y, COLORS[1])
    return _frame(f"{metric} of each trial, and the best so far ({best[-1][1]:.4g})", inside)


def curves_picture(metric: str, curves: Mapping[str, Points], best: str | None) -> str:
    """The learning curves of all trials, the best one on top."""
    points = [point for one in curves.values() for point in one]
    x, y = _scales(points)
    order = sorted(curves, key=lambda name: name == best)
    lines = [
        _line(curves[name], x, y, COLORS[1] if name == best else "#93c5fd", 3 if name == best else 1) for name in order
    ]
    return _frame(f"{metric} by epoch, the best trial in orange", _axes(x, y, "epoch") + "".join(lines))


def bars_picture(title: str, shares: Mapping[str, float]) -> str:
    """Shares of a whole, the largest on top."""
    rows, left = sorted(shares.items(), key=lambda one: -one[1])[:12], 240
    most = max(share for _, share in rows) or 1.0
    height = 44 + 22 * len(rows)
    inside = ""
    for row, (name, share) in enumerate(rows):
        top, long = 40 + 22 * row, (WIDTH - left - 70) * share / most
        inside += (
            f'<text x="{left - 8}" y="{top + 12}" {_TEXT} text-anchor="end">{escape(name[-34:])}</text>'
            f'<rect x="{left}" y="{top}" width="{long:.1f}" height="15" fill="{COLORS[0]}"/>'
            f'<text x="{left + long + 6:.1f}" y="{top + 12}" {_TEXT}>{share:.0%}</text>'
        )
    return _frame(title, inside, height=height)


def slices_picture(metric: str, slices: Mapping[str, Points]) -> str:
    """The metric over each parameter, one small picture beside the other."""
    rows = math.ceil(len(slices) / SLICES_IN_A_ROW)
    inside = ""
    for index, (name, points) in enumerate(slices.items()):
        left, top = SLICE_WIDTH * (index % SLICES_IN_A_ROW), 34 + 150 * (index // SLICES_IN_A_ROW)
        x = Scale([one for one, _ in points], left + 40, left + SLICE_WIDTH - 14)
        y = Scale([one for _, one in points], top + 104, top + 22)
        inside += (
            f'<path d="M{left + 34},{top + 16} V{top + 110} H{left + SLICE_WIDTH - 8}" fill="none" stroke="#9ca3af"/>'
            f'<text x="{left + 34}" y="{top + 10}" {_SMALL} font-weight="bold">{escape(name[-32:])}</text>'
            f'<text x="{left + 30}" y="{top + 26}" {_SMALL} text-anchor="end">{y.high:.2g}</text>'
            f'<text x="{left + 30}" y="{top + 110}" {_SMALL} text-anchor="end">{y.low:.2g}</text>'
            f'<text x="{left + 36}" y="{top + 124}" {_SMALL}>{x.low:.3g}</text>'
            f'<text x="{left + SLICE_WIDTH - 10}" y="{top + 124}" {_SMALL} text-anchor="end">{x.high:.3g}</text>'
        ) + _dots(points, x, y, COLORS[0])
    return _frame(f"{metric} over each parameter", inside, height=44 + 150 * rows)


def front_picture(names: tuple[str, str], points: Points, front: Points) -> str:
    """Two metrics against each other; those that no other trial beats in both are joined."""
    x, y = _scales(points)
    inside = _axes(x, y, names[0]) + _dots(points, x, y, "#93c5fd") + _line(sorted(front), x, y, COLORS[1])
    return _frame(f"{names[1]} over {names[0]}: the Pareto front in orange", inside + _dots(front, x, y, COLORS[1]))
