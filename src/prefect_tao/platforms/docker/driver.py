"""The Docker driver: one detached container per attempt, on the engine of this machine or of another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import LogChunk, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.verdict import Evidence, Verdict, classify
from prefect_tao.platforms import site_notes, stamped_logs
from prefect_tao.platforms.base import Driver, kill_after
from prefect_tao.platforms.docker import container_starter, endpoint, probes, pulling, render, submit
from prefect_tao.platforms.docker.client import CONFLICT, NOT_FOUND, REMOVAL, Engine, TarEntry, log_entries
from prefect_tao.platforms.docker.helper import clean
from prefect_tao.platforms.docker.observe import ContainerObserver, forget_secrets, unanswered
from prefect_tao.platforms.docker.settings import DockerSettings
from prefect_tao.platforms.doubt import Refused, checked
from prefect_tao.platforms.files import BucketFiles, Files
from prefect_tao.platforms.markers import left_by
from prefect_tao.runner.inside.schemes import bucket_name
from prefect_tao.storage.known_schemes import is_seen

P = ParamSpec("P")
T = TypeVar("T")
LOG_LINES = 2000
POLL = {"unix": (0.1, 5.0), "tcp": (0.5, 10.0), "ssh": (1.0, 15.0)}


class DockerPlatform(Driver):
    """Jobs as containers. They outlive their launcher; their truth is in the engine and in their results."""

    asks_with_care = True

    def __init__(self, target: str, settings: DockerSettings, site: str = "") -> None:
        super().__init__(target)
        # A host that is only the default is not named: then the docker command's own settings count.
        host = settings.host if "host" in settings.model_fields_set else None
        self.engine = Engine(endpoint.resolve(host, settings.context, settings.cert_path), settings.ssh_path)
        for text in settings.mounts:
            render.parse_mount(text)
        self.options = _tidied(settings)
        self.poll_seconds = settings.pauses(POLL[self.engine.endpoint.scheme])
        self.cancel_pause = min(self.poll_seconds[0], 0.5)
        self.observer = ContainerObserver(
            self.engine, target, bucket=BucketFiles.named_by(self.options, {}), named_site=site
        )
        self.launcher = submit.Launcher(self.engine, self.observer, self.options)
        if settings.username:
            self.launcher.credentials = {"DOCKER_USERNAME": settings.username}

    def take_credentials(self, credentials: Mapping[str, str]) -> None:
        """The logins for registries and the keys of storage. They stay in memory and never reach a job."""
        kept = {name: credentials[name] for name in pulling.CREDENTIALS if credentials.get(name)}
        self.launcher.credentials = {**self.launcher.credentials, **kept}
        self.observer.bucket = BucketFiles.named_by(self.options, credentials)

    # -- launch --------------------------------------------------------------------------------------------------------

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """What is sent to the engine, as a docker command. Raises InvalidInput for what no container can be."""
        return render.render(request, key, attempt, self.options, self.target)

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Create, fill and start the container, or adopt the one that has the name."""
        try:
            handle = await self.engine.launch(self._submit, rendered, dict(secrets))
        except Refused as error:
            raise unanswered(self.engine, error) from error
        with suppress(Unreachable):  # the next launch does it as well
            await self.in_thread(self.observer.sweep_in_turn)
        return handle

    def _submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        own = self._unseen(rendered.key, rendered.attempt)
        files = self.observer.reader(own.results)
        site_notes.leave(files, own)
        try:
            return self.launcher.submit(rendered, secrets)
        except SubmitFailed:
            site_notes.drop(files, own)
            raise

    async def in_thread(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask the engine in a thread; what it refuses without having been asked to launch tells nothing."""
        try:
            return await self.engine.call(question, *args, **kwargs)
        except Refused as error:
            raise unanswered(self.engine, error) from error

    # -- look ----------------------------------------------------------------------------------------------------------

    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """One list of all containers, and a closer look at those that changed. Raises Unreachable."""
        return await self.in_thread(self.observer.look, list(handles))

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """The container's log, standard output and error as they came, in whole lines. Raises Unreachable."""
        return await self.in_thread(self._logs, handle, tail, since)

    def _logs(self, handle: JobHandle, tail: int | None, since: str | None) -> LogChunk:
        cursor = stamped_logs.Cursor.parse(since)
        params: dict[str, Any] = {"stdout": 1, "stderr": 1, "timestamps": 1}
        params |= {"since": cursor.since} if tail is None else {"tail": max(tail, 1)}
        own = self.observer.own(handle)
        try:
            with self.engine.stream("GET", f"/containers/{own}/logs", params=params) as answer:
                if tail is None:
                    return stamped_logs.after(log_entries(answer), cursor)
                return stamped_logs.ending(list(log_entries(answer)), tail)
        except Refused as error:
            if error.status == NOT_FOUND or REMOVAL in error.said:
                return LogChunk("", str(cursor))
            if "does not support reading" in error.said:
                return LogChunk("", str(cursor))
            raise

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """Why the job ended, from its marker, its log and the engine. Raises Unreachable."""
        return classify(await self.in_thread(self._evidence, handle, await self.seen(handle)))

    def _evidence(self, handle: JobHandle, seen: Observation) -> Evidence:
        facts = self.observer.inspect(self.observer.own(handle)) or {}
        record = self.observer.record(handle, facts.get("Id")) or {}
        return Evidence(
            exit_code=seen.exit_code,
            ended_by=seen.ended_by,
            native_state=seen.native_state,
            reason=seen.reason,
            oom_killed=bool(facts.get("State", {}).get("OOMKilled")) and seen.exit_code != 0,
            phase=str(record.get("phase") or ""),
            runner_error=str(record.get("error") or ""),
            log_tail=self._logs(handle, LOG_LINES, None).text,
        )

    # -- end -----------------------------------------------------------------------------------------------------------

    async def ask_to_end(self, handles: Sequence[JobHandle]) -> None:
        """Leave word in each container and send it a signal. Raises Unreachable."""
        await asyncio.gather(*(self.in_thread(self._ask_to_end, handle) for handle in handles))

    async def insist(
        self, left: Sequence[JobHandle], seen: Mapping[JobHandle, Observation], spent: float, timeout: float
    ) -> None:
        """Kill containers whose time is up. Raises Unreachable."""
        if spent > kill_after(timeout):
            await asyncio.gather(*(self.in_thread(self._signal, handle, "SIGKILL") for handle in left))

    def _ask_to_end(self, handle: JobHandle) -> None:
        """Leave word in the container that this is a cancellation, then send the signal."""
        own = self.observer.own(handle)
        facts = self.observer.inspect(own)
        if facts is None:
            return
        status = facts["State"]["Status"]
        if status in ("exited", "dead", "removing"):
            return
        if status == "created":
            self.observer.stopping.add(own)
        try:
            self.engine.put(own, [TarEntry(f"{render.HOME}/{container_starter.STOP}".lstrip("/"), b"cancel", 0o644)])
            if status == "created":
                forget_secrets(self.engine, own)
            elif status == "paused":
                self.engine.ask("POST", f"/containers/{own}/unpause")
        except Refused as error:
            if error.status not in (NOT_FOUND, CONFLICT):  # gone, or no more paused: both will do
                raise
        self._signal(handle, "SIGTERM")

    def _signal(self, handle: JobHandle, signal: str) -> None:
        try:
            self.engine.ask("POST", f"/containers/{self.observer.own(handle)}/kill", params={"signal": signal})
        except Refused as error:
            if error.status not in (NOT_FOUND, CONFLICT):  # it is over already
                raise

    # -- find ----------------------------------------------------------------------------------------------------------

    async def site(self) -> str:
        """The engine by its own id. Raises Unreachable."""
        return await self.in_thread(lambda: self.observer.site)

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """Attempts by container and by what they left among the results.

        Raises Unreachable, and InvalidInput or MissingDependency where the results cannot be looked at from here.
        """
        return await self.in_thread(self._find, list(keys))

    def _find(self, keys: list[str]) -> dict[str, list[JobHandle]]:
        found: dict[str, dict[int, JobHandle]] = {key: {} for key in keys}
        running: set[str] = set()
        for one in self.observer.listed(*([f"{render.KEY}={keys[0]}"] if len(keys) == 1 else [])):
            handle = self.observer.handle(one)
            if handle and handle.key in found:
                found[handle.key][handle.attempt] = handle
                running |= {handle.key} if one.is_running else set()
        # An attempt that goes on is the last one. Of others, those that came later may have left only their records.
        places = {render.results_of(key, self.options): key for key in found if key not in running}
        places |= {one.results: key for key in places.values() for one in found[key].values() if one.results}
        for place, attempts in self.observer.attempts(places).items():
            known = found[places[place]]
            known |= {number: self._left(places[place], number, place) for number in attempts if number not in known}
        idle = [self._unseen(key) for key in found if key not in running]
        for far in site_notes.others(self.observer.reader(idle[0].results), idle) if idle else ():
            found[far.key].setdefault(far.attempt, far)
        return {key: [attempts[number] for number in sorted(attempts)] for key, attempts in found.items()}

    def _unseen(self, key: str, attempt: int = 1) -> JobHandle:
        """The handle of an attempt on this engine of which nothing is known yet."""
        results = render.results_of(key, self.options)
        return JobHandle(target=self.target, key=key, attempt=attempt, site=self.observer.site, results=results)

    def _left(self, key: str, attempt: int, results: str) -> JobHandle:
        """The handle of a job whose container is gone, or on another engine."""
        handle = JobHandle(target=self.target, key=key, attempt=attempt, results=results)
        return left_by(handle, self.observer.record(handle, None), self.observer.site)

    async def in_flight(self) -> int:
        """How many of our containers are not over, in one list. Raises Unreachable."""
        return await self.in_thread(self.observer.in_flight)

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """All containers of ours, newest first. Raises Unreachable."""
        return await self.in_thread(self._jobs, dict(labels or {}))

    def _jobs(self, labels: dict[str, str]) -> list[JobHandle]:
        listed = self.observer.listed(*(f"{render.OWN}{name}={value}" for name, value in labels.items()))
        self.observer.sweep(listed)
        return [handle for one in listed if (handle := self.observer.handle(one))]

    async def request_of(self, handle: JobHandle) -> JobRequest | None:
        """What the job was asked to do; it stands in the container."""
        place = f"{render.HOME}/{render.REQUEST}"
        kept = await self.in_thread(lambda: self.engine.get(self.observer.own(handle), place))
        try:
            return JobRequest.model_validate_json(kept or b"")
        except ValidationError:  # gone, or written by another version
            return None

    # -- paths and probes ----------------------------------------------------------------------------------------------

    def reach(self, uri: str) -> tuple[Files, str]:
        """The files of the engine's host or of its volumes, or storage. Raises InvalidInput, Unreachable."""
        path = uri if is_seen(uri) else clean(uri)
        return self.observer.reader(path), path

    async def all_gpus(self, image: str | None = None) -> int | None:
        """The GPUs of the engine's host that jobs may have; None where nothing there can look. Raises Unreachable."""
        return await self.in_thread(self.launcher.all_gpus, image)

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """The engine answers, and has what the request asks for; nothing stays behind. Raises Unreachable."""
        return await self.in_thread(checked, lambda: probes.findings(self.launcher, self.target, request))

    async def host_versions(self) -> dict[str, str]:
        """Driver, CUDA and container toolkit of the engine's host, as far as they can be told. Raises Unreachable."""
        return await self.in_thread(probes.versions, self.launcher)

    async def disk_free(self) -> dict[str, int]:
        """Free bytes for results on the engine's host, where it can be told. Raises Unreachable."""
        return await self.in_thread(probes.disk_free, self.launcher)

    async def close(self) -> None:
        """Let go of the connections; jobs go on."""
        self.engine.close()

    def settings(self) -> dict[str, Any]:
        """The engine and where results go."""
        return {
            "target": self.target,
            "engine": self.engine.shown,
            "results_root": self.options.results_root,
            "network": render.network(self.options),
        }


def _tidied(settings: DockerSettings) -> DockerSettings:
    """The settings with every location in one spelling. Raises InvalidInput."""
    return settings.model_copy(
        update={
            "results_root": clean(settings.results_root) if settings.results_root else None,
            "s3_bucket_name": bucket_name(settings.s3_bucket_name or "") or None,
        }
    )
