"""The plain schedule: every trial runs in full, one beside the other, until there are enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from prefect_tao.searching.trial_record import Slot, TrialRecord


@dataclass(frozen=True)
class Move:
    """What a search does next: a new configuration, or one that goes on from its parent's checkpoint."""

    rung: int = 0
    epochs: int | None = None
    parent: TrialRecord | None = None
    member: int | None = None  # the place that it goes on in, where that is not its parent's
    values: Mapping[str, Any] | None = None  # where they are not the parent's, and not for the sampler to propose


class Schedule(Protocol):
    """Says what comes next from what there is, and from nothing else: it remembers nothing."""

    top: int

    def next(self, slots: Sequence[Slot]) -> Move | None:
        """None: nothing now. While trials run there may be something later."""
        ...

    @property
    def most_jobs(self) -> int:
        """How many jobs there are at most, those aside that the machines lose."""
        ...


class WholeTrials:
    """Trials that run in full."""

    top = 0

    def __init__(self, most: int, epochs: int | None) -> None:
        self._most = most
        self._epochs = epochs

    def next(self, slots: Sequence[Slot]) -> Move | None:
        return Move(epochs=self._epochs) if len(slots) < self._most else None

    @property
    def most_jobs(self) -> int:
        return self._most
