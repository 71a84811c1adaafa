"""Reads TAO's status.json, one appended JSON object per line: how far a job is and how well it does."""

import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import chain
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

HISTORY_LIMIT = 2000

Line = dict[str, Any]
Metrics = dict[str, float]
Position = tuple[str, int]

_CONTAINERS = ("kpi", "metrics", "data")
_LOOP = {
    "epoch": ("epoch", "cur_epoch"),
    "max_epoch": ("max_epoch", "max_epochs"),
    "step": ("step", "cur_iter"),
    "max_step": ("max_step", "max_iter", "max_iters"),
}
_LOOP_NAMES = {name for names in _LOOP.values() for name in names}
_NOT_METRICS = _LOOP_NAMES | {"eta", "time_per_epoch", "time_per_iter", "time_per_step"}
_USABLE = {"status", "message", "date", *_CONTAINERS, *_LOOP_NAMES}

_DURATION = re.compile(r"(?:(\d+)\s*days?,?\s*)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_DATE = re.compile(r"\s*(\d{1,2})/(\d{1,2})/(\d{4})\s*")
_CLOCK = re.compile(r"\s*(\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.\d+)?\s*")


class CurvePoint(BaseModel):
    """The metrics of one epoch, or of one step where a network counts steps only."""

    model_config = ConfigDict(frozen=True)

    epoch: int | None = None
    step: int | None = None
    metrics: Metrics = Field(default_factory=dict)


class Progress(BaseModel):
    """What a status file says so far; `metrics` holds the newest finite value of each metric."""

    model_config = ConfigDict(frozen=True)

    status: str | None = None
    message: str | None = None
    epoch: int | None = None
    max_epoch: int | None = None
    step: int | None = None
    max_step: int | None = None
    eta_seconds: float | None = None
    seconds_per_epoch: float | None = None
    metrics: Metrics = Field(default_factory=dict)
    not_finite: tuple[str, ...] = ()
    history: list[CurvePoint] = Field(default_factory=list)
    updated_at: datetime | None = None

    @property
    def fraction(self) -> float | None:
        by_epoch = _share(self.epoch, self.max_epoch)
        by_step = _share(self.step, self.max_step)
        if by_step is None:
            # A one-epoch run counted from zero reports "epoch 0 of 0", and only once that epoch is over.
            return 1.0 if self.max_epoch == 0 and self.epoch is not None else by_epoch
        if by_epoch is None or self.epoch is None or not self.max_epoch:
            return by_step
        # Some networks count steps over the whole run, others anew in each epoch; only the first agree with the epoch.
        if abs(by_step - by_epoch) <= 1 / self.max_epoch + 1e-9:
            return by_step
        return min(1.0, max(0, self.epoch - 1 + by_step) / self.max_epoch)


def parse_status(text: str) -> Progress | None:
    """The state a status file describes, or None when no line of it can be used."""
    reader = _Reader()
    for line in _lines(text):
        reader.take(line)
    return reader.progress()


class _Reader:
    """Takes the lines in order and keeps the newest of everything."""

    def __init__(self) -> None:
        self.used = False
        self.status: str | None = None
        self.message: str | None = None
        self.updated_at: datetime | None = None
        self.loop: dict[str, int] = {}
        self.eta: float | None = None
        self.pace: float | None = None
        self.latest: Metrics = {}
        self.seen: dict[str, dict[str, str]] = {}
        self.pending: Metrics = {}
        self.points: dict[Position, CurvePoint] = {}
        self.place: Position | None = None
        self.restarted = False

    def take(self, line: Line) -> None:
        self.used = True
        groups = _groups(line)
        status = _status(line)
        if status == "STARTED" and not any(groups.values()):
            self._begin_attempt()
        self.status = status or self.status
        self.message = _text(line.get("message")) or self.message
        self.updated_at = _moment(line) or self.updated_at
        says_where = self._follow(line)
        self._score(groups, says_where)

    def progress(self) -> Progress | None:
        if not self.used:
            return None
        if self.place in self.points:
            # Results of an epoch whose own line never came: they fill gaps, but must not replace what is known.
            self._record({**self.pending, **self.points[self.place].metrics})
        return Progress(
            status=self.status,
            message=self.message,
            **self.loop,
            eta_seconds=self._remaining(),
            seconds_per_epoch=self.pace,
            metrics=_finite(self.latest),
            not_finite=tuple(sorted(name for name, value in self.latest.items() if not math.isfinite(value))),
            history=_thin(list(self.points.values())),
            updated_at=self.updated_at,
        )

    def _begin_attempt(self) -> None:
        """A new process appends to the file: it repeats nothing, and what was left open stays unfinished."""
        self.seen.clear()
        self.pending.clear()
        self.eta = None
        self.place = None
        self.restarted = True

    def _follow(self, line: Line) -> bool:
        """Moves to the epoch or step of the line; False when the line does not name one."""
        found = {field: _whole(_find(line, names)) for field, names in _LOOP.items()}
        eta = _find(line, ("eta",))
        if found["epoch"] is not None or found["step"] is not None or eta is not None:
            self.eta = _seconds(eta)
        pace = _seconds(_find(line, ("time_per_epoch",)))
        self.pace = self.pace if pace is None else pace
        if found["epoch"] not in (None, self.loop.get("epoch")):
            self.loop.pop("step", None)
        self.loop.update({field: value for field, value in found.items() if value is not None})
        if found["epoch"] is not None:
            self._move(("epoch", found["epoch"]))
        elif found["step"] is not None and "epoch" not in self.loop:
            self._move(("step", found["step"]))
        else:
            return False
        return True

    def _move(self, place: Position) -> None:
        if self.restarted:
            # What an earlier attempt reached beyond the point where this one takes over was lost with it.
            self.points = {key: point for key, point in self.points.items() if key[0] != place[0] or key < place}
            self.restarted = False
        self.place = place

    def _score(self, groups: dict[str, Metrics], says_where: bool) -> None:
        fresh = self._fresh(groups)
        for group in groups.values():
            self.latest.update(group)
        if says_where:
            self._record({**self.pending, **_merge(fresh)})
            self.pending.clear()
            return
        # Validation results are written just before the line of their epoch, all others just after it.
        early = fresh.pop("validation", {})
        if self.place is None:
            self.pending.update(_merge(fresh))
        elif any(fresh.values()):
            self._record(_merge(fresh))
        self.pending.update(early)

    def _fresh(self, groups: dict[str, Metrics]) -> dict[str, Metrics]:
        """The groups that differ from the line before: TAO repeats its kpi on every line until it is replaced."""
        now = {name: {metric: repr(value) for metric, value in group.items()} for name, group in groups.items()}
        fresh = {name: group for name, group in groups.items() if name == "line" or now[name] != self.seen.get(name)}
        if groups["validation"] or groups["other"]:
            self.seen = now
        return fresh

    def _record(self, metrics: Metrics) -> None:
        if self.place is None:
            return
        old = self.points.get(self.place)
        self.points[self.place] = CurvePoint(
            epoch=self.loop.get("epoch"),
            step=self.loop.get("step"),
            metrics={**(old.metrics if old else {}), **_finite(metrics)},
        )

    def _remaining(self) -> float | None:
        if self.eta is not None or self.pace is None or not {"epoch", "max_epoch"} <= self.loop.keys():
            return self.eta
        return max(0, self.loop["max_epoch"] - self.loop["epoch"]) * self.pace


def _lines(text: str) -> Iterator[Line]:
    for raw in re.split(r"[\r\n]+", text):
        try:
            line = json.loads(raw.strip(" \t\x00\ufeff"))
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and not _USABLE.isdisjoint(line):
            yield line


def _containers(line: Line) -> Iterator[Line]:
    return (line[name] for name in _CONTAINERS if isinstance(line.get(name), dict))


def _find(line: Line, names: tuple[str, ...]) -> Any:
    for holder in chain([line], _containers(line)):
        for name in names:
            if holder.get(name) is not None:
                return holder[name]
    return None


def _groups(line: Line) -> dict[str, Metrics]:
    """The numbers of a line: its own losses, and its kpi parted into validation results and others."""
    own = {name: value for name, value in line.items() if "loss" in name.lower()}
    kpi: Metrics = {}
    for holder in _containers(line):
        kpi.update(_numbers(holder))
    validation = {name: value for name, value in kpi.items() if name.lower().startswith("val")}
    other = {name: value for name, value in kpi.items() if name not in validation}
    return {"line": _numbers(own), "validation": validation, "other": other}


def _numbers(values: Line) -> Metrics:
    found = {name: _number(value) for name, value in values.items() if name not in _NOT_METRICS}
    return {name: value for name, value in found.items() if value is not None}


def _merge(groups: dict[str, Metrics]) -> Metrics:
    return {name: value for group in groups.values() for name, value in group.items()}


def _finite(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and math.isfinite(number) else None


def _seconds(value: Any) -> float | None:
    number = _number(value)
    if number is None and isinstance(value, str) and (parts := _DURATION.fullmatch(value.strip())):
        days, hours, minutes, seconds = (float(part or 0) for part in parts.groups())
        number = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return number if number is not None and math.isfinite(number) and number >= 0 else None


def _text(value: Any) -> str | None:
    return value.strip() if isinstance(value, str) else None


def _status(line: Line) -> str | None:
    status = (_text(line.get("status")) or "").upper()
    return "SUCCESS" if status in ("COMPLETE", "COMPLETED") else status or None


def _moment(line: Line) -> datetime | None:
    """The line's local time, without a zone because the file does not say which."""
    date = _DATE.fullmatch(str(line.get("date")))
    clock = _CLOCK.fullmatch(str(line.get("time")))
    if not date or not clock:
        return None
    month, day, year = map(int, date.groups())
    hour, minute, second = map(int, clock.groups())
    try:
        return datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None


def _share(part: int | None, whole: int | None) -> float | None:
    if part is None or whole is None or whole <= 0:
        return None
    return min(1.0, max(0.0, part / whole))


def _thin(points: list[CurvePoint]) -> list[CurvePoint]:
    """At most HISTORY_LIMIT points, evenly spread, with the first and the last among them."""
    if len(points) <= HISTORY_LIMIT:
        return points
    last = len(points) - 1
    return [points[round(index * last / (HISTORY_LIMIT - 1))] for index in range(HISTORY_LIMIT)]
