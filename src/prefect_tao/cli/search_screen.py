"""What a person sees of a search while it runs: how far it is, the best so far, how long it may take, what it used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prefect_tao.cli.boards import SweepScreen
from prefect_tao.cli.screen import line
from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.points import SweepOutcome
from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.jobs.search_outcome import SearchOutcome

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WIDTH = 24


class SearchScreen(SweepScreen):
    """A few lines, however many trials there are; each of the first failures has a line."""

    def __init__(self, out: Console, run_key: str) -> None:
        super().__init__(out, run_key)
        self.board: SweepOutcome = SearchOutcome(points=())

    def take(self, board: SearchOutcome) -> None:
        """A board that was not heard of here."""
        self.board = board
        self._points = {point.name: point for point in board.points}

    @property
    def outcome(self) -> SearchOutcome:
        """The trials as far as they were heard of; which is the best follows from them."""
        update = {"points": tuple(self._points.values()), "best_number": None}
        found = self.board.model_copy(update=update)
        assert isinstance(found, SearchOutcome)  # noqa: S101 - nothing else is taken
        return found

    def _show_start(self, board: SweepOutcome) -> None:
        self.board = board
        self._points = {point.name: point for point in board.points}
        self.draw(now=True) if self.out.is_terminal else self._print("  the search begins")

    def lines(self) -> Iterator[RenderableType]:
        """How many are done, which is the best, when it may end and what it has used."""
        found = self.outcome
        over = sum(one.state not in (StepState.WAITING, StepState.RUNNING) for one in found.points)
        states = [f"{count} {self._word(state)}" for state in StepState if (count := found.count(state))]
        share = min(1.0, over / found.most_trials) if found.most_trials else 0.0
        full = round(WIDTH * share)
        most = f" of {found.most_trials}" if found.most_trials else ""
        yield line(f"  {'━' * full}{'┄' * (WIDTH - full)} {over}{most} trials  {', '.join(states)}")
        if (best := found.best) and found.metric and (score := found.score(best)) is not None:
            yield line(
                "  best so far: ", (f"{found.metric} {score:.5g}", "green"), f" in trial {best.number}: {best.label}"
            )
        told = []
        if (left := found.left) and found.count(StepState.RUNNING):
            told.append(f"about {format_seconds(left)} left")
        if used := sum(one.gpu_hours for one in found.points):
            told.append(
                f"{used:.3f}" + (f" of {found.most_gpu_hours:g}" if found.most_gpu_hours else "") + " GPU hours used"
            )
        if told:
            yield line(f"  {', '.join(told)}")
        if found.advice and found.count(StepState.RUNNING):
            yield line(f"  {found.advice}")
