"""One trial of a search, as it was asked for and as it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

RETRIES = 3  # times that the same values are tried, when the machines fail and not they


class Standing(StrEnum):
    """Where a trial stands."""

    RUNNING = "running"
    COMPLETE = "complete"
    PAUSED = "paused"  # at the end of its rung, with a value; a promotion goes on from its checkpoint
    STOPPED = "stopped"  # early, because it stayed behind; with the value it had
    FAILED = "failed"  # never with a value
    WITHDRAWN = "withdrawn"  # the machines failed: it says nothing about its values


@dataclass(frozen=True)
class TrialRecord:
    """A trial in what a study remembers, and in what a study can be rebuilt from."""

    number: int
    values: Mapping[str, Any]
    configuration: int = -1  # the first trial with these values; -1: itself
    origin: int = -1  # the trial that this one goes on from or repeats, back to the first; -1: itself
    rung: int = 0
    epochs: int | None = None
    parent: int | None = None
    end: Standing = Standing.RUNNING
    result: tuple[float, ...] | None = None
    failure: str = ""
    curve: Mapping[int, float] = field(default_factory=dict)  # epoch -> the metric that was reported
    asked: float = -1  # places in the order of asking and telling; times will do as well; -1: the number
    told: float | None = None
    stop: int | None = None  # the epoch after which it was to stop
    notes: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # of the sampler, for itself

    @property
    def is_told(self) -> bool:
        return self.end is not Standing.RUNNING

    @property
    def is_scored(self) -> bool:
        return self.result is not None


@dataclass(frozen=True)
class Slot:
    """All trials of one place in a search: a configuration on its way up the rungs, with what was repeated."""

    origin: int
    trials: tuple[TrialRecord, ...]
    sign: float = 1.0

    @property
    def last(self) -> TrialRecord:
        return self.trials[-1]

    @property
    def is_running(self) -> bool:
        return self.last.end is Standing.RUNNING

    @property
    def is_failed(self) -> bool:
        return self.last.end in (Standing.FAILED, Standing.WITHDRAWN)

    @property
    def first_rung(self) -> int:
        return self.trials[0].rung

    def at(self, rung: int) -> TrialRecord | None:
        """Its trial with a value at a rung."""
        return next((one for one in self.trials if one.rung == rung and one.is_scored), None)

    def loss(self, rung: int) -> float | None:
        """Its value at a rung, smaller being better."""
        found = self.at(rung)
        return None if found is None or found.result is None else self.sign * found.result[0]

    @property
    def to_repeat(self) -> TrialRecord | None:
        """The trial whose machines failed, while it is worth another try."""
        lost = [one for one in self.trials if one.end is Standing.WITHDRAWN and one.rung == self.last.rung]
        return self.last if self.last.end is Standing.WITHDRAWN and len(lost) < RETRIES else None


def slots_of(records: Iterable[TrialRecord], sign: float = 1.0) -> list[Slot]:
    """The places of a search in the order in which they were begun."""
    found: dict[int, list[TrialRecord]] = {}
    for one in sorted(records, key=lambda record: record.number):
        found.setdefault(one.origin, []).append(one)
    return [Slot(origin, tuple(trials), sign) for origin, trials in sorted(found.items())]
