"""The leaderboard of a sweep as one table artifact, drawn anew every few seconds while points end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.events import PointChanged, SweepStarted
from prefect_tao.jobs.points import PointOutcome, SweepOutcome
from prefect_tao.jobs.quantities import Direction
from prefect_tao.tasks.artifacts.pages import LivePage
from prefect_tao.tasks.reporting import everyone

DRAW_SECONDS = 10.0


class Leaderboard:
    """Where all points stand."""

    def __init__(self, points: Sequence[PointOutcome], metric: str | None, direction: Direction, key: str) -> None:
        self.points = {point.name: point for point in points}
        self.metric = metric
        self.direction = direction
        self._page = LivePage(key)
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

    async def publish(self) -> None:
        """Draw the table."""
        self._drawn_at = time.monotonic()
        outcome = self.outcome()
        done = outcome.count(StepState.COMPLETE)
        words = f"{done} of {len(outcome.points)} points complete"
        if (best := outcome.best) and self.metric:
            words += f"; best {self.metric} {best.metrics[self.metric]:.5g} at {best.label}"
        if cost := sum(point.gpu_hours for point in outcome.points):
            words += f"; {cost:.3f} GPU hours in all"
        await self._page.show(outcome.rows(), words)
