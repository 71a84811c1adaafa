"""The points of a sweep and how well they did, best first; as rows, CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from prefect_tao.jobs.chain_outcome import StepState, gpu_hours, waited
from prefect_tao.jobs.clock import now
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.quantities import Direction, format_seconds


class PointOutcome(BaseModel):
    """One point: its values, where it stands, and what it reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    label: str
    overrides: dict[str, Any]
    state: StepState = StepState.WAITING
    handle: JobHandle | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    seconds: float | None = None
    total_seconds: float = 0.0
    waited: float | None = None
    begun_at: datetime | None = None
    gpus: int = 0
    results: str = ""
    message: str = ""

    def running(self) -> PointOutcome:
        """The point, now at work."""
        return self.model_copy(update={"state": StepState.RUNNING, "begun_at": now()})

    def ended(self, state: StepState, message: str, outcome: Outcome | None = None) -> PointOutcome:
        """The point at its end: why it did not end well, and what there is of its job."""
        known: dict[str, Any] = {}
        if outcome is not None:
            known = {
                "handle": outcome.handle,
                "metrics": outcome.metrics,
                "seconds": outcome.seconds,
                "total_seconds": outcome.total_seconds,
                "waited": waited(self.begun_at, outcome),
                "results": outcome.results,
            }
        return self.model_copy(update={"state": state, "message": message, **known})

    @property
    def gpu_hours(self) -> float:
        """What all its attempts have cost, as far as it is known."""
        return gpu_hours(self.total_seconds, self.gpus)


class SweepOutcome(BaseModel):
    """All points; `ranked` has the best first, by the metric and its direction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    points: tuple[PointOutcome, ...]
    metric: str | None = None
    direction: Direction = "maximize"

    @property
    def ranked(self) -> list[PointOutcome]:
        """Points with the metric first, best to worst; then the others as they were planned."""
        sign = -1.0 if self.direction == "maximize" else 1.0
        scored = sorted(
            (sign * score, place) for place, point in enumerate(self.points) if (score := self.score(point)) is not None
        )
        places = dict.fromkeys([place for _, place in scored])
        return [self.points[place] for place in (*places, *(n for n in range(len(self.points)) if n not in places))]

    def score(self, point: PointOutcome) -> float | None:
        """The point's metric; none for one that is not complete or has no number there."""
        found = point.metrics.get(self.metric) if self.metric and point.state is StepState.COMPLETE else None
        return found if found is not None and math.isfinite(found) else None

    @property
    def best(self) -> PointOutcome | None:
        """The best point, where any has the metric."""
        scored = [(score, point) for point in self.points if (score := self.score(point)) is not None]
        if not scored:
            return None
        choose = max if self.direction == "maximize" else min
        return choose(scored, key=lambda one: one[0])[1]

    def count(self, state: StepState) -> int:
        """How many points are in `state`."""
        return sum(point.state is state for point in self.points)

    def rows(self) -> list[dict[str, Any]]:
        """The leaderboard as a table."""
        keys = list(dict.fromkeys(key for point in self.points for key in point.overrides))
        found = []
        for rank, point in enumerate(self.ranked, 1):
            values = {key: point.overrides.get(key, "") for key in keys}
            score = {self.metric: self._score(point)} if self.metric else {}
            found.append(
                {
                    "rank": rank if self.score(point) is not None else "",
                    **score,
                    **values,
                    "state": point.state.value,
                    "ran for": format_seconds(point.seconds) if point.seconds is not None else "",
                    "waited": format_seconds(point.waited) if point.waited is not None else "",
                    "GPU hours": round(point.gpu_hours, 3),
                    "job": point.handle.name if point.handle else "",
                    "why": point.message.splitlines()[0] if point.message else "",
                    "results": point.results,
                }
            )
        return found

    def _score(self, point: PointOutcome) -> float | str:
        """The metric with as many digits as a person compares; the CSV has all of them."""
        value = point.metrics.get(self.metric or "")
        return "" if value is None else float(f"{value:.5g}")

    def as_csv(self) -> str:
        """The leaderboard as CSV, with every metric, and with seconds for programs to count with."""
        rows = self.rows()
        metrics = list(dict.fromkeys(name for point in self.points for name in point.metrics))
        for row, point in zip(rows, self.ranked, strict=True):
            row["ran for"], row["waited"] = (_seconds(point.seconds), _seconds(point.waited))
            row.update({name: point.metrics.get(name, "") for name in metrics})
        stream = io.StringIO()
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else ["rank"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue()


def _seconds(value: float | None) -> float | str:
    return "" if value is None else round(value, 3)
