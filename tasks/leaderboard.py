"""The leaderboard of a sweep as one table artifact, drawn anew every few seconds while points end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from uuid import UUID

from prefect.artifacts import acreate_table_artifact

from prefect_tao.jobs.leaderboard import Direction, PointOutcome, SweepListener, SweepOutcome
from prefect_tao.jobs.steps import StepState
from prefect_tao.jobs.watcher import Guarded
from prefect_tao.tasks.reporting import audience
from prefect_tao.tasks.summary import PUBLISH_SECONDS, update_page

DRAW_SECONDS = 10.0


class Leaderboard:
    """Where all points stand."""

    def __init__(self, points: Sequence[PointOutcome], metric: str | None, direction: Direction, key: str) -> None:
        self.points = {point.name: point for point in points}
        self.metric = metric
        self.direction = direction
        self.key = key
        self._artifact: UUID | None = None
        self._drawn_at = 0.0
        self._drawing = asyncio.Lock()
        listener = audience.get()
        self._audience = Guarded(listener if isinstance(listener, SweepListener) else SweepListener())

    def __getitem__(self, name: str) -> PointOutcome:
        return self.points[name]

    async def open(self) -> None:
        """Show the points before the first of them begins."""
        board = self.outcome()
        await self._audience.hear(lambda listener: listener.on_board(board))
        await self.publish()

    async def note(self, point: PointOutcome) -> None:
        """Take in how a point stands; the table follows when the last drawing is old enough."""
        self.points[point.name] = point
        await self._audience.hear(lambda listener: listener.on_point(point))
        if time.monotonic() - self._drawn_at > DRAW_SECONDS:
            await self.publish()

    def outcome(self) -> SweepOutcome:
        """All points as they stand."""
        return SweepOutcome(points=tuple(self.points.values()), metric=self.metric, direction=self.direction)

    async def publish(self) -> None:
        """Draw the table; a server that is away must not stop the sweep."""
        self._drawn_at = time.monotonic()
        outcome = self.outcome()
        done = outcome.count(StepState.COMPLETE)
        words = f"{done} of {len(outcome.points)} points complete"
        if (best := outcome.best) and self.metric:
            words += f"; best {self.metric} {best.metrics[self.metric]:.5g} at {best.label}"
        if cost := sum(point.gpu_hours for point in outcome.points):
            words += f"; {cost:.3f} GPU hours in all"
        with contextlib.suppress(Exception):
            async with asyncio.timeout(PUBLISH_SECONDS), self._drawing:
                if self._artifact is None:
                    self._artifact = await acreate_table_artifact(table=outcome.rows(), key=self.key, description=words)
                else:
                    await update_page(self._artifact, json.dumps(outcome.rows()), words)
