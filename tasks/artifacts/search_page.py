"""The page of a search: its leaderboard, what it may spend and has spent, and what it has learned, as pictures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome, collect
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.jobs.search_board import SearchFolder
from prefect_tao.jobs.search_outcome import SearchOutcome, TrialOutcome
from prefect_tao.preflight.plans.searches import PlannedSearch, best_spec
from prefect_tao.tasks.artifacts.charts import (
    bars_picture,
    curves_picture,
    front_picture,
    history_picture,
    slices_picture,
)
from prefect_tao.tasks.artifacts.kept_board import hidden
from prefect_tao.tasks.artifacts.leaderboard import Leaderboard, board_markdown
from prefect_tao.tasks.artifacts.pages import links

if TYPE_CHECKING:
    from prefect_tao.searching.study import Study
    from prefect_tao.searching.trial_record import TrialRecord

MOST_SLICES, MOST_CURVES = 9, 60
SCORED = ("complete", "paused", "stopped")


@dataclass
class Learned:
    """What a search has found out so far, besides its trials."""

    importance: dict[str, float] = field(default_factory=dict)
    advice: str = ""
    notes: tuple[str, ...] = ()
    stopped: str = ""
    baseline: dict[str, float] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    winner: Outcome | None = None


class SearchPage(Leaderboard):
    """Where all trials stand, as a page in Prefect and as a file for the command line."""

    def __init__(self, search: PlannedSearch, study: Study, title: str, folder: SearchFolder, flow_run_id: str) -> None:
        first = search.objectives[0]
        super().__init__([], first.metric, first.direction, title, folder.key, {})
        self.search = search
        self.study = study
        self.learned = Learned()
        self.keys: dict[str, str] = {}  # of the trials' jobs, by name
        self._folder = folder
        self._flow_run_id = flow_run_id
        before = folder.read()
        earlier = before.seconds if before and before.study == study.name and study.history else 0.0
        self._begun = time.monotonic() - earlier

    @property
    def seconds(self) -> float:
        """How long the search has been led, by processes before this one too."""
        return time.monotonic() - self._begun

    def trial(self, name: str) -> TrialOutcome:
        """The row of a trial."""
        row = self.points[name]
        assert isinstance(row, TrialOutcome)  # noqa: S101 - nothing else is put here
        return row

    def scored(self, row: TrialOutcome, record: TrialRecord) -> TrialOutcome:
        """The row with what the study was told: the score that counts, and the whole curve."""
        if record.end.value not in SCORED or record.result is None:
            return row.model_copy(update={"message": row.message or record.failure, "curve": dict(record.curve)})
        names = [one.metric for one in self.search.objectives]
        metrics = {**row.metrics, **dict(zip(names, record.result, strict=True))}
        epochs = [epoch for epoch, value in record.curve.items() if value == record.result[0]]
        if self.search.given["evaluate_trials"]:
            epochs = []  # what was evaluated is what the trial left at its end
        best = (max if self.search.given["score_epoch"] == "last" else min)(epochs, default=None)
        update = {"metrics": metrics, "state": StepState.COMPLETE, "curve": dict(record.curve), "best_epoch": best}
        return row.model_copy(update=update)

    def take_over(self, record: TrialRecord, name: str, handle: JobHandle | None, seconds: float, gpus: int) -> None:
        """A trial that an earlier process has seen to its end."""
        state = StepState.ERROR if record.end.value == "failed" else StepState.CANCELED
        row = TrialOutcome(
            name=name,
            label=", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in record.values.items()),
            overrides=dict(record.values),
            state=state,
            number=record.number,
            configuration=record.configuration,
            rung=record.rung,
            epochs=record.epochs,
            parent=record.parent,
            handle=handle,
            results=handle.results if handle else "",
            seconds=seconds,
            total_seconds=seconds,
            gpus=gpus,
        )
        self.points[name] = self.scored(row, record)

    async def collected(self, number: int, platform: Platform) -> Outcome | None:
        """What a trial of an earlier process left, as its platform knows it; None where there is no such job."""
        row = next((one for one in self.points.values() if getattr(one, "number", None) == number), None)
        if row is None or row.handle is None:
            return None
        try:
            seen = (await platform.observe([row.handle]))[row.handle]
            return await collect(platform, row.handle, seen)
        except (Unreachable, OSError, KeyError):
            return None

    def outcome(self) -> SearchOutcome:
        """Everything as it stands."""
        learned, search = self.learned, self.search
        trials = tuple(sorted((self.trial(name) for name in self.points), key=lambda one: one.number))
        used = sum(one.gpu_hours for one in trials)
        best = self.study.best
        return SearchOutcome(
            points=trials,
            metric=self.metric,
            direction=self.direction,
            algorithm=search.plan.algorithm,
            title=search.title,
            study=self.study.name,
            storage=str(search.given.get("storage") or self._folder.storage()).rpartition("@")[2],
            flow_run_id=self._flow_run_id,
            metrics=tuple(one.metric for one in search.objectives),
            most_trials=search.plan.max_trials,
            concurrent=search.budget.concurrent,
            most_gpu_hours=search.budget.gpu_hours,
            best_number=best.number if best else None,
            spec=best_spec(search, best.values) if best else {},
            front=tuple(one.number for one in self.study.front) if len(search.objectives) > 1 else (),
            stopped=learned.stopped,
            notes=learned.notes,
            advice=learned.advice,
            baseline=learned.baseline,
            final=learned.final,
            winner=learned.winner,
            importance=learned.importance,
            gpu_hours=used,
            cost=used * search.budget.price if search.budget.price else None,
            seconds=self.seconds,
        )

    async def publish(self) -> None:
        """Draw the page, and write the board for the command line."""
        await asyncio.to_thread(self._learn)
        outcome = self.outcome()
        self._folder.write(outcome)
        self._drawn_at = time.monotonic()
        where = [links(self.keys.get(one.name, "")) for one in outcome.ranked]
        page = f"{search_markdown(outcome, where)}\n\n{hidden(outcome)}\n"
        await self._page.show(page, self._words(outcome))

    def _learn(self) -> None:
        """What the trials tell about the search itself; it takes a moment, so it is asked for only when it is shown."""
        from prefect_tao.searching.importance import importances

        took = [one.seconds for one in self.points.values() if one.seconds and one.state is StepState.COMPLETE]
        advice = self.study.advice(took)
        self.learned.notes = tuple(self.study.fidelity)
        self.learned.advice = str(advice) if advice else ""
        self.learned.importance = importances(self.study)

    async def note(self, point: Any) -> None:
        """Take in how a trial stands; the file for the command line follows at once."""
        await super().note(point)
        self._folder.write(self.outcome())


def search_markdown(found: SearchOutcome, where: Sequence[str] = ()) -> str:
    """The search as a page; `where` are links to what Prefect has of each trial, best first."""
    lines = [f"## AutoML: {found.title}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in _facts(found).items() if value]
    if found.best is not None:
        lines += ["", "### Best" if found.winner else "### Best so far", ""]
        lines += ["~~~~yaml", found.spec_yaml().rstrip(), "~~~~"]
    for words, picture in _pictures(found).items():
        lines += ["", f"![{words}]({picture})"]
    shown = found.model_copy(update={"points": tuple(_short(one) for one in found.points)})
    lines += ["", board_markdown(shown, where or [""] * len(found.points))] if found.points else []
    return "\n".join(lines)


def _short(trial: TrialOutcome) -> TrialOutcome:
    """The trial with as many digits of its values as a person compares; the files have all of them."""
    values = {key: float(f"{one:.5g}") if isinstance(one, float) else one for key, one in trial.overrides.items()}
    return trial.model_copy(update={"overrides": values})


def _facts(found: SearchOutcome) -> dict[str, str]:
    best = found.best
    done = f"{found.count(StepState.COMPLETE)} complete, {found.count(StepState.ERROR)} failed, "
    done += f"{found.count(StepState.RUNNING)} running"
    return {
        "algorithm": found.algorithm,
        "judged by": ", ".join(found.metrics) + f" ({found.direction})",
        "trials": done + (f", at most {found.most_trials}" if found.most_trials else ""),
        "best": f"{best.metrics[found.metric or '']:.5g} in trial {best.number}" if best else "",
        **found.evaluations,
        "GPU hours": _spent(found) if any(one.gpus for one in found.points) else "",
        "time": format_seconds(found.seconds),
        "ended early": found.stopped,
        "what to expect": found.advice,
        "rungs": "; ".join(found.notes),
        "storage": f"`{found.storage}` (study `{found.study}`)",
    }


def _spent(found: SearchOutcome) -> str:
    return f"{found.gpu_hours:.3f}" + (f" ({found.cost:.2f} in money)" if found.cost is not None else "")


def _pictures(found: SearchOutcome) -> dict[str, str]:
    """By what it shows, each picture for which there is enough to see."""
    metric, pictures = found.metric or "", dict[str, str]()
    scored = [(one, score) for one in found.points if (score := found.score(one)) is not None]
    if len(scored) > 1:
        values = [(float(one.number), score) for one, score in scored]
        pictures["optimisation history"] = history_picture(metric, values, found.direction == "maximize")
    curves = {
        one.name: sorted((float(epoch), value) for epoch, value in one.curve.items())
        for one in found.points[-MOST_CURVES:]
        if len(one.curve) > 1
    }
    if curves:
        best = found.best
        pictures["learning curves"] = curves_picture(metric, curves, best.name if best else None)
    if found.importance:
        pictures["importance of parameters"] = bars_picture("what matters most", found.importance)
    if len(scored) > 1 and (slices := _slices(found, scored)):
        pictures["the metric over each parameter"] = slices_picture(metric, slices)
    if len(found.metrics) > 1 and len(scored) > 1:
        first, second = found.metrics[:2]
        both = [(one.number, (one.metrics[first], one.metrics[second])) for one, _ in scored if second in one.metrics]
        front = [place for number, place in both if number in found.front]
        if both:
            pictures["Pareto front"] = front_picture((first, second), [place for _, place in both], front)
    return pictures


def _slices(found: SearchOutcome, scored: list[tuple[TrialOutcome, float]]) -> dict[str, list[tuple[float, float]]]:
    """By parameter its values and what came of them; choices stand by their place among all."""
    keys = list(found.importance) or list(scored[0][0].overrides)
    slices: dict[str, list[tuple[float, float]]] = {}
    for key in keys[:MOST_SLICES]:
        values = [one.overrides.get(key) for one, _ in scored]
        words = sorted({str(value) for value in values})
        places = [
            float(value) if isinstance(value, int | float) and not isinstance(value, bool) else words.index(str(value))
            for value in values
        ]
        slices[key] = [(place, score) for place, (_, score) in zip(places, scored, strict=True)]
    return slices
