"""What a person sees while jobs run: a live line per step on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from prefect_tao.jobs.events import Event, JobFound, LogWritten, Progressed, RetryPlanned, RunBegan, StateChanged
from prefect_tao.jobs.listening import Listener
from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.jobs.state import JobState, Observation

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from prefect_tao.jobs.handle import JobHandle
    from prefect_tao.jobs.outcome import Outcome
    from prefect_tao.jobs.statusfile import Progress

PLAIN_SECONDS = 5.0
STYLES = {JobState.COMPLETE: "green", JobState.ERROR: "red", JobState.CANCELED: "yellow"}


def console() -> Console:
    """Human words go to standard error, so that standard output stays for results."""
    from rich.console import Console

    class Lasting(Console):
        """rich ends the program when its reader is gone; here a job is being watched."""

        def on_broken_pipe(self) -> None:
            silence(self)

    return Lasting(stderr=True, highlight=False)


def silence(out: Console) -> None:
    """Say nothing more: the reader is gone. What others still write there, and the flush at the end, go nowhere."""
    out.quiet = True
    with suppress(OSError, ValueError, AttributeError):  # not everything that is written to is a real file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.file.fileno())
        os.close(nowhere)


def program() -> str:
    """How this program was called, so that the commands we print work when they are copied."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":  # python -m prefect_tao.cli
        known = shutil.which(Path(sys.executable).name)
        python = Path(sys.executable).name if known == sys.executable else shlex.quote(sys.executable)
        return f"{python} -m prefect_tao.cli"
    if shutil.which(called.name) or not called.is_file():
        return called.name
    here = Path.cwd()
    return str(called.absolute().relative_to(here) if called.absolute().is_relative_to(here) else called.absolute())


class Screen(Listener):
    """Shows states and progress; with `logs`, the job's own output instead of a progress line."""

    def __init__(self, out: Console, logs: bool = False) -> None:
        self.out = out
        self.wants_logs = logs
        self.flow_run_id = ""  # of the flow that the command runs
        self.handles: dict[str, JobHandle] = {}  # the jobs that are not over, for a person who interrupts
        self._status = out.status("") if out.is_terminal and not logs else None
        self._told_at = 0.0

    def note(self, text: str) -> None:
        """Something that takes a while; on a terminal it is shown until the next thing."""
        from rich.text import Text

        if self._status is None:
            self._print(text)
            return
        with self._reader():
            self._status.update(Text(text))
            self._status.start()

    def quiet(self) -> None:
        """Clear the live line."""
        with self._reader():
            if self._status:
                self._status.stop()

    def leave(self) -> None:
        """Show what is there for the last time: its reader is leaving."""
        self.quiet()
        self.out.quiet = True

    def way_back(self) -> list[str]:
        """The commands by which a person who leaves comes back to the jobs that go on."""
        return [f"{program()} watch {handle.name} --target {handle.target}" for handle in self.handles.values()]

    async def hear(self, event: Event) -> None:
        """A line per event, the live line for progress, and the job's output as it is."""
        match event:
            case RunBegan(flow_run_id):
                self.flow_run_id = self.flow_run_id or flow_run_id
            case StateChanged(handle, seen):
                self._show_state(handle, seen)
            case Progressed(handle, progress):
                self._show_progress(handle, progress)
            case LogWritten(_, text):
                self._write(text)
            case JobFound(handle, finding):
                step = f"  {handle.labels.get('step', ''):9} "
                self._print(step, (finding.level.value, "yellow"), f": {finding.message}; {finding.remedy}")
            case RetryPlanned(handle, verdict, delay):
                self._print(f"  {title(handle)}  {verdict.cause} Next attempt in {format_seconds(delay)}.")

    def _show_state(self, handle: JobHandle, seen: Observation) -> None:
        """A line per change of state."""
        if seen.state.terminal:
            self.handles.pop(handle.key, None)
        else:
            self.handles[handle.key] = handle
        why = f" ({seen.reason})" if seen.reason else ""
        self._print(f"  {title(handle)}  ", (seen.state.value, STYLES.get(seen.state, "cyan")), why)
        if seen.state.terminal:
            self.quiet()
        elif self._status:
            self.note(f"{title(handle)} is {seen.state.value}")

    def _show_progress(self, handle: JobHandle, progress: Progress) -> None:
        """The live line, or a plain line now and then."""
        text = bar(progress)
        if not text:
            return
        if self._status:
            self.note(text)
        elif not self.wants_logs and time.monotonic() - self._told_at >= PLAIN_SECONDS:
            self._told_at = time.monotonic()
            self._print(f"  {title(handle)}  {text}")

    def _write(self, text: str) -> None:
        with self._reader():
            if not self.out.quiet:
                self.out.file.write(text)
                self.out.file.flush()

    def _print(self, *parts: str | tuple[str, str]) -> None:
        with self._reader():
            self.out.print(line(*parts), soft_wrap=True)

    @contextmanager
    def _reader(self) -> Iterator[None]:
        """Write for a reader who may have left: a pipe that was closed, a terminal that is gone."""
        try:
            yield
        except OSError:
            silence(self.out)
        if self.out.quiet:
            self.wants_logs = False


def line(*parts: str | tuple[str, str]) -> RenderableType:
    """Words as they are, with a style where one is given; what a job says may look like markup and is none."""
    from rich.text import Text

    return Text.assemble(*parts)


def title(handle: JobHandle) -> str:
    """A job as a person knows it: its step and its name."""
    return f"{handle.labels.get('step', ''):9} {handle.name}".strip()


def logs_command(handle: JobHandle) -> str:
    """The command that prints the job's output."""
    return f"{program()} logs {handle.name} --target {handle.target}"


def bar(progress: Progress) -> str:
    """Progress as a bar of text and its words."""
    from prefect_tao.jobs.describing import describe

    if progress.fraction is None:
        return describe(progress)
    full = round(24 * progress.fraction)
    return f"{'━' * full}{'┄' * (24 - full)} {progress.fraction:4.0%}  {describe(progress)}"


def print_outcome(out: Console, outcome: Outcome, with_words: bool = True) -> None:
    """The closing lines of one job, after its own last words where those were not shown before."""
    from prefect_tao.jobs.redacting import without_escapes

    if with_words and outcome.last_words:
        out.print(line(without_escapes(outcome.last_words)), soft_wrap=True)
    took = f" after {format_seconds(outcome.seconds)}" if outcome.seconds is not None else ""
    state = (outcome.state.value, STYLES.get(outcome.state, "cyan"))
    where = f"results in {outcome.results}" if outcome.results else "its results ended with it: no place was named"
    out.print(line(state, f"{took}; {where}"), soft_wrap=True)
    for name, value in sorted(outcome.metrics.items()):
        out.print(line(f"  {name} {value:.4g}"))
