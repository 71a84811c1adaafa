"""The trials of a search and the best of them: a leaderboard with what the search has learned and spent."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.points import PointOutcome, SweepOutcome


class TrialOutcome(PointOutcome):
    """One trial: its place in the search besides its values, and how its metric went from epoch to epoch."""

    number: int
    configuration: int
    rung: int = 0
    epochs: int | None = None
    parent: int | None = None
    best_epoch: int | None = None
    curve: dict[int, float] = Field(default_factory=dict)


class SearchOutcome(SweepOutcome):
    """All trials; `winner` is what the best of them left, `spec` its values without those that set its length."""

    points: tuple[TrialOutcome, ...] = ()
    title: str = ""
    algorithm: str = ""
    flow_run_id: str = ""
    study: str = ""
    storage: str = ""
    metrics: tuple[str, ...] = ()
    most_trials: int | None = None
    concurrent: int = 1
    most_gpu_hours: float | None = None
    best_number: int | None = None
    winner: Outcome | None = None
    spec: dict[str, Any] = Field(default_factory=dict)
    front: tuple[int, ...] = Field((), description="the trials that no other one beats in every metric")
    stopped: str = Field("", description="why it ended before its budget of trials was used")
    notes: tuple[str, ...] = ()
    advice: str = Field("", description="what another trial is expected to gain, and what it costs")
    baseline: dict[str, float] = Field(default_factory=dict)
    final: dict[str, float] = Field(default_factory=dict)
    importance: dict[str, float] = Field(default_factory=dict)
    gpu_hours: float = 0.0
    cost: float | None = None
    seconds: float = 0.0

    @property
    def best(self) -> TrialOutcome | None:
        """The best of those that came furthest: a good start is not yet a good end. The study's word counts most."""
        if self.best_number is not None:
            return next((one for one in self.points if one.number == self.best_number), None)
        sign = -1.0 if self.direction == "maximize" else 1.0
        scored = [(one, score) for one in self.points if (score := self.score(one)) is not None]
        return min(scored, key=lambda one: (-one[0].rung, sign * one[1], one[0].number), default=(None, 0.0))[0]

    @property
    def left(self) -> float | None:
        """Seconds until the last trial may end, by how long trials took; None while nothing is known."""
        took = [one.seconds for one in self.points if one.seconds and one.state is StepState.COMPLETE]
        if not took or not self.most_trials:
            return None
        to_come = max(0, self.most_trials - len({one.configuration for one in self.points}))
        return (to_come + self.count(StepState.RUNNING) / 2) * sum(took) / len(took) / max(1, self.concurrent)

    @property
    def ranked(self) -> list[PointOutcome]:
        """Those that came furthest first, best to worst; then the others as they were begun."""
        by_score = {one.name: place for place, one in enumerate(super().ranked)}
        first = self.best.number if self.best else None
        found = sorted(self.points, key=lambda one: (one.number != first, -one.rung, by_score[one.name]))
        return list(found)

    @property
    def evaluations(self) -> dict[str, str]:
        """What evaluations around the search have found, in words."""
        found = {"baseline": self.baseline, "evaluation of the winner": self.final}
        words = {name: ", ".join(f"{key} {value:.5g}" for key, value in one.items()) for name, one in found.items()}
        return {name: said for name, said in words.items() if said}

    def spec_yaml(self) -> str:
        """The best spec as a file that a person can go on with."""
        import yaml

        return yaml.safe_dump(self.spec, sort_keys=False)
