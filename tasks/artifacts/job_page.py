"""The page of one job: while it runs where it stands, with curves and the end of its log; then what came of it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import datetime

from prefect_tao.jobs.describing import describe
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.tasks.artifacts.curves import curve_images
from prefect_tao.tasks.artifacts.outcome_page import outcome_markdown
from prefect_tao.tasks.artifacts.pages import LivePage, log_link, note_page, page_key, quietly

BAR = 40  # characters
FENCE = "~" * 8
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")

# The last lines of a job's log, without secrets.
Tail = Callable[[JobHandle], Awaitable[str]]


class JobPage:
    """One artifact per job, under its title."""

    def __init__(self, label: str, key: str, tail: Tail | None = None) -> None:
        self.label = label
        self._key = key
        self._tail = tail
        self._page = LivePage(page_key("job", label, key))

    async def show(self, handle: JobHandle, seen: Observation, progress: Progress | None, watched: bool = True) -> None:
        """Where the job stands; `watched` says whether this run will tell of it further."""
        log = ""
        if self._tail is not None:
            async with quietly():
                log = await self._tail(handle)
        await self._draw(running_markdown(self.label, handle, seen, progress, log, watched, log_link(self._key)))

    async def end(self, outcome: Outcome, gpus: int, begun_at: datetime) -> None:
        """What came of it; whatever a job has reported, a page of it must not fail the job."""
        async with quietly():
            await self._draw(outcome_markdown(outcome, self.label, gpus, begun_at, log_link(self._key)))

    async def _draw(self, markdown: str) -> None:
        await self._page.show(markdown, self.label)
        if self._page.artifact is not None:
            note_page(self._key, self._page.artifact)


def running_markdown(
    label: str,
    handle: JobHandle,
    seen: Observation,
    progress: Progress | None,
    log: str,
    watched: bool = True,
    where: str = "",
) -> str:
    """A job that is not over, as a page."""
    rows = {
        "job": f"`{handle.name}` on `{handle.target}`",
        "state": f"**{seen.state.value}**" + (f" ({seen.reason})" if seen.reason else ""),
        "progress": progress_bar(progress),
        "attempt": str(handle.attempt) if handle.attempt > 1 else "",
        "in Prefect": where,
    }
    lines = [f"## {label}", "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items() if value)]
    if not watched:
        back = f"prefect-tao watch {handle.name} --target {handle.target}"
        lines += ["", f"This run watches the job no longer. `{back}` shows where it stands."]
    if progress:
        lines += [f"\n![{name}]({uri})" for name, uri in curve_images(progress).items()]
    if text := shown(log):
        lines += ["", "### The end of its log", "", FENCE, text, FENCE]
    return "\n".join(lines)


def progress_bar(progress: Progress | None) -> str:
    """Progress as text, which is readable on any background."""
    if progress is None:
        return ""
    if progress.fraction is None:
        return describe(progress)
    full = round(BAR * progress.fraction)
    return f"`{'█' * full}{'░' * (BAR - full)}` {progress.fraction:.0%}<br>{describe(progress)}"


def shown(log: str) -> str:
    """A log as text alone: no colours, of a line that was drawn in place its last state, and nothing that ends it."""
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in _COLOUR.sub("", log).rstrip().split("\n")]
    return "\n".join(line.replace(FENCE, "~" * 4) for line in lines).strip("\n")
