"""What a person sees of a chain and of a sweep: a line per step, or the counts and the best so far."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prefect_tao.cli.screen import PLAIN_SECONDS, Screen, bar, line, program
from prefect_tao.jobs.chain_outcome import StepOutcome, StepState
from prefect_tao.jobs.events import Event, PointChanged, StepChanged, SweepStarted
from prefect_tao.jobs.points import PointOutcome, SweepOutcome
from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.jobs.state import JobState, Observation

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from prefect_tao.jobs.handle import JobHandle
    from prefect_tao.jobs.statusfile import Progress
    from prefect_tao.preflight.plans.step import Step

DRAW_SECONDS = 0.2
TOLD_FAILURES = 5
STYLES = {
    StepState.RUNNING: "cyan",
    StepState.COMPLETE: "green",
    StepState.ERROR: "red",
    StepState.CANCELED: "yellow",
    StepState.SKIPPED: "yellow",
}
# What Prefect's own words for a step do not tell.
ODD = (JobState.UNREACHABLE, JobState.PAUSED, JobState.CANCELING)


class Board(Screen):
    """Several jobs on one screen, drawn in place on a terminal; `run_key` is how a person comes back to them."""

    def __init__(self, out: Console, run_key: str) -> None:
        super().__init__(out)
        self.run_key = run_key
        self._live: Live | None = None
        self._drawn_at = 0.0
        self._later: asyncio.TimerHandle | None = None

    def lines(self) -> Iterator[RenderableType]:
        """The board as it stands."""
        yield from ()

    def note(self, text: str) -> None:
        """Something that takes a while; once there is a board, it is what is looked at."""
        if self._live is None:
            super().note(text)

    def draw(self, now: bool = False) -> None:
        """Draw the board, on a terminal and not too often; what is too early is drawn a moment later."""
        from rich.console import Group
        from rich.live import Live

        if not self.out.is_terminal:
            return
        wait = 0.0 if now else self._drawn_at + DRAW_SECONDS - time.monotonic()
        if wait > 0:
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(wait, self.draw, True)
            return
        self._forget_later()
        self._drawn_at = time.monotonic()
        with self._reader():
            if self._live is None:
                super().quiet()
                self._live = Live(console=self.out, auto_refresh=False)
                self._live.start()
            self._live.update(Group(*self.lines()), refresh=True)

    def _forget_later(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def quiet(self) -> None:
        """Draw the board for the last time and leave it on the screen."""
        super().quiet()
        self._forget_later()
        if self._live is not None:
            self.draw(now=True)
            with self._reader():
                self._live.stop()
            self._live = None

    def way_back(self) -> list[str]:
        """The same command with the key of this run: it attaches to what goes on and begins what was not begun."""
        words = sys.argv[1:]
        if "--run-key" not in words:
            words = [*words[:1], "--run-key", self.run_key, *words[1:]]
        return [shlex.join([program(), *words])]

    def _show_state(self, handle: JobHandle, seen: Observation) -> None:
        """Keep in mind which jobs go on; only what is out of the ordinary gets a line."""
        if seen.state.terminal:
            self.handles.pop(handle.key, None)
        else:
            self.handles[handle.key] = handle
        if seen.state in ODD:
            why = f" ({seen.reason})" if seen.reason else ""
            self._print(f"  {handle.labels.get('step', '')} {handle.name}  {seen.state.value}{why}")
        if self._live is not None:
            self.draw()


class ChainScreen(Board):
    """One line per step."""

    def __init__(self, out: Console, run_key: str, steps: Sequence[Step]) -> None:
        super().__init__(out, run_key)
        self._titles = {step.name: f"{step.title} on {step.target}" for step in steps}
        self._steps = {step.name: StepOutcome(name=step.name, target=step.target) for step in steps}
        self._progress: dict[str, str] = {}
        self._width = max((len(name) for name in self._steps), default=0)

    async def hear(self, event: Event) -> None:
        """Steps, and what happens to their jobs."""
        if isinstance(event, StepChanged):
            self._show_step(event.step)
        else:
            await super().hear(event)

    def _show_step(self, step: StepOutcome) -> None:
        """A line of its own where nothing is drawn in place."""
        self._steps[step.name] = step
        if step.state is not StepState.RUNNING:
            self._progress.pop(step.name, None)
        if self.out.is_terminal:
            self.draw(now=True)
        else:
            with self._reader():
                self.out.print(self._line(step), soft_wrap=True)

    def _show_progress(self, handle: JobHandle, progress: Progress) -> None:
        """Progress goes into the step's line, or is a plain line now and then."""
        name, text = handle.labels.get("step", ""), bar(progress)
        if not text:
            return
        self._progress[name] = text
        if self.out.is_terminal:
            self.draw()
        elif time.monotonic() - self._told_at >= PLAIN_SECONDS:
            self._told_at = time.monotonic()
            self._print(f"  {name:{self._width}}  {text}")

    def lines(self) -> Iterator[RenderableType]:
        """All steps, in their order."""
        yield from (self._line(step) for step in self._steps.values())

    def _job(self, name: str) -> str:
        """The step's job, as long as it is not over: what `logs` and `watch` take."""
        return next((handle.name for handle in self.handles.values() if handle.labels.get("step") == name), "")

    def _line(self, step: StepOutcome) -> RenderableType:
        words = self._progress.get(step.name) or self._job(step.name)
        if step.message:
            words = step.message.splitlines()[0]
        elif step.outcome and step.outcome.seconds is not None:
            words = f"after {format_seconds(step.outcome.seconds)}"
        state = (f"{step.state.value:9}", STYLES.get(step.state, "dim"))
        return line(f"  {step.name:{self._width}}  ", state, f"  {self._titles.get(step.name, '')}  {words}".rstrip())


class SweepScreen(Board):
    """Counts and the best so far, however many points there are; each of the first failures has a line."""

    def __init__(self, out: Console, run_key: str) -> None:
        super().__init__(out, run_key)
        self.board = SweepOutcome(points=())
        self._points: dict[str, PointOutcome] = {}
        self._failures = 0

    @property
    def outcome(self) -> SweepOutcome:
        """The points as far as they were heard of."""
        return self.board.model_copy(update={"points": tuple(self._points.values())})

    async def hear(self, event: Event) -> None:
        """Points, and what happens to their jobs."""
        match event:
            case SweepStarted(board):
                self._show_start(board)
            case PointChanged(point):
                self._show_point(point)
            case _:
                await super().hear(event)

    def _show_start(self, board: SweepOutcome) -> None:
        self.board = board
        self._points = {point.name: point for point in board.points}
        self._print(f"  {len(self._points)} points") if not self.out.is_terminal else self.draw(now=True)

    def _show_point(self, point: PointOutcome) -> None:
        self._points[point.name] = point
        if point.state is StepState.ERROR:
            self._failures += 1
            if self._failures <= TOLD_FAILURES:
                why = point.message.splitlines()[0] if point.message else ""
                self._print(f"  {point.label}  ", (point.state.value, STYLES[point.state]), f"  {why}")
        self._tell(last=all(one.state not in (StepState.WAITING, StepState.RUNNING) for one in self._points.values()))

    def _show_progress(self, handle: JobHandle, progress: Progress) -> None:
        """The progress of one among many is not shown."""

    def _word(self, state: StepState) -> str:
        """A point that runs may still wait for room on its target; only what has a job is there."""
        word = state.value.lower()
        if state is not StepState.RUNNING or not self.handles:
            return word
        return f"{word} ({len(self.handles)} {'jobs' if len(self.handles) > 1 else 'job'})"

    def _tell(self, last: bool) -> None:
        if self.out.is_terminal:
            self.draw(now=last)
        elif last or time.monotonic() - self._told_at >= PLAIN_SECONDS:
            self._told_at = time.monotonic()
            with self._reader():
                for shown in self.lines():
                    self.out.print(shown, soft_wrap=True)

    def lines(self) -> Iterator[RenderableType]:
        """How many are done, running and waiting, and which is the best."""
        found = self.outcome
        states = [f"{count} {self._word(state)}" for state in StepState if (count := found.count(state))]
        done = 1 - (found.count(StepState.WAITING) + found.count(StepState.RUNNING)) / max(len(found.points), 1)
        full = round(24 * done)
        yield line(f"  {'━' * full}{'┄' * (24 - full)} {done:4.0%}  {', '.join(states)}")
        if (best := found.best) and found.metric:
            yield line(
                "  best so far: ", (f"{found.metric} {best.metrics[found.metric]:.5g}", "green"), f" at {best.label}"
            )
