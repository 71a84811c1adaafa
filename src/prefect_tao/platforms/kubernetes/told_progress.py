"""How far jobs are whose files cannot be seen from here: by the status lines that the runner repeats in their logs."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.statusfile import Progress, parse_status
from prefect_tao.platforms.kubernetes import pod_logs
from prefect_tao.platforms.kubernetes.client import ClusterApi, Manifest

# A look costs no more than this many logs, however many jobs there are; those that waited longest come first.
MOST_LOGS = 10
# Of a log that is read for the first time.
FIRST_LINES = 20_000
MOST_LINES = 20_000
SLOWDOWN = 1.5
_TOLD = re.compile(r"\[prefect-tao\] (\S.*status\.json): (\{.*)")


@dataclass
class _Told:
    """What one job has said so far: the lines of the file that it named last."""

    asked_at: float = -math.inf
    pause: float = 0.0
    cursor: str | None = None
    file: str = ""
    lines: list[str] = field(default_factory=list)
    is_whole: bool = False
    progress: Progress | None = None

    def take(self, text: str) -> bool:
        """Take in more of the log; whether there is news in it."""
        found = _TOLD.findall(text)
        for file, line in found:
            if file != self.file:
                self.file, self.lines = file, []
            self.lines.append(line)
        if found:
            del self.lines[:-MOST_LINES]
            self.progress = parse_status("\n".join(self.lines))
        return bool(found)


@dataclass
class ToldProgress:
    """Reads the logs of jobs: soon again where there was news, more and more seldom where there is none."""

    api: ClusterApi
    pauses: tuple[float, float]
    _told: dict[JobHandle, _Told] = field(default_factory=dict)

    async def refresh(self, running: Mapping[JobHandle, Manifest], ended: Mapping[JobHandle, Manifest]) -> None:
        """Look for news in the logs of these Pods; once more where a job that was followed has ended."""
        now = time.monotonic()
        last = [one for one in ended if one in self._told and not self._told[one].is_whole]
        due = [one for one in running if one not in self._told or now > self._asked_at(one) + self._told[one].pause]
        some = [*last, *sorted(due, key=self._asked_at)[:MOST_LOGS]]
        pods = {**running, **ended}
        await asyncio.gather(*(self._ask(one, pods[one], is_whole=one in ended) for one in some))

    def of(self, handle: JobHandle) -> Progress | None:
        """What was read last."""
        return self._told[handle].progress if handle in self._told else None

    def _asked_at(self, handle: JobHandle) -> float:
        return self._told[handle].asked_at if handle in self._told else -math.inf

    async def _ask(self, handle: JobHandle, pod: Manifest, is_whole: bool) -> None:
        told = self._told.setdefault(handle, _Told())
        told.asked_at = time.monotonic()
        tail = None if told.cursor else FIRST_LINES
        with suppress(Unreachable):  # where a job stands is known without it
            chunk = await pod_logs.read(self.api, [pod], tail, told.cursor)
            told.cursor, told.is_whole = chunk.cursor, is_whole
            shortest, longest = self.pauses
            told.pause = shortest if told.take(chunk.text) else min(max(told.pause * SLOWDOWN, shortest), longest)
