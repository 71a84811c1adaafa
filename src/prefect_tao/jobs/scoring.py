"""What a trial is judged by: a metric in its status file, in a JSON file that it leaves, or in its log."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from prefect_tao.jobs.quantities import Direction
from prefect_tao.jobs.statusfile import Progress

Epoch = Literal["best", "last"]
_PREFIXES = ("val_", "test_", "")
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"


class Score(NamedTuple):
    """A value, and the epoch it belongs to, where that is known. NaN: the metric is there, and it is no number."""

    value: float
    epoch: int | None = None


def spelling(metric: str, known: Iterable[str]) -> str | None:
    """The name that a job gives a metric: what a training reports as val_mAP, an evaluation calls test_mAP."""
    plain = {_plain(name): name for name in known}
    stem = _plain(metric)
    bare = next(stem.removeprefix(prefix) for prefix in _PREFIXES if stem.startswith(prefix))
    return next((plain[word] for word in (stem, *(f"{one}{bare}" for one in _PREFIXES)) if word in plain), None)


def _plain(name: str) -> str:
    """A name without what differs between loggers: case, blanks, slashes and dashes."""
    return re.sub(r"[\s/.-]+", "_", name.strip().lower()).replace("validation_", "val_")


def curve(progress: Progress | None, metric: str) -> list[Score]:
    """The finite values of a metric by epoch; those of one that is counted in steps have no epoch."""
    if progress is None:
        return []
    names = {name for point in progress.history for name in point.metrics}
    name = spelling(metric, names)
    points = [(point.epoch, point.metrics.get(name or "")) for point in progress.history]
    found = [Score(value, epoch) for epoch, value in points if value is not None and math.isfinite(value)]
    if not found and (last := spelling(metric, progress.metrics)):
        found = [Score(progress.metrics[last], progress.epoch)]
    return found


def chosen(scores: list[Score], direction: Direction, epoch: Epoch = "best") -> Score | None:
    """The score that counts: the best epoch's, whose checkpoint is there too, or the last one's."""
    if not scores:
        return None
    choose = max if direction == "maximize" else min
    return scores[-1] if epoch == "last" else choose(scores, key=lambda one: one.value)


def in_file(data: bytes, metric: str) -> Score | None:
    """The metric in a JSON file: a map of numbers, nested or not, or one map per line, of which the last counts."""
    found: dict[str, float] = {}
    lines = [data, *data.splitlines()] if data.strip() else []
    for line in lines:
        try:
            found |= dict(_numbers(json.loads(line)))
        except (ValueError, RecursionError):
            continue
    name = spelling(metric, found)
    return Score(found[name]) if name else None


def has_diverged(progress: Progress | None, metric: str) -> bool:
    """Whether the newest value of a metric is no number."""
    return progress is not None and spelling(metric, [*progress.metrics, *progress.not_finite]) in progress.not_finite


def _numbers(tree: Any) -> Iterable[tuple[str, float]]:
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield str(key), float(value)


def in_log(text: str, metric: str) -> Score | None:
    """The last `metric: value` or `metric=value` in a log."""
    name = re.sub(r"[\s_/-]+", r"[\\s_/-]+", re.escape(metric).replace("\\", ""))
    found = re.findall(rf"(?<![\w/]){name}(?![\w/])[\"']?\s*[:=]\s*({_NUMBER})(?![\w.])", text, re.IGNORECASE)
    return Score(float(found[-1])) if found else None
