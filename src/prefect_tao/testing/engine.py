"""A computing service in memory that knows the truth about its jobs, and the line over which it is asked.

It is as unhelpful as real ones are: it forgets jobs that are over, starts a job anew by itself, and, unless names are
unique there, takes a second job under the same name. What happened is kept for good in `jobs`; the service itself shows
only what it has not forgotten. What must never happen is written down in `wrong` at the moment when it does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.state import EndedBy

START_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
# How late a request may still arrive; a name must have been denied for longer before it is tried again.
LATEST_SECONDS = 25.0
# A command that the service does not take.
REFUSED = "refused"


class Stage(StrEnum):
    """Where a job is in its life, as the service knows it."""

    CREATED = "created"
    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(eq=False)
class SimulatedJob:
    """One object of the service. `starts` counts how often its command began."""

    id: str
    name: JobName
    facts: Mapping[str, Any]
    made_at: float
    stage: Stage
    is_listed: bool = True
    is_duplicate: bool = False
    has_secrets: bool = False
    starts: int = 0
    restarts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    ended_by: EndedBy = EndedBy.NONE
    by_person: bool = False
    exit_code: int | None = None

    @property
    def is_live(self) -> bool:
        """Whether it costs something, now or soon."""
        return self.stage is not Stage.ENDED

    def shown(self) -> dict[str, Any]:
        """What the service answers when it is asked for this job."""
        shown = ("id", "stage", "restarts", "started_at", "ended_at", "ended_by", "exit_code", "is_duplicate")
        return {"name": str(self.name), "facts": self.facts, **{each: getattr(self, each) for each in shown}}


@dataclass
class Reply:
    """What comes back: a code as HTTP has them, data that is whole or not, and what jobs have written down."""

    code: int
    data: Any = None
    whole: bool = True
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass
class SimulatedEngine:
    """The service. With `unique_names` a job is created and started by two requests, and its name is its own.

    Two of them, each with a `site` of its own, may be given the same `records`: then they share a place for results.
    """

    unique_names: bool
    site: str = "simulated service 1"
    jobs: list[SimulatedJob] = field(default_factory=list)
    # The storage for results, which forgets nothing: what jobs write down there, by name.
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    is_full: bool = False
    is_away: bool = False
    run_seconds: float | None = None
    on_new_job: Callable[[SimulatedJob], None] = lambda job: None

    # -- what can be asked ---------------------------------------------------------------------------------------------

    def create(self, name: JobName, facts: Mapping[str, Any], has_secrets: bool) -> Reply:
        """Make a job with its secrets; where names are not unique it is queued at once."""
        if facts["command"] == REFUSED:
            return Reply(400, "the shape is not allowed here")
        there = [job for job in self.of(name) if job.is_listed]
        if self.unique_names and there:
            return Reply(409, there[0].shown())
        stage = Stage.CREATED if self.unique_names else Stage.QUEUED
        job = SimulatedJob(f"{len(self.jobs) + 1}", name, facts, _time(), stage, has_secrets=has_secrets)
        self._check_new(job)
        self.jobs.append(job)
        self.on_new_job(job)
        if stage is Stage.QUEUED:
            self._start_soon(job)
        return Reply(201, job.shown())

    def identity(self) -> Reply:
        """Which service this is."""
        return Reply(200, self.site)

    def start(self, id: str) -> Reply:
        """Start a job that was created; to start it twice is harmless."""
        job = self._shown(id)
        if job is None or job.stage is Stage.ENDED:
            return Reply(404)
        if job.stage is Stage.CREATED:
            job.stage = Stage.QUEUED
            self._start_soon(job)
        return Reply(204)

    def drop_secrets(self, ids: Iterable[str]) -> Reply:
        """Remove what is left of the secrets of jobs that are over."""
        for job in self.jobs:
            if job.id in ids and not job.is_live:
                job.has_secrets = False
        return Reply(204)

    def listed(self) -> Reply:
        """All jobs that the service has not forgotten, oldest first, and the records of all there were."""
        records = {name: dict(record) for name, record in self.records.items()}
        return Reply(200, [job.shown() for job in self.jobs if job.is_listed], records=records)

    def end(self, ids: Iterable[str], by_person: bool = False) -> Reply:
        """Ask jobs to end, as a driver or a person does; what has begun needs a moment for it."""
        for job in self.jobs:
            if job.id in ids and job.stage is Stage.RUNNING:
                asyncio.get_running_loop().call_later(1.0, self._end, job, job.starts, EndedBy.CANCEL, 143, by_person)
            elif job.id in ids and job.is_live:
                self._end(job, job.starts, EndedBy.CANCEL, None, by_person)
        return Reply(202)

    # -- what happens --------------------------------------------------------------------------------------------------

    def finish(self, job: SimulatedJob, ended_by: EndedBy, code: int) -> None:
        """The command ends by itself, or with its machine."""
        if job.stage is Stage.RUNNING:
            self._end(job, job.starts, ended_by, code)

    def requeue(self, job: SimulatedJob) -> None:
        """The service takes the machine away and starts the job anew later, under the same id."""
        if job.stage is Stage.RUNNING:
            self.records[str(job.name)] |= {"ended_at": _time(), "ended_by": EndedBy.PREEMPT, "exit_code": 143}
            job.stage, job.restarts = Stage.QUEUED, job.restarts + 1
            self._start_soon(job)

    def forget(self) -> None:
        """Jobs that are over are not listed any more; what they left in their results stays."""
        for job in self.jobs:
            if not job.is_live:
                job.is_listed = job.has_secrets = False

    def of(self, name: JobName) -> list[SimulatedJob]:
        """Every object that ever bore the name."""
        return [job for job in self.jobs if job.name == name]

    def live(self, key: str) -> list[SimulatedJob]:
        """What lives under the key."""
        return [job for job in self.jobs if job.name.key == key and job.is_live]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _shown(self, id: str) -> SimulatedJob | None:
        return next((job for job in self.jobs if job.id == id and job.is_listed), None)

    def _start_soon(self, job: SimulatedJob) -> None:
        asyncio.get_running_loop().call_later(START_SECONDS, self._start, job)

    def _start(self, job: SimulatedJob) -> None:
        if job.stage is not Stage.QUEUED:
            return
        if self.is_full:
            self._start_soon(job)
            return
        record = self.records.setdefault(str(job.name), {"native_id": job.id, "site": self.site, "started_at": _time()})
        if (record["native_id"], record["site"]) != (job.id, self.site):  # another one has claimed the name
            job.is_duplicate = True
            self._end(job, job.starts, EndedBy.NONE, 0)
            return
        record |= {"restarts": job.restarts}
        for left in ("ended_at", "ended_by", "exit_code"):
            record.pop(left, None)
        job.stage, job.starts, job.started_at = Stage.RUNNING, job.starts + 1, _time()
        self._check_start(job)
        if self.run_seconds is not None:
            asyncio.get_running_loop().call_later(self.run_seconds, self.finish, job, EndedBy.NONE, 0)

    def _end(self, job: SimulatedJob, start: int, ended_by: EndedBy, code: int | None, by_person: bool = False) -> None:
        if job.stage is Stage.ENDED or job.starts != start:
            return
        if job.stage is Stage.RUNNING:
            job.has_secrets = False  # the job's own end removes them
            self.records[str(job.name)] |= {"ended_at": _time(), "ended_by": ended_by, "exit_code": code}
        elif len([other for other in self.of(job.name) if other.is_live]) > 1:
            job.is_duplicate = True
        job.stage, job.ended_at, job.ended_by = Stage.ENDED, _time(), ended_by
        job.exit_code, job.by_person = code, by_person

    def _check_new(self, job: SimulatedJob) -> None:
        if self.unique_names and str(job.name) in self.records:
            return  # a request that arrived late: the name is claimed, so this one leaves without running anything
        for other in self.live(job.name.key):
            if other.name != job.name:
                self.wrong.append(f"{job.name} was made while {other.name} lives")
            elif other.made_at < _time() - LATEST_SECONDS - 2 * TIMEOUT_SECONDS:
                self.wrong.append(f"a second {job.name} was made although the first could be seen for long")

    def _check_start(self, job: SimulatedJob) -> None:
        running = [other.name for other in self.live(job.name.key) if other.stage is Stage.RUNNING]
        if len(running) > 1:
            self.wrong.append(f"two jobs of one key run at the same time: {running}")
        if sum(other.starts - other.restarts for other in self.of(job.name)) > 1:
            self.wrong.append(f"{job.name} has run twice")


class LineFault(StrEnum):
    """What a line does to one request and its reply."""

    NONE = "none"
    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    LATE_REQUEST = "late request"
    REFUSED_BEFORE = "503 before it arrived"
    REFUSED_AFTER = "502 after it was done"
    CUT = "cut reply"
    PARTIAL = "partial list"


class LineDown(Exception):
    """No answer came, so it is not known whether the request arrived."""


class Line:
    """One client's way to the service. What a client that is gone still wanted to say is never heard."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self.engine = engine
        self.faults: deque[LineFault] = deque()
        self.is_dead = False

    async def ask(self, request: Callable[[], Reply]) -> Reply:
        """The reply to a request, if the line lets both through. Raises LineDown."""
        await self._travel()
        if self.engine.is_away:
            raise await self._silence()
        fault = self.faults.popleft() if self.faults else None
        if fault is LineFault.LATE_REQUEST:
            asyncio.get_running_loop().call_later(LATEST_SECONDS, request)
        if fault in (LineFault.LOST_REQUEST, LineFault.LATE_REQUEST):
            raise await self._silence()
        if fault is LineFault.REFUSED_BEFORE:
            return Reply(503)
        reply = request()
        await self._travel()
        if fault is LineFault.LOST_REPLY:
            raise await self._silence()
        if fault is LineFault.REFUSED_AFTER:
            return Reply(502)
        if fault is LineFault.CUT:
            return Reply(reply.code, None, whole=False)
        if fault is LineFault.PARTIAL and isinstance(reply.data, list):
            return Reply(reply.code, reply.data[1::2], whole=False, records=reply.records)
        return reply

    async def _travel(self) -> None:
        await asyncio.sleep(0.05)
        if self.is_dead:
            await asyncio.get_running_loop().create_future()  # for ever: nothing of it arrives anywhere

    async def _silence(self) -> LineDown:
        await asyncio.sleep(TIMEOUT_SECONDS)
        return LineDown(f"no answer within {TIMEOUT_SECONDS:g} s")


def _time() -> float:
    return asyncio.get_running_loop().time()
