"""What can be seen of container jobs: the engine's list, the exit marker among the results, and the engine's events."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import groupby
from typing import Any

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.platforms import markers
from prefect_tao.platforms.base import Denials
from prefect_tao.platforms.docker import container_starter
from prefect_tao.platforms.docker.client import NOT_FOUND, Engine, TarEntry
from prefect_tao.platforms.docker.engine_events import by_events, own_events, was_stopped
from prefect_tao.platforms.docker.helper import HOST, HelperFiles
from prefect_tao.platforms.docker.render import (
    HOME,
    JOB,
    VOLUME_RESULTS,
    VOLUME_SCHEME,
    gpu_ids,
    handle_of,
    name_of,
)
from prefect_tao.platforms.doubt import Refused
from prefect_tao.platforms.files import BucketFiles, Files, LocalFiles, SshFiles
from prefect_tao.platforms.gpu_locks import EVERY
from prefect_tao.platforms.markers import has_ended, moment
from prefect_tao.platforms.progress import ProgressReader
from prefect_tao.platforms.ssh.faults import Silent
from prefect_tao.storage.known_schemes import is_seen

GONE_SECONDS = 30.0
# After so long a launcher that has created a container and not started it has given up, or is dead.
ABANDONED_SECONDS = 600.0
# How many containers that were not started are looked into once more at each look.
AGAIN = 4
STOP = f"{HOME}/{container_starter.STOP}"
STARTED = f"{HOME}/{container_starter.STARTED}"
STOPPED_BY_HAND = "somebody stopped the container (docker stop or docker kill)"
NOBODY = "tao-nobody"  # a name that the engine knows no container by
NEVER_RAN = "the image's entrypoint did not run the job"


@dataclass(frozen=True)
class Listed:
    """A container of ours in the engine's list."""

    id: str
    name: str
    state: str
    labels: Mapping[str, str]
    created: int

    @property
    def is_running(self) -> bool:
        """Whether it has begun and not ended."""
        return self.state in ("running", "paused", "restarting")

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in ("exited", "dead")


@dataclass
class ContainerObserver:
    """Looks at the jobs of one engine. Methods block; they raise Unreachable, and nothing is known then."""

    engine: Engine
    target: str
    bucket: BucketFiles = field(default_factory=BucketFiles)
    named_site: str = ""  # where engines come and go with their machines, and jobs belong to something that stays
    _begun: dict[str, set[str]] = field(default_factory=dict)
    stopping: set[str] = field(default_factory=set)  # who was not started when we cancelled it
    _stopped: dict[str, bool] = field(default_factory=dict)  # who was not started; looked into last, last in line
    _swept: float = -ABANDONED_SECONDS
    _denials: Denials = field(default_factory=Denials)
    _progress: ProgressReader = field(default_factory=ProgressReader)

    @cached_property
    def info(self) -> dict[str, Any]:
        """What the engine tells about itself; it does not change while it runs."""
        found: dict[str, Any] = self.engine.json("GET", "/info")
        return found

    @cached_property
    def site(self) -> str:
        """This very engine: an address may lead to another one tomorrow. Raises Unreachable where it does not say.

        Older engines on one machine share their id, but never the folder of their containers.
        """
        if self.named_site:
            return self.named_site
        own, folder = self.info.get("ID"), self.info.get("DockerRootDir")
        if not own or not folder:
            raise Unreachable(f"the engine at {self.engine.shown} does not report its id", "check: docker info")
        return f"Docker engine {own} ({folder})"

    @cached_property
    def helpers(self) -> HelperFiles:
        """Who sees the engine's volumes."""
        return HelperFiles(self.engine)

    @cached_property
    def host(self) -> Files:
        """The files of the engine's host. Raises Silent for a socket here that does not answer."""
        if self.engine.ssh:
            return SshFiles(self.engine.ssh)
        return LocalFiles(HOST) if self.engine.is_here else self.helpers

    # -- the list ------------------------------------------------------------------------------------------------------

    def listed(self, *labels: str) -> list[Listed]:
        """All containers of ours that carry `labels`, newest first, in one call."""
        filters = json.dumps({"label": [JOB, *labels]})
        try:
            found = self.engine.json("GET", "/containers/json", params={"all": 1, "filters": filters})
        except Refused as error:
            raise unanswered(self.engine, error) from error
        return [
            Listed(one["Id"], one["Names"][0].lstrip("/"), one["State"], one.get("Labels") or {}, int(one["Created"]))
            for one in found
            if one.get("Names")
        ]

    def reserved_gpus(self) -> list[str]:
        """The GPUs that our jobs have or wait for, one by one for each job."""
        return [gpu for one in self.listed() if not one.is_over for gpu in gpu_ids(one.labels)]

    def in_flight(self) -> int:
        """How many of our jobs are not over; one that was cancelled before its start stays in the list."""
        waiting = [one for one in self.listed() if not one.is_over and one.state != "removing"]
        due = self._due(waiting)
        return sum(one.state != "created" or not self._is_stopped(one.id, due) for one in waiting)

    def inspect(self, container: str) -> dict[str, Any] | None:
        """All that the engine knows of one container; None when there is none."""
        try:
            found: dict[str, Any] = self.engine.json("GET", f"/containers/{container}/json")
        except Refused as error:
            if error.status == NOT_FOUND:
                return None
            raise unanswered(self.engine, error) from error
        return found

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """Every job as it is now; left out is what nothing is known of yet.

        What keeps one job from being seen keeps no other from it, unless the engine itself is silent.
        """
        seen: dict[JobHandle, Observation] = {}
        listed = self.listed()
        self._note_begun(listed)
        there, events = {one.name: one for one in listed}, cache(self._events)
        own = {handle: there.get(name_of(handle.key, handle.attempt)) for handle in handles}
        due = self._due([one for one in own.values() if one])
        for handle, one in own.items():
            try:
                found = self._look_at(handle, one, events, due)
            except Silent:
                raise
            except (Unreachable, InvalidInput, MissingDependency):
                continue
            if found:
                seen[handle] = found
        for handle, progress in self._progress_of(dict(seen)):
            seen[handle] = seen[handle].model_copy(update={"progress": progress})
        return seen

    def _look_at(
        self, handle: JobHandle, one: Listed | None, events: Callable[[], list[dict[str, Any]]], due: Collection[str]
    ) -> Observation | None:
        # One that was put under the name later on is another container, and tells nothing.
        if one is None or one.state == "removing" or handle.native_id not in ("", one.id):
            return self._absent(handle, events)
        try:
            return self._seen(handle, one, events, due)
        except Refused as error:
            raise unanswered(self.engine, error) from error

    def _seen(
        self, handle: JobHandle, one: Listed, events: Callable[[], list[dict[str, Any]]], due: Collection[str]
    ) -> Observation | None:
        self._denials.seconds(handle, is_listed=True)
        if one.is_over:
            return self._ended(handle, one, events)
        if one.state == "created":
            return self._created(one, due)
        state, reason = JobState.RUNNING, ""
        if one.state == "paused":
            state, reason = JobState.PAUSED, "paused on the engine"
        elif gpu_ids(one.labels) and not self._has_begun(one):
            state, reason = JobState.PENDING, f"waiting for GPU {', '.join(gpu_ids(one.labels))}"
        # To the second; the exact moment comes with the end, and asking for it now would be a question per job.
        started = datetime.fromtimestamp(one.created, UTC) if state is not JobState.PENDING else None
        return Observation(state=state, native_state=one.state, reason=reason, evidence="docker ps", started_at=started)

    def _created(self, one: Listed, due: Collection[str]) -> Observation:
        if self._is_stopped(one.id, due):
            return Observation(
                state=JobState.CANCELED,
                native_state=one.state,
                reason="ended on request before it was started",
                evidence="docker ps",
                ended_by=EndedBy.CANCEL,
            )
        return Observation(
            state=JobState.PENDING,
            native_state=one.state,
            reason="created and not started; launch again if its launcher is gone",
            evidence="docker ps",
            unstarted=True,
        )

    def _due(self, listed: Sequence[Listed]) -> set[str]:
        """The containers that were not started and are looked into now: new ones, those we stop, and a few in turn.

        Its cancellation leaves word inside, which the list does not show, and each is a question of its own.
        """
        waiting = {one.id for one in listed if one.state == "created"}
        known = {id_: stopped for id_, stopped in list(self._stopped.items()) if id_ in waiting}
        in_turn = [id_ for id_, stopped in known.items() if not stopped]
        return waiting - known.keys() | self.stopping & set(in_turn) | set(in_turn[:AGAIN])

    def _is_stopped(self, container: str, due: Collection[str]) -> bool:
        """Whether a container that was not started never will be, as far as we have looked; a stop is for good."""
        if container in due:
            self._stopped.pop(container, None)
            self._stopped[container] = self.is_asked_to_stop(container)
        return self._stopped.get(container, False)

    def _note_begun(self, listed: Sequence[Listed]) -> None:
        """Forget the GPUs of jobs that are over: those that wait for them may have begun."""
        living = {one.id for one in listed if not one.is_over}
        self._begun = {id_: held for id_, held in self._begun.items() if id_ in living}

    def _has_begun(self, one: Listed) -> bool:
        """Whether a job that needs GPUs has got them. While another one has them, there is no need to ask."""
        if one.id in self._begun:
            return True
        wanted = set(gpu_ids(one.labels))
        taken: set[str] = set().union(*self._begun.values())
        is_taken = bool(taken & (wanted | {EVERY})) or (EVERY in wanted and bool(taken))
        if is_taken or not self.engine.has(one.id, STARTED):
            return False
        self._begun[one.id] = wanted
        return True

    def is_asked_to_stop(self, container: str) -> bool:
        """Whether somebody cancelled the job; it stands in the container itself."""
        return self.engine.has(container, STOP)

    # -- the end -------------------------------------------------------------------------------------------------------

    def _ended(self, handle: JobHandle, one: Listed, events: Callable[[], list[dict[str, Any]]]) -> Observation | None:
        facts = self.inspect(one.id)
        if facts is None:
            return None  # removed between the two looks; the next one sees that
        state = facts["State"]
        record = self.record(handle, one.id) or {}
        started, ended = _when(state.get("StartedAt")), _when(state.get("FinishedAt"))
        code = int(state.get("ExitCode") or 0)
        if not record:
            self._forget_secrets(one.id)
        if has_ended(record):
            seen = markers.ended(record, one.state, started, ended)
            is_taken = seen.ended_by is EndedBy.PREEMPT
            return _canceled(seen, why) if is_taken and (why := self._why_stopped(one.id, events)) else seen
        stopped = self._why_stopped(one.id, events) if code != 0 and not state.get("OOMKilled") else ""
        never_ran = code == 0 and not self.engine.has(one.id, STARTED)
        reason = stopped or (NEVER_RAN if never_ran else why_ended(state))
        is_complete = code == 0 and one.state == "exited" and not never_ran
        finished = JobState.COMPLETE if is_complete else JobState.ERROR
        return Observation(
            state=JobState.CANCELED if stopped else finished,
            native_state=one.state,
            reason=reason,
            evidence="docker inspect",
            exit_code=code,
            ended_by=EndedBy.CANCEL if stopped else EndedBy.NONE,
            started_at=started,
            ended_at=ended,
        )

    def _why_stopped(self, container: str, events: Callable[[], list[dict[str, Any]]]) -> str:
        """Why the container was ended from outside; empty where that was not a person, or nothing shows it.

        The engine remembers its last events until it is restarted, so a stop is written into the container, where a
        cancellation of ours stands too. An engine that comes back ends what its predecessor had started in the same
        way; only one that remembers the start itself was asked by a person.
        """
        if self.is_asked_to_stop(container):
            return "ended on request"
        if not was_stopped([event for event in events() if event["Actor"]["ID"] == container]):
            return ""
        self.engine.put(container, [TarEntry(STOP.lstrip("/"), b"cancel", 0o644)])
        return STOPPED_BY_HAND

    def sweep_in_turn(self) -> None:
        """Sweep all containers of ours, where that was not done lately: for launches, of which there may be many."""
        if time.monotonic() - self._swept > ABANDONED_SECONDS:
            self._swept = time.monotonic()
            self.sweep(self.listed())

    def sweep(self, listed: Sequence[Listed]) -> None:
        """Remove secrets from containers that no launcher starts any more; the next launch brings its own."""
        waiting = [one for one in listed if one.state == "created"]
        if not waiting:
            return
        now = datetime.fromisoformat(self.engine.json("GET", "/info")["SystemTime"]).timestamp()
        for one in waiting:
            if now - one.created > ABANDONED_SECONDS:
                self._forget_secrets(one.id)

    def _forget_secrets(self, container: str) -> None:
        """What was killed before it could take its secrets must not keep them."""
        if self.engine.has(container, f"{HOME}/{container_starter.SECRETS}"):
            forget_secrets(self.engine, container)

    def record(self, handle: JobHandle, container: str | None) -> dict[str, Any] | None:
        """What the runner wrote: the start, and, once it holds `ended`, the exit marker.

        It is read out of the container where that is there: then one question more answers it, wherever the engine is.
        A job whose results go to storage may work in any folder of its container; then the copy there counts.
        """
        name = f"attempts/{handle.attempt}.json"
        data: bytes | None = None
        is_here = self.engine.is_here and handle.results.startswith("/")
        if container and not is_here:
            data = self.engine.get(container, f"{inside(handle)}/{name}", markers.MAX_RECORD)
        if data is None and handle.results and (is_here or is_seen(handle.results) or not container):
            data = self._kept(f"{handle.results}/{name}", is_there=bool(container))
        found = markers.read_record(data)
        return found if found and markers.is_of(found, handle.native_id, handle.site) else None

    def _kept(self, path: str, is_there: bool) -> bytes | None:
        try:
            return self.reader(path).read(path, markers.MAX_RECORD)
        except (InvalidInput, MissingDependency):
            if not is_seen(path) or not is_there:
                raise
            return None  # who has no keys to the results sees what the engine tells of the container

    def reader(self, path: str) -> Files:
        """What sees `path`: storage, a container that mounts the engine's volume, or the engine's host."""
        if is_seen(path):
            return self.bucket
        return self.helpers if path.startswith(VOLUME_SCHEME) else self.host

    # -- what the engine has no more -----------------------------------------------------------------------------------

    def _absent(self, handle: JobHandle, events: Callable[[], list[dict[str, Any]]]) -> Observation | None:
        """A job whose container is gone: its marker or the engine's events tell how it ended, else time does.

        Raises when it is not known whether there is a marker.
        """
        record = self.record(handle, None) or {}
        if has_ended(record):
            seen = markers.ended(record, "removed")
            is_taken = seen.ended_by is EndedBy.PREEMPT  # for all that its runner knows
            return _canceled(seen, STOPPED_BY_HAND) if is_taken and was_stopped(own_events(handle, events())) else seen
        if found := by_events(handle, record, events()):
            return found
        # What names no site may be another engine's, which has the container.
        if not handle.site or self._denials.seconds(handle) < GONE_SECONDS:
            return None
        return Observation(
            state=JobState.ERROR,
            native_state="removed",
            reason="somebody removed the container, and there is no record of how the job ended",
            evidence="docker ps",
            started_at=moment(record.get("started")),
        )

    def _events(self) -> list[dict[str, Any]]:
        """What the engine remembers of the ends of our containers; up to now by its own clock, or it would wait."""
        filters = json.dumps({"type": ["container"], "label": [JOB], "event": ["start", "die", "kill", "oom"]})
        try:
            now = datetime.fromisoformat(self.engine.json("GET", "/info")["SystemTime"])
            params = {"since": 1, "until": f"{now.timestamp():.6f}", "filters": filters}
            with self.engine.stream("GET", "/events", params=params) as answer:
                return [json.loads(line) for line in answer.iter_lines() if line]
        except Refused as error:
            raise unanswered(self.engine, error) from error

    # -- progress ------------------------------------------------------------------------------------------------------

    def _progress_of(self, seen: Mapping[JobHandle, Observation]) -> Iterator[tuple[JobHandle, Progress]]:
        """How far the jobs are. What is not on this machine is not asked at every look, unless a job has ended."""
        begun = {one.results: one for one in seen if one.results and seen[one].state is not JobState.PENDING}
        ended = {folder for folder, handle in begun.items() if seen[handle].state.terminal}
        by_host: dict[Files, list[str]] = {}
        for folder in begun:
            by_host.setdefault(self.reader(folder), []).append(folder)
        for host, folders in by_host.items():
            try:
                self._progress.refresh(host, folders, ended)
            except Silent:
                raise
            except (Unreachable, InvalidInput, MissingDependency):
                continue  # where a job stands is known without it
        for folder, handle in begun.items():
            if progress := self._progress.of(folder):
                yield handle, progress

    # -- handles -------------------------------------------------------------------------------------------------------

    def handle(self, one: Listed) -> JobHandle | None:
        """The handle of a listed container; None for one whose name and labels disagree."""
        handle = self.handle_of(one.id, one.labels)
        return handle if handle and one.name == name_of(handle.key, handle.attempt) else None

    def handle_of(self, container: str, labels: Mapping[str, str]) -> JobHandle | None:
        """The handle of a container of this engine; None when it is not ours."""
        return handle_of(self.target, container, labels, self.site)

    def attempts(self, results: Iterable[str]) -> dict[str, list[int]]:
        """The attempts that left a record among each of some results. Raises when that is not known."""
        found: dict[str, list[int]] = {}
        wanted = sorted(set(results), key=lambda folder: id(self.reader(folder)))
        for _, folders in groupby(wanted, key=lambda folder: id(self.reader(folder))):
            asked = [f"{folder}/attempts" for folder in folders]
            for folder, names in self.reader(asked[0]).names(asked).items():
                stems = (name.removesuffix(".json") for name in names)
                found[folder.rpartition("/")[0]] = sorted(int(stem) for stem in stems if stem.isdigit())
        return found

    def own(self, handle: JobHandle) -> str:
        """The id of the job's container, or what nothing is called by: never somebody else's of the same name."""
        if handle.native_id:
            return handle.native_id
        name = name_of(handle.key, handle.attempt)
        facts = self.inspect(name) or {"Id": "", "Config": {}}
        return str(facts["Id"]) if handle_of(self.target, "", facts["Config"].get("Labels") or {}) == handle else NOBODY


def forget_secrets(engine: Engine, container: str) -> None:
    """Put an empty file where the folder with the secrets is: that removes it, in whatever state the container is."""
    engine.put(container, [TarEntry(f"{HOME}/{container_starter.SECRETS}".lstrip("/"), b"")])


def inside(handle: JobHandle) -> str:
    """The results folder as the container has it."""
    return handle.results if handle.results.startswith("/") else f"{VOLUME_RESULTS}/{handle.key}"


def _canceled(seen: Observation, why: str) -> Observation:
    """An end from outside that was a person's wish."""
    return seen.model_copy(update={"state": JobState.CANCELED, "ended_by": EndedBy.CANCEL, "reason": why})


def why_ended(state: Mapping[str, Any]) -> str:
    """What the engine says about an end that the runner could not write down."""
    if state.get("OOMKilled"):
        return "OOMKilled"
    return str(state.get("Error") or "")


def unanswered(engine: Engine, error: Refused) -> Unreachable:
    """An engine that is there but cannot answer tells nothing about the job."""
    return Unreachable(f"the Docker engine at {engine.shown} could not answer: {error.said}", "try again in a while")


def _when(text: str | None) -> datetime | None:
    if not text or text.startswith("0001-"):
        return None
    whole, _, fraction = text.rstrip("Z").partition(".")
    moment = datetime.fromisoformat(whole).replace(tzinfo=UTC)
    return moment.replace(microsecond=int(fraction.ljust(6, "0")[:6] or 0))
