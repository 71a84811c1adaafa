"""The world in memory: the service that knows the truth, on a clock that does not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from hypothesis import strategies as st

from prefect_tao.jobs import clock
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import EndedBy, JobState
from prefect_tao.platforms import markers
from prefect_tao.testing.engine import REFUSED, Line, LineFault, SimulatedEngine, SimulatedJob, Stage
from prefect_tao.testing.simulated import SimulatedPlatform
from prefect_tao.testing.virtual_time import VirtualLoop
from prefect_tao.testing.world import Client, Event, World

RUN_SECONDS = 20.0


class SimulatedWorld(World):
    """Jobs in memory; `driver` is the driver under test."""

    # A list with holes spoils only answers to questions: it has to come more often to be met as often as the others.
    faults = (*LineFault, LineFault.PARTIAL, LineFault.PARTIAL)
    events = frozenset(Event)
    pauses = (0.0, 0.06, 0.11, 0.2, 0.6, 2.0, 6.0, 15.0, 40.0, 200.0)
    settle_seconds = 4 * 3600.0
    refuses = True

    def __init__(self, unique_names: bool, driver: type[SimulatedPlatform] = SimulatedPlatform) -> None:
        self.engine = SimulatedEngine(unique_names, on_new_job=self._on_new_job)
        self.driver = driver
        self.secrets = {"TOKEN": "simulated-secret"}
        self.lines: list[Line] = []
        self.asked_at: dict[str, float] = {}
        self._wrong: list[str] = []
        self._open = ExitStack()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """A loop that does not wait, and the clock kept by it."""
        self.loop = VirtualLoop()
        self._open.enter_context(clock.kept_by(self.loop.now))
        return self.loop

    def client(self) -> Client:
        """A driver with a line of its own."""
        line = Line(self.engine)
        self.lines.append(line)

        def cut() -> None:
            line.is_dead = True

        return Client(self.driver(line), lambda fault: line.faults.append(LineFault(fault)), cut)

    def request(self, refused: bool = False) -> JobRequest:
        """Any job: what happens to it is decided here."""
        return JobRequest.build(command=REFUSED if refused else "train", secrets=["TOKEN"])

    def has_begun(self, handle: JobHandle) -> bool:
        """Whether one of those that bore the name was started, or is over."""
        jobs = self.engine.of(JobName(handle.key, handle.attempt))
        return any(job.stage is not Stage.CREATED for job in jobs)

    async def happens(self, event: Event, key: str) -> None:
        """Let it happen to what lives of the key."""
        if event is Event.FORGOTTEN:
            self.engine.forget()
        for job in self.engine.live(key):
            if event is Event.STOPPED:
                self.engine.end([job.id], by_person=True)
            elif event is Event.REQUEUED:
                self.engine.requeue(job)
            elif event is not Event.FORGOTTEN:
                ended_by = EndedBy.PREEMPT if event is Event.TAKEN_AWAY else EndedBy.NONE
                self.engine.finish(job, ended_by, {Event.ENDS_WELL: 0, Event.FAILS: 1}.get(event, 143))

    def set_away(self, away: bool) -> None:
        """Requests do not arrive meanwhile."""
        self.engine.is_away = away

    def set_full(self, full: bool) -> None:
        """Jobs stay in the queue meanwhile."""
        self.engine.is_full = full

    def let_end(self) -> None:
        """What runs ends soon, and so does what is started from now on."""
        self.engine.run_seconds = RUN_SECONDS
        for line in self.lines:
            line.faults.clear()
        for job in self.engine.jobs:
            self.loop.call_later(RUN_SECONDS, self.engine.finish, job, EndedBy.NONE, 0)

    def asked(self, key: str) -> None:
        """From when on a job that failed or was stopped before may be followed by another attempt."""
        self.asked_at[key] = self.loop.time()

    def _on_new_job(self, job: SimulatedJob) -> None:
        before = JobName(job.name.key, job.name.attempt - 1)
        for other in self.engine.of(before):
            if other.is_live or other.is_duplicate:
                continue
            if other.exit_code == 0 and other.ended_by is EndedBy.NONE:
                self._wrong.append(f"{job.name} was made although {before} was complete")
            # Of what was stopped while it waited, for its first run or to be restarted, and then forgotten, nothing
            # tells that a person stopped it.
            record = self.engine.records.get(str(before), {})
            was_seen = other.is_listed or record.get("ended_by") is EndedBy.CANCEL
            if was_seen and other.by_person and self.asked_at[job.name.key] < (other.ended_at or 0):
                self._wrong.append(f"{job.name} was made although a person had stopped {before}")

    def wrong(self) -> list[str]:
        """What the service has noticed, and attempts that no launch asked for."""
        return [*self.engine.wrong, *self._wrong]

    def ends(self, handle: JobHandle) -> set[JobState]:
        """The ends of what bore the name; what never ran and was forgotten is an error, for all that can be seen."""
        over = [
            job
            for job in self.engine.of(JobName(handle.key, handle.attempt))
            if not job.is_live and not job.is_duplicate
        ]
        ends = {markers.end_state(job.ended_by, job.exit_code) for job in over}
        return ends | {JobState.ERROR for job in over if not job.is_listed and not job.starts}

    def live(self, key: str) -> list[str]:
        """What the service has under the key and is not over."""
        return [f"{job.name} ({job.stage})" for job in self.engine.live(key)]

    def secrets_left(self) -> list[str]:
        """Jobs that are over and still have theirs."""
        return [str(job.name) for job in self.engine.jobs if job.has_secrets and not job.is_live]

    def close(self) -> None:
        """The clock is the machine's again."""
        self._open.close()


def simulated(driver: type[SimulatedPlatform] = SimulatedPlatform) -> Callable[[Callable[..., Any]], World]:
    """Worlds in memory, with unique names or without."""
    return lambda draw: SimulatedWorld(unique_names=draw(st.booleans()), driver=driver)
