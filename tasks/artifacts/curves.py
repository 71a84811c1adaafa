"""Training curves as small SVG pictures; a data URI is the one form of them that Prefect's UI shows in Markdown."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from prefect_tao.jobs.statusfile import Progress

WIDTH, HEIGHT, MARGIN = 640, 220, 52
COLORS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2")
MAX_CURVES = 6


def curve_series(progress: Progress) -> dict[str, list[tuple[float, float]]]:
    """The metrics that were reported more than once, as (epoch or step, value)."""
    series: dict[str, list[tuple[float, float]]] = {}
    for number, point in enumerate(progress.history, start=1):
        place = point.epoch if point.epoch is not None else point.step if point.step is not None else number
        for name, value in point.metrics.items():
            series.setdefault(name, []).append((float(place), value))
    return {name: points for name, points in sorted(series.items()) if len(points) > 1}


def curve_images(progress: Progress) -> dict[str, str]:
    """One picture per metric, as data URIs: metrics have scales of their own."""
    series = list(curve_series(progress).items())[:MAX_CURVES]
    return {name: data_uri(_svg(name, points, COLORS[index])) for index, (name, points) in enumerate(series)}


def data_uri(svg: str) -> str:
    """A picture as Markdown takes it."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _svg(name: str, points: Sequence[tuple[float, float]], color: str) -> str:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    span_x, span_y = (right - left) or 1.0, (high - low) or 1.0

    def place(x: float, y: float) -> str:
        across = MARGIN + (x - left) / span_x * (WIDTH - 2 * MARGIN)
        down = HEIGHT - MARGIN + (low - y) / span_y * (HEIGHT - 2 * MARGIN)
        return f"{across:.1f},{down:.1f}"

    line = " ".join(place(x, y) for x, y in points)
    frame = f"M{MARGIN},{MARGIN} V{HEIGHT - MARGIN} H{WIDTH - MARGIN}"
    text = 'font-family="sans-serif" font-size="12" fill="#6b7280"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<rect width="100%" height="100%" fill="#ffffff"/><path d="{frame}" fill="none" stroke="#9ca3af"/>'
        f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>'
        f'<text x="{MARGIN}" y="24" {text} font-weight="bold">{escape(name)}: {ys[-1]:.4g}</text>'
        f'<text x="4" y="{MARGIN + 4}" {text}>{high:.3g}</text>'
        f'<text x="4" y="{HEIGHT - MARGIN}" {text}>{low:.3g}</text>'
        f'<text x="{MARGIN}" y="{HEIGHT - 16}" {text}>{left:g}</text>'
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - 16}" {text} text-anchor="end">{right:g}</text></svg>'
    )
