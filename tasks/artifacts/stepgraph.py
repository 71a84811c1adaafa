"""The steps of a chain as a small picture: what waits for what, and how each stands; shown by both of Prefect's UIs."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from prefect_tao.jobs.chain_outcome import StepOutcome, StepState

WIDE, HIGH, GAP_X, GAP_Y, EDGE = 150, 64, 44, 16, 8
_COLOURS = {
    StepState.WAITING: "#e2e8f0",
    StepState.RUNNING: "#93c5fd",
    StepState.COMPLETE: "#86efac",
    StepState.ERROR: "#fca5a5",
    StepState.CANCELED: "#fcd34d",
    StepState.SKIPPED: "#cbd5e1",
}
LETTERS = 20  # as many as fit into a box


def graph_image(steps: Sequence[StepOutcome]) -> str:
    """The graph as a data URI."""
    places = _places(steps)
    width = max(x for x, _ in places.values()) + WIDE + EDGE
    height = max(y for _, y in places.values()) + HIGH + EDGE
    lines = [_line(places[other], places[step.name]) for step in steps for other in step.after]
    boxes = [_box(step, *places[step.name]) for step in steps]
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(lines)}{"".join(boxes)}</svg>'
    )
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _places(steps: Sequence[StepOutcome]) -> dict[str, tuple[int, int]]:
    """Where each box is: right of all that it waits for, below those that came before it in its column."""
    column: dict[str, int] = {}
    filled: dict[int, int] = {}
    found = {}
    for step in steps:  # a chain names steps before those that wait for them
        column[step.name] = 1 + max((column[other] for other in step.after), default=-1)
        row = filled.get(column[step.name], 0)
        filled[column[step.name]] = row + 1
        found[step.name] = (EDGE + column[step.name] * (WIDE + GAP_X), EDGE + row * (HIGH + GAP_Y))
    return found


def _line(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + WIDE, start[1] + HIGH // 2, end[0], end[1] + HIGH // 2
    middle = x2 - GAP_X // 2
    head = f'<path d="M{x2 - 7},{y2 - 4} L{x2},{y2} L{x2 - 7},{y2 + 4} Z" fill="#64748b"/>'
    return f'<path d="M{x1},{y1} H{middle} V{y2} H{x2}" fill="none" stroke="#64748b" stroke-width="1.5"/>{head}'


def _box(step: StepOutcome, x: int, y: int) -> str:
    rows = ((step.name, ' font-weight="bold"'), (step.target, ""), (step.state.value, ""))
    words = "".join(
        f'<text x="{x + WIDE // 2}" y="{y + 19 + 18 * number}"{style}>{escape(text[:LETTERS])}</text>'
        for number, (text, style) in enumerate(rows)
    )
    return (
        f'<rect x="{x}" y="{y}" width="{WIDE}" height="{HIGH}" rx="6" fill="{_COLOURS[step.state]}"/>'
        f'<g font-family="sans-serif" font-size="13" fill="#0f172a" text-anchor="middle">{words}</g>'
    )
