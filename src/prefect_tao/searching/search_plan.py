"""How a search is led: its algorithm, what it looks for, and how much it may use."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.searching.algorithms import ALGORITHMS, algorithm_named

DIRECTIONS = ("minimize", "maximize")
GENERATIONS, INTERVAL = 20, 10  # of a population, where neither is said
EPOCHS = 27  # what a trial of a search in rungs trains at most, where it is not said


@dataclass(frozen=True)
class SearchPlan:
    """What a search is to do. Checked where it is made: raises InvalidInput."""

    algorithm: str = "bayesian"
    directions: tuple[str, ...] = ("minimize",)  # one for each metric
    metrics: tuple[str, ...] = ("loss",)
    max_trials: int | None = None  # configurations; None: 20, or what the rungs want
    max_epochs: int | None = None  # of one trial; None: what the spec says, and 27 in rungs
    min_epochs: int = 1  # the first rung
    eta: int = 3  # one of so many goes to the next rung
    seed: int = 0
    max_failures: int | None = None  # None: half of the trials, but 3 at least
    min_points: int | None = None  # results that a model of one rung wants; None: one more than there are axes
    early_stop: bool = False  # for trials that run in full: stop those that stay behind the others
    population: int = 10
    generations: int | None = None  # None: as many as a training has epochs, 20 at most
    interval: int | None = None  # epochs of a generation; None: what the generations share
    perturbation: float = 1.2
    mutation: float = 0.5
    crossover: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithm", algorithm_named(self.algorithm))
        object.__setattr__(self, "directions", tuple(self.directions))
        object.__setattr__(self, "metrics", tuple(self.metrics))
        self._check_metrics()
        self._check_numbers()
        if self.schedule in ("asha", "hyperband"):
            self._check_rungs()
        if self.schedule == "pbt" and self.max_trials == 1:
            raise InvalidInput("1 trial is no population", "give max_trials of 2 or more, or use bayesian")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> SearchPlan:
        """The plan of `settings`, which are fields of a plan; None is the same as not given. Raises InvalidInput."""
        known = [one.name for one in fields(cls)]
        for name in settings:
            if name not in known:
                raise InvalidInput(f"a search has no setting {name}", _nearest(name, known))
        return cls(**{name: value for name, value in settings.items() if value is not None})

    @property
    def sampler(self) -> str:
        return ALGORITHMS[self.algorithm].sampler

    @property
    def schedule(self) -> str:
        return ALGORITHMS[self.algorithm].schedule

    @property
    def stops_early(self) -> bool:
        return self.early_stop or ALGORITHMS[self.algorithm].stops_early

    @property
    def signs(self) -> tuple[float, ...]:
        """What makes a value a loss, which is better when it is smaller."""
        return tuple(-1.0 if one == "maximize" else 1.0 for one in self.directions)

    @property
    def rungs(self) -> tuple[int, ...]:
        """The epochs of each rung, the last one being all that a trial trains."""
        most = self.max_epochs or EPOCHS
        found = [self.min_epochs]
        while found[-1] * self.eta**2 <= most:
            found.append(found[-1] * self.eta)
        return (*found, most)

    @property
    def stages(self) -> tuple[int, ...]:
        """The epochs that a member of a population has trained after each generation."""
        most = self.max_epochs
        interval = self.interval or (math.ceil(most / (self.generations or GENERATIONS)) if most else INTERVAL)
        count = self.generations or (math.ceil(most / interval) if most else GENERATIONS)
        ends = [interval * number for number in range(1, count + 1)]
        return tuple(dict.fromkeys(min(end, most or end) for end in ends))

    def _check_metrics(self) -> None:
        for one in self.directions:
            if one not in DIRECTIONS:
                raise InvalidInput(f"a direction must be minimize or maximize, not {one!r}", _nearest(one, DIRECTIONS))
        if not self.directions or len(self.directions) != len(self.metrics):
            cause = f"{len(self.metrics)} metrics have {len(self.directions)} directions"
            raise InvalidInput(cause, "give a direction for each metric")
        if len(self.directions) > 1 and not ALGORITHMS[self.algorithm].takes_many:
            able = ", ".join(name for name, one in ALGORITHMS.items() if one.takes_many)
            cause = f"{self.algorithm} looks for one metric, and {len(self.metrics)} are given"
            raise InvalidInput(cause, f"use one of {able}")

    def _check_numbers(self) -> None:
        whole = ("max_trials", "max_epochs", "min_epochs", "population", "generations", "interval", "min_points")
        for name in whole:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise InvalidInput(f"{name} must be a whole number of 1 or more, not {value!r}")
        if not isinstance(self.eta, int) or self.eta < 2:
            raise InvalidInput(f"eta must be a whole number of 2 or more, not {self.eta!r}")
        if self.max_failures is not None and (not isinstance(self.max_failures, int) or self.max_failures < 0):
            raise InvalidInput(f"max_failures must be a whole number of 0 or more, not {self.max_failures!r}")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise InvalidInput(f"seed must be a whole number of 0 or more, not {self.seed!r}")
        for name, low, high in (("perturbation", 1.0, math.inf), ("mutation", 0.0, 2.0), ("crossover", 0.0, 1.0)):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not low < value <= high:
                raise InvalidInput(f"{name} must be a number above {low:g} and up to {high:g}, not {value!r}")

    def _check_rungs(self) -> None:
        most = self.max_epochs or EPOCHS
        if self.min_epochs * self.eta > most:
            cause = (
                f"{most} epochs are too few for {self.algorithm}: a second rung begins at {self.min_epochs * self.eta}"
            )
            raise InvalidInput(cause, f"give max_epochs of {self.min_epochs * self.eta} or more, or use bayesian")
        if self.max_trials is not None and self.max_trials < self.eta:
            cause = f"{self.max_trials} trials are less than one rung of {self.algorithm}, which compares {self.eta}"
            raise InvalidInput(cause, f"give max_trials of {self.eta} or more, or use bayesian")


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
