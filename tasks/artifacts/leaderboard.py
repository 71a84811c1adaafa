"""The leaderboard of a sweep: a page of the best points, drawn anew while points end, and at its end all as a table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.events import PointChanged, SweepStarted
from prefect_tao.jobs.points import PointOutcome, SweepOutcome
from prefect_tao.jobs.quantities import Direction
from prefect_tao.tasks.artifacts.pages import DRAW_SECONDS, LivePage, links, page_key
from prefect_tao.tasks.reporting import everyone

SHOWN = 100
WIDE = ("results", "job")  # of the table alone
IN_PREFECT = "in Prefect"


class Leaderboard:
    """Where all points stand; `keys` are those of their jobs, by name."""

    def __init__(
        self,
        points: Sequence[PointOutcome],
        metric: str | None,
        direction: Direction,
        title: str,
        key: str,
        keys: Mapping[str, str],
    ) -> None:
        self.points = {point.name: point for point in points}
        self.metric = metric
        self.direction = direction
        self._keys = keys
        self._page = LivePage(page_key("leaderboard", title, key))
        self._table = LivePage(page_key("points", title, key))
        self._drawn_at = 0.0
        self._audience = everyone()

    def __getitem__(self, name: str) -> PointOutcome:
        return self.points[name]

    async def open(self) -> None:
        """Show the points before the first of them begins."""
        await self._audience.hear(SweepStarted(self.outcome()))
        await self.publish()

    async def note(self, point: PointOutcome) -> None:
        """Take in how a point stands; the table follows when the last drawing is old enough."""
        self.points[point.name] = point
        await self._audience.hear(PointChanged(point))
        if time.monotonic() - self._drawn_at > DRAW_SECONDS:
            await self.publish()

    def outcome(self) -> SweepOutcome:
        """All points as they stand."""
        return SweepOutcome(points=tuple(self.points.values()), metric=self.metric, direction=self.direction)

    async def close(self) -> None:
        """Draw the page for the last time, and leave all points as a table, which can be searched."""
        await self.publish()
        await self._table.show(self.outcome().rows(), self._words(self.outcome()))

    async def publish(self) -> None:
        """Draw the page."""
        self._drawn_at = time.monotonic()
        outcome = self.outcome()
        where = [links(self._keys.get(point.name, "")) for point in outcome.ranked[:SHOWN]]
        words = self._words(outcome)
        await self._page.show(board_markdown(outcome, where), words)

    def _words(self, outcome: SweepOutcome) -> str:
        done = outcome.count(StepState.COMPLETE)
        words = f"{done} of {len(outcome.points)} points complete"
        if (best := outcome.best) and self.metric:
            words += f"; best {self.metric} {best.metrics[self.metric]:.5g} at {best.label}"
        if cost := sum(point.gpu_hours for point in outcome.points):
            words += f"; {cost:.3f} GPU hours in all"
        return words


def board_markdown(outcome: SweepOutcome, where: Sequence[str]) -> str:
    """The best points as a page, each with links to what Prefect has of it."""
    rows = outcome.rows()
    heads = [head for head in rows[0] if head not in WIDE] if rows else []
    heads[1:1] = [IN_PREFECT]  # where a wide table is not cut off
    lines = ["## Leaderboard", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row, link in zip(rows, where, strict=False):
        cells = {head: _cell(row[head]) for head in heads if head in row} | {IN_PREFECT: link}
        lines.append(f"| {' | '.join(cells[head] for head in heads)} |")
    if len(rows) > SHOWN:
        lines += ["", f"{len(rows) - SHOWN} more are in the table of all points, which is left at the end."]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """One cell of a Markdown table; neither a bar nor markup may break out of it."""
    return escape(str(value), quote=False).replace("|", "&#124;").replace("\n", " ")
