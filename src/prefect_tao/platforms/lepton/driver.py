"""The Lepton driver: one batch job per attempt in a workspace of DGX Cloud, its results in a bucket or on a mount."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import LogChunk, Rendered, Replica
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.verdict import Evidence, Verdict, classify
from prefect_tao.platforms.base import Driver, kill_after
from prefect_tao.platforms.files import BucketFiles, Files
from prefect_tao.platforms.lepton import observe, placement, probes, render
from prefect_tao.platforms.lepton.client import ALIVE, EVERYTHING, LeptonWorkspace, NotTaken
from prefect_tao.platforms.lepton.observe import LeptonRow
from prefect_tao.platforms.lepton.observer import TAIL_LINES, LeptonObserver
from prefect_tao.platforms.lepton.settings import LeptonSettings
from prefect_tao.platforms.lepton.submit import LeptonLauncher
from prefect_tao.platforms.markers import left_by
from prefect_tao.runner.inside.schemes import bucket_name, is_local
from prefect_tao.storage.known_schemes import is_seen

P = ParamSpec("P")
T = TypeVar("T")
POLL = (5.0, 60.0)
# The client's connections are ten; a look must find one free while jobs are being sent.
THREADS = 8


class LeptonPlatform(Driver):
    """Jobs of a workspace. Their truth is there, and in what their runners write among the results."""

    denial_seconds = 30.0
    cancel_pause = 0.5

    def __init__(self, target: str, settings: LeptonSettings) -> None:
        super().__init__(target)
        for text in settings.mounts:
            render.parse_mount(text)
        bucket = bucket_name(settings.s3_bucket_name or "") or None
        self.options = settings.model_copy(update={"s3_bucket_name": bucket})
        self.poll_seconds = settings.pauses(POLL)
        self.cancel_pause = min(self.poll_seconds[0], 0.5)
        self.workspace = LeptonWorkspace(self.options)
        self.observer = LeptonObserver(self.workspace, target, BucketFiles.named_by(self.options, {}))
        self.launcher = LeptonLauncher(self.workspace, self.observer, self.options)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lepton")

    def take_credentials(self, credentials: Mapping[str, str]) -> None:
        """The workspace's token, the key for NGC and those of storage. They stay in memory."""
        for name in ("LEPTON_AUTH_TOKEN", "LEPTON_WORKSPACE_TOKEN"):
            if token := credentials.get(name):
                self.workspace.token = token
                break
        self.launcher.credentials = dict(credentials)
        self.observer.bucket = BucketFiles.named_by(self.options, credentials)

    async def in_thread(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask in one of a few threads; a no to a question tells nothing about jobs. Raises Unreachable."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, partial(question, *args, **kwargs))
        except NotTaken as error:
            cause = f"Lepton does not answer for the workspace {self.options.workspace_id}: {error}"
            raise Unreachable(cause, "check the workspace's id and the rights of the token") from error

    # -- launch --------------------------------------------------------------------------------------------------------

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """What is sent to Lepton. Raises InvalidInput for what no job there can be."""
        return render.render(request, key, attempt, self.options, self.target)

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Make the job, or adopt the one that has the name. Raises SubmitFailed, Unreachable."""
        self.launcher.denial_seconds = self.denial_seconds
        return await self.in_thread(self.launcher.submit, rendered, dict(secrets))

    # -- look ----------------------------------------------------------------------------------------------------------

    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """One list of all jobs, and a closer look at those that changed. Raises Unreachable."""
        return await self.in_thread(self.observer.look, list(handles))

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """What Lepton has collected of all workers, in whole lines in the order they came. Raises Unreachable."""
        return await self.in_thread(self._logs, handle, tail, since)

    def _logs(self, handle: JobHandle, tail: int | None, since: str | None) -> LogChunk:
        row = self.observer.row(handle)
        if row is None:
            return LogChunk("", since or "")
        return self.observer.after(row, since) if tail is None else self.observer.ending(row, tail)

    async def replicas(self, handle: JobHandle) -> list[Replica]:
        """The workers, and what keeps each from running. Raises Unreachable."""
        found = await self.in_thread(self._replicas, handle)
        return found or await super().replicas(handle)

    def _replicas(self, handle: JobHandle) -> list[Replica]:
        row = self.observer.row(handle)
        listed = self.workspace.about(row.id, "replicas") if row else None
        return [Replica(name, row.state if row else "", *issue) for name, *issue in observe.issues(listed)]

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """Why the job ended, from its record, its log, and Lepton's own analysis and events. Raises Unreachable."""
        return classify(await self.in_thread(self._evidence, handle, await self.seen(handle)))

    def _evidence(self, handle: JobHandle, end: Observation) -> Evidence:
        row = self.observer.row(handle)
        if row is None:
            return observe.evidence(end, self.observer.record(handle), "", None, None)
        log = self.observer.tail(row, TAIL_LINES)
        record = self.observer.record(handle, row.id) if is_seen(handle.results) else observe.end_in_log(log)
        told = (self.workspace.about(row.id, what) for what in ("failure-analysis", "events", "replicas"))
        return observe.evidence(end, record, log, *told)

    # -- end -----------------------------------------------------------------------------------------------------------

    async def ask_to_end(self, handles: Sequence[JobHandle]) -> None:
        """Stop all jobs of these names: of two that bear one name, the other must not begin later."""
        await self.in_thread(self._stop, handles)

    async def insist(
        self, left: Sequence[JobHandle], seen: Mapping[JobHandle, Observation], spent: float, timeout: float
    ) -> None:
        """Ask once more; Lepton itself kills what does not end."""
        if spent > kill_after(timeout):
            await self.in_thread(self._stop, left)

    async def is_cleared(self, seen: Collection[JobHandle], asked: Collection[JobHandle]) -> bool:
        """Whether no other job of the name is left. Raises Unreachable."""
        return not asked or await self.in_thread(self._stop, list(asked)) == 0

    def _stop(self, handles: Sequence[JobHandle]) -> int:
        """Stop what is not over of these names; returns how many that were."""
        names = {handle.name for handle in handles}
        left = [row for row in self.workspace.jobs(ALIVE) if row.name in names and not row.is_over]
        for row in left:
            self.workspace.stop(row.id)
        return len(left)

    # -- find ----------------------------------------------------------------------------------------------------------

    async def site(self) -> str:
        """The workspace by its id."""
        return render.site(self.options)

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """Attempts by the workspace's list and by what they left among the results. Raises Unreachable."""
        return await self.in_thread(self._find, list(keys))

    def _find(self, keys: list[str]) -> dict[str, list[JobHandle]]:
        found: dict[str, dict[int, JobHandle]] = {key: {} for key in keys}
        rows = self.observer.of_keys(keys) if keys else []
        running: set[str] = set()
        for handle, row in self._named(rows):
            found[handle.key][handle.attempt] = handle
            running |= set() if row.is_over else {handle.key}
        # An attempt that goes on is the last one. Of others, those that came later may have left only their records.
        places = {render.results_of(key, self.options): key for key in found if key not in running}
        for place, attempts in self.observer.attempts([place for place in places if place]).items():
            known, key = found[places[place]], places[place]
            for attempt in attempts:
                if attempt not in known:
                    known[attempt] = self._left(key, attempt, place)
        for far in self.observer.noted_elsewhere([self.observer.unseen(key) for key in places.values()]):
            found[far.key].setdefault(far.attempt, far)
        return {key: [attempts[number] for number in sorted(attempts)] for key, attempts in found.items()}

    def _named(self, rows: Sequence[LeptonRow]) -> list[tuple[JobHandle, LeptonRow]]:
        """Each name once, with the job that bears it."""
        by_name: dict[str, list[LeptonRow]] = {}
        for row in rows:
            by_name.setdefault(row.name, []).append(row)
        found = []
        for named in by_name.values():
            handle = self.observer.handle(named[0])
            one = self.observer.bearer(handle, named) if handle and len(named) > 1 else named[0]
            if one and (handle := self.observer.handle(one)):
                found.append((handle, one))
        return found

    def _left(self, key: str, attempt: int, results: str) -> JobHandle:
        """The handle of a job that the workspace has forgotten."""
        handle = JobHandle(target=self.target, key=key, attempt=attempt, results=results)
        return left_by(handle, self.observer.record(handle), render.site(self.options))

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """All our jobs there, newest first. Raises Unreachable."""
        return await self.in_thread(self._jobs, dict(labels or {}))

    def _jobs(self, labels: dict[str, str]) -> list[JobHandle]:
        rows = self.workspace.jobs(EVERYTHING)
        found = sorted(self._named(rows), key=lambda one: one[1].created, reverse=True)
        living = {row.name for row in rows if not row.is_over}
        self.launcher.sweep([row.name for row in rows if row.name not in living], living)
        return [handle for handle, _ in found if labels.items() <= handle.labels.items()]

    async def in_flight(self) -> int:
        """How many of our jobs are not over, in one list. Raises Unreachable."""
        rows = await self.in_thread(self.workspace.jobs, ALIVE)
        return len({row.name for row in rows if not row.is_over})

    # -- paths and probes ----------------------------------------------------------------------------------------------

    def reach(self, uri: str) -> tuple[Files, str]:
        """Storage; what lies on a mount can be seen by jobs only. Raises InvalidInput."""
        if is_seen(uri):
            return self.observer.bucket, uri
        raise InvalidInput(
            f"{uri} is a path inside jobs on {self.target}, which cannot be looked at from here",
            "give an s3:// location, or say how the path is mounted: --mount-proof",
        )

    async def check_path(self, uri: str) -> bool:
        """As all drivers; a path that no mount of the block holds is in no job. Raises InvalidInput, Unreachable."""
        if is_local(uri) and not self.options.mounts and not self.options.results_root:
            return False
        return await super().check_path(uri)

    async def all_gpus(self, image: str | None = None) -> int | None:
        """The GPUs of the largest shape that is offered. Raises Unreachable."""
        return await self.in_thread(self._all_gpus)

    def _all_gpus(self) -> int | None:
        try:
            return placement.most_gpus(self.launcher.shapes(self.launcher.node_group())) or None
        except InvalidInput:  # which node group is not known; the probe says so
            return None

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """The workspace answers, and has what the request asks for; nothing stays behind. Raises Unreachable."""
        return await self.in_thread(probes.findings, self.launcher, self.target, request)

    async def close(self) -> None:
        """Let go of the threads; jobs go on."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def settings(self) -> dict[str, Any]:
        """The workspace, and where in it jobs run."""
        return {
            "target": self.target,
            "workspace": self.options.workspace_id,
            "address": self.workspace.url,
            "node_group": self.options.node_group,
            "results": render.results_of("", self.options).rstrip("/") or None,
        }
