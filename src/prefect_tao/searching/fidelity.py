"""Whether few epochs tell what many would: how far ranks at a low rung agree with those at the highest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import kendalltau

from prefect_tao.searching.trial_record import Slot

PROBES = 5  # configurations that climb to the top whatever they are worth, so that there is something to measure
FEWEST = 3  # pairs that a measurement wants
ENOUGH = 0.5  # the rank correlation (Kendall's) from which on a rung may decide


@dataclass(frozen=True)
class Agreement:
    """How the ranks at one rung agree with those at the top: 1 fully, 0 not at all; None is not measured."""

    rung: int
    pairs: int
    correlation: float | None

    @property
    def holds(self) -> bool:
        return self.correlation is None or self.correlation >= ENOUGH


def agreement(slots: Sequence[Slot], rung: int, top: int) -> Agreement:
    both = [(slot.loss(rung), slot.loss(top)) for slot in slots]
    pairs = [(low, high) for low, high in both if low is not None and high is not None]
    return Agreement(rung, len(pairs), rank_correlation(pairs))


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """None while there are too few of them; values that are all alike agree with nothing."""
    if len(pairs) < FEWEST:
        return None
    found = float(kendalltau(*zip(*pairs, strict=True)).statistic)
    return 0.0 if math.isnan(found) else found


def lowest_that_decides(slots: Sequence[Slot], top: int) -> int:
    """The lowest rung whose ranks, and those of all above it, agree with the top as far as that was measured."""
    lowest = top
    for rung in reversed(range(top)):
        if not agreement(slots, rung, top).holds:
            break
        lowest = rung
    return lowest


def words(slots: Sequence[Slot], rungs: Sequence[int]) -> list[str]:
    """What was measured, for people."""
    top, lines = len(rungs) - 1, []
    for rung in range(top):
        found = agreement(slots, rung, top)
        if found.correlation is None:
            continue
        told = "decide who goes on" if found.holds else "do not show which trials are good, so they run in full"
        lines.append(
            f"ranks after {rungs[rung]} of {rungs[top]} epochs {told} "
            f"(rank correlation {found.correlation:.2f} over {found.pairs} trials)"
        )
    return lines
