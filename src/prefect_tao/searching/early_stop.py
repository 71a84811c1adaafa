"""Whether a trial that runs is so far behind the others that it can stop."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from prefect_tao.searching.fidelity import ENOUGH, rank_correlation
from prefect_tao.searching.search_plan import SearchPlan
from prefect_tao.searching.trial_record import Standing, TrialRecord

OTHERS = 5  # trials that ran to their end, before any is stopped
EARLIEST = 3  # epochs that every trial may show


def is_behind(trial: TrialRecord, epoch: int, records: Sequence[TrialRecord], plan: SearchPlan) -> bool:
    """Its best so far is worse than the median of the others' at the same epoch, and that tells how they ended."""
    sign = plan.signs[0]
    others = [
        one
        for one in records
        if one.rung == trial.rung
        and one.end in (Standing.COMPLETE, Standing.PAUSED)
        and min(one.curve, default=epoch + 1) <= epoch
    ]
    if epoch < max(EARLIEST, plan.min_epochs) or len(others) < OTHERS or not trial.curve:
        return False
    pairs = [(best_by(one, epoch, sign), sign * one.result[0]) for one in others if one.result]
    agreed = rank_correlation(pairs)
    if agreed is None or agreed < ENOUGH:
        return False
    return best_by(trial, epoch, sign) > statistics.median(low for low, _ in pairs)


def best_by(one: TrialRecord, epoch: int, sign: float) -> float:
    """The best value that a trial has reported up to an epoch, smaller being better."""
    return min((sign * value for at, value in one.curve.items() if at <= epoch), default=float("inf"))
