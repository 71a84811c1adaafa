"""Reads what a trial is judged by, wherever it left that: its status file, a file of results, or its log."""

from __future__ import annotations

import math

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.scoring import Epoch, Score, chosen, curve, has_diverged, in_file, in_log
from prefect_tao.preflight.plans.search_limits import Objective
from prefect_tao.preflight.plans.searches import PlannedSearch

MOST_BYTES, MOST_LINES = 1 << 22, 10_000


async def read_scores(platform: Platform, outcome: Outcome, search: PlannedSearch) -> dict[str, Score | None]:
    """By metric of the search its score; NaN where that is no number, None where the trial reported none."""
    metric_file = search.metric_file
    found: dict[str, Score | None] = {}
    text: str | None = None
    for one in search.objectives:
        score = await _from_file(platform, outcome, one.metric, metric_file) if metric_file else None
        score = score or _from_curve(outcome, one, search.given["score_epoch"])
        if score is None:
            text = await _log(platform, outcome) if text is None else text
            score = in_log(text, one.metric)
        found[one.metric] = score
    return found


def _from_curve(outcome: Outcome, one: Objective, epoch: Epoch) -> Score | None:
    score = chosen(curve(outcome.progress, one.metric), one.direction, epoch)
    is_nothing = (score is None or epoch == "last") and has_diverged(outcome.progress, one.metric)
    return Score(math.nan) if is_nothing else score


async def _from_file(platform: Platform, outcome: Outcome, metric: str, name: str) -> Score | None:
    places = [path for path in outcome.files if path.endswith(f"/{name.lstrip('/')}")]
    for place in places or [f"{outcome.results.rstrip('/')}/{name}"]:
        try:
            score = in_file(await retry(lambda: platform.read_path(place, MOST_BYTES)), metric)  # noqa: B023
        except (InvalidInput, Unreachable, OSError):
            continue
        if score:
            return score
    return None


async def _log(platform: Platform, outcome: Outcome) -> str:
    try:
        return (await platform.logs(outcome.handle, tail=MOST_LINES)).text
    except (Unreachable, OSError):
        return ""
