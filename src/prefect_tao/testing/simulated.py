"""A driver for the service in memory, as correct as a driver has to be.

It is also the smallest complete example of one: look up, adopt or complete, and take no silence for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import LogChunk, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.verdict import Evidence, Verdict, classify
from prefect_tao.platforms import markers
from prefect_tao.platforms.base import Driver
from prefect_tao.testing.engine import LATEST_SECONDS, Line, LineDown, Reply, Stage
from prefect_tao.testing.virtual_time import START

STATES = {Stage.CREATED: JobState.PENDING, Stage.QUEUED: JobState.PENDING, Stage.RUNNING: JobState.RUNNING}
Shown = dict[str, Any]


class SimulatedPlatform(Driver):
    """Jobs in memory, behind a line that may lose things."""

    poll_seconds = (2.0, 30.0)

    def __init__(self, line: Line, target: str = "simulated") -> None:
        super().__init__(target)
        self.line = line
        self.engine = line.engine
        self._site = ""
        self.denial_seconds = 0.0 if self.engine.unique_names else LATEST_SECONDS + 5

    async def ask(self, request: Callable[[], Reply]) -> Reply:
        """A definite answer. Raises Unreachable for anything less."""
        try:
            reply = await self.line.ask(request)
        except LineDown as error:
            raise Unreachable(f"the service did not answer: {error}", "look again later") from error
        if self.is_doubt(reply):
            raise Unreachable(f"the service answered {reply.code}", "look again later")
        return reply

    def is_doubt(self, reply: Reply) -> bool:
        """Whether the reply leaves open what was done: a cut one, and every 5xx, 408 or 429."""
        return reply.code >= 500 or reply.code in (408, 429) or (not reply.whole and reply.data is None)

    # -- launch --------------------------------------------------------------------------------------------------------

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """The job as the service takes it."""
        facts = {"digest": request.digest, "labels": dict(request.labels), "command": request.command}
        data = json.dumps({"name": str(JobName(key, attempt)), **facts, "secrets": list(request.secrets)})
        return Rendered(request, key, attempt, data, {"job.json": data.encode()})

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Look the name up, complete or adopt what is there, else make the job. Raises SubmitFailed, Unreachable."""
        name, facts = JobName(rendered.key, rendered.attempt), json.loads(rendered.files["job.json"])
        found, site = await self._looked_up(name), await self.site()
        if isinstance(found, JobHandle):
            return found
        if found is None:
            reply = await self.ask(lambda: self.engine.create(name, facts, has_secrets=bool(secrets)))
            if reply.code == 400:
                raise SubmitFailed(f"the service refused {name}: {reply.data}", "change the request")
            found = reply.data
        if found["stage"] is Stage.CREATED:
            await self.ask(lambda: self.engine.start(found["id"]))
        return self._handle(name, found, site)

    async def _looked_up(self, name: JobName) -> Shown | JobHandle | None:
        """What the service shows under the name, or the handle of a job that only its record tells of."""
        reply = await self._whole_list()
        listed, record = _by_name(reply.data), reply.records.get(str(name))
        if str(name) in listed:
            return listed[str(name)]
        return await self._left(name, record) if record else None

    # -- look ----------------------------------------------------------------------------------------------------------

    async def _whole_list(self) -> Reply:
        reply = await self.ask(self.engine.listed)
        if not reply.whole:
            raise Unreachable("the service's list is not whole", "look again later")
        return reply

    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """The service first, then what the jobs have left; a list with holes says nothing of what it lacks."""
        reply = await self.ask(self.engine.listed)
        listed = _by_name(reply.data)
        seen = {}
        for handle in handles:
            if handle.name in listed:
                seen[handle] = _of_listed(listed[handle.name])
            elif reply.whole:
                # The job that claimed the name wrote it, whichever of several under the name the handle is of.
                record = reply.records.get(handle.name)
                seen[handle] = _of_record(record if record and markers.is_of(record, "", handle.site) else None)
        over = {handle.name for handle, one in seen.items() if one.state.terminal}
        surplus = [one["id"] for one in reply.data if one["name"] in listed and _is_surplus(one, listed[one["name"]])]
        if surplus:
            await self.ask(lambda: self.engine.end(surplus))
        if over:
            gone = [one["id"] for one in reply.data if one["name"] in over]
            await self.ask(lambda: self.engine.drop_secrets(gone))
        return seen

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """What the service lists, and what only the results still tell of."""
        reply, site = await self._whole_list(), await self.site()
        known = {name: await self._left(JobName.parse(name), one) for name, one in reply.records.items()}
        known |= {name: self._handle(JobName.parse(name), one, site) for name, one in _by_name(reply.data).items()}
        attempts = sorted(known.values(), key=lambda handle: handle.attempt)
        return {key: [handle for handle in attempts if handle.key == key] for key in keys}

    async def site(self) -> str:
        """The service by its own word. Raises Unreachable."""
        self._site = self._site or (await self.ask(self.engine.identity)).data
        return self._site

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """What the service lists, newest first."""
        listed = sorted(_by_name((await self._whole_list()).data).values(), key=lambda one: -int(one["id"]))
        wanted = (labels or {}).items()
        found = [one for one in listed if wanted <= one["facts"]["labels"].items()]
        site = await self.site()
        return [self._handle(JobName.parse(one["name"]), one, site) for one in found]

    async def _left(self, name: JobName, record: Mapping[str, Any]) -> JobHandle:
        """A job that only its record tells of."""
        site = await self.site()
        return markers.left_by(self._handle(name, {"id": "", "facts": {}}, site), record, site)

    def _handle(self, name: JobName, shown: Shown, site: str) -> JobHandle:
        facts = shown["facts"]
        return JobHandle(
            target=self.target,
            key=name.key,
            attempt=name.attempt,
            native_id=shown["id"],
            site=site,
            digest=facts.get("digest", ""),
            labels=facts.get("labels", {}),
        )

    # -- end -----------------------------------------------------------------------------------------------------------

    async def ask_to_end(self, handles: Sequence[JobHandle]) -> None:
        """Every job of the names, whatever id is known here."""
        names = {handle.name for handle in handles}
        reply = await self.ask(self.engine.listed)
        await self.ask(lambda: self.engine.end([one["id"] for one in reply.data if one["name"] in names]))

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """By what the job left behind."""
        seen = await self.seen(handle)
        return classify(
            Evidence(
                exit_code=seen.exit_code, ended_by=seen.ended_by, native_state=seen.native_state, reason=seen.reason
            )
        )

    # -- the rest ------------------------------------------------------------------------------------------------------

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """These jobs say nothing."""
        return LogChunk("", since or "0")

    async def check_path(self, uri: str) -> bool:
        """There are no files."""
        return False

    async def list_path(self, uri: str) -> list[str]:
        """There are no files."""
        raise InvalidInput(f"{uri} is not there", "there are no files in memory")

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """Nothing to find out."""
        return []


def _by_name(listed: Sequence[Shown]) -> dict[str, Shown]:
    """The job of each name: the one that has begun, else the oldest. Copies that found it claimed do not count."""
    best: dict[str, Shown] = {}
    for one in listed:
        there = best.get(one["name"])
        if not one["is_duplicate"] and (there is None or (there["started_at"] is None and one["started_at"])):
            best[one["name"]] = one
    return best


def _is_surplus(one: Shown, kept: Shown) -> bool:
    return one["id"] != kept["id"] and one["stage"] is Stage.QUEUED


def _of_listed(one: Shown) -> Observation:
    if one["stage"] is Stage.ENDED:
        return _ended(one, "service")
    is_made_only = one["stage"] is Stage.CREATED
    return Observation(
        state=STATES[one["stage"]],
        native_state=one["stage"],
        evidence="service",
        restarts=one["restarts"],
        unstarted=is_made_only,
    )


def _of_record(record: Mapping[str, Any] | None) -> Observation:
    """The end of a job that the service has surely forgotten."""
    if record and "ended_at" in record:
        return _ended(record, "record")
    return Observation(state=JobState.ERROR, native_state="gone", evidence="service", reason="the service lost the job")


def _ended(facts: Mapping[str, Any], evidence: str) -> Observation:
    return Observation(
        state=markers.end_state(facts["ended_by"], facts["exit_code"]),
        native_state=Stage.ENDED,
        evidence=evidence,
        exit_code=facts["exit_code"],
        ended_by=facts["ended_by"],
        started_at=_moment(facts["started_at"]),
        ended_at=_moment(facts["ended_at"]),
        restarts=facts["restarts"],
    )


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else START + timedelta(seconds=seconds)
