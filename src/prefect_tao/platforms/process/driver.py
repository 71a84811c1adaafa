"""The process driver: detached process groups on this machine, each in a folder of its own name."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import LogChunk, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import EndedBy, Observation
from prefect_tao.jobs.verdict import Verdict, classify
from prefect_tao.platforms import gpus, logtext, site_notes
from prefect_tao.platforms.base import Driver, kill_after
from prefect_tao.platforms.files import BucketFiles, Files, LocalFiles
from prefect_tao.platforms.markers import left_by
from prefect_tao.platforms.process import client, job_folder, probes, process_starter, render
from prefect_tao.platforms.process.observe import ABANDONED_SECONDS, RUNNER_LOST, ProcessObserver
from prefect_tao.platforms.process.settings import ProcessSettings
from prefect_tao.platforms.process.submit import JobStarter
from prefect_tao.storage.known_schemes import is_seen
from prefect_tao.storage.locations import path_here

P = ParamSpec("P")
T = TypeVar("T")
HOME = "~/.prefect-tao"


class ProcessPlatform(Driver):
    """Jobs here. They outlive their launcher; their truth is in their folders and in the kernel."""

    poll_seconds = (0.05, 2.0)
    runs_here = True
    jobs_at_once = os.cpu_count() or 1
    cancel_pause = 0.02

    def __init__(self, target: str, settings: ProcessSettings) -> None:
        super().__init__(target)
        # Resolved, because the processes of a job are recognized by the folder that they carry.
        self.root = Path(settings.root or HOME).expanduser().resolve()
        kept = settings.results_root
        self.results_root = Path(kept).expanduser().absolute() if kept else self.root / "results"
        self.gpu_ids = settings.gpu_ids
        self.observer = ProcessObserver(self.root, self.results_root)
        self.starter = JobStarter(target, self.gpu_ids)
        self._local = LocalFiles()
        self._bucket = BucketFiles()
        self._swept = -ABANDONED_SECONDS

    def take_credentials(self, credentials: Mapping[str, str]) -> None:
        """The keys of storage, for locations there. They stay in memory and never reach a job."""
        self._bucket = BucketFiles(credentials)

    # -- launch --------------------------------------------------------------------------------------------------------

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """The job's folder content and the environment it adds. Raises InvalidInput for more than one node."""
        return render.render(request, key, attempt, self.observer.folder(key, attempt), self.results_root)

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Stage the folder, start the job, return when it has claimed its name."""
        folder = self.observer.folder(rendered.key, rendered.attempt)
        own = self._unseen(rendered.key, rendered.attempt)
        await self.in_thread(site_notes.leave, self._local, own)
        try:
            await asyncio.to_thread(self.starter.submit, folder, rendered, secrets)
        except SubmitFailed:
            await self.in_thread(site_notes.drop, self._local, own)
            raise
        with suppress(Unreachable):  # the next launch does it as well
            await self.in_thread(self._sweep_in_turn)
        return await self.in_thread(self._handle, rendered.key, rendered.attempt)

    def _sweep_in_turn(self) -> None:
        """Sweep where that was not done lately: there may be many launches."""
        if time.monotonic() - self._swept > ABANDONED_SECONDS:
            self._swept = time.monotonic()
            self._sweep()

    def _sweep(self) -> None:
        """Remove secrets that jobs have left. Raises OSError."""
        names = filter(None, map(_parsed, job_folder.names(self.root / "jobs")))
        holders = [one for one in names if job_folder.secrets_in(self.root / "jobs" / str(one))]
        self.observer.sweep([self._handle(one.key, one.attempt) for one in holders])

    def _unseen(self, key: str, attempt: int = 1) -> JobHandle:
        """The handle of an attempt here of which nothing is known yet."""
        results = str(self.results_root / key)
        return JobHandle(target=self.target, key=key, attempt=attempt, site=client.site(), results=results)

    def _devices(self) -> dict[str, tuple[str, ...]]:
        return gpus.inventory(self.gpu_ids)

    # -- look ----------------------------------------------------------------------------------------------------------

    async def in_thread(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Ask this machine in a thread. A disk that does not answer is silence, not evidence: raises Unreachable."""
        try:
            return await asyncio.to_thread(question, *args, **kwargs)
        except OSError as error:
            raise Unreachable(f"{self.root} cannot be read: {error}", "the job goes on; look again later") from error

    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """Read each job's marker and ask the kernel about its process. Raises Unreachable.

        A job that another machine or container runs is left out: this kernel knows nothing of it.
        """
        return await self.in_thread(self._look, list(handles))

    def _look(self, handles: list[JobHandle]) -> dict[JobHandle, Observation]:
        self.starter.count_off()
        looks = {handle: self.observer.look(handle) for handle in handles}
        return {handle: seen for handle, seen in looks.items() if seen}

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """The job's output; the cursor is a byte offset. Raises Unreachable."""
        return await self.in_thread(
            logtext.read_file, self.observer.folder(handle.key, handle.attempt) / job_folder.LOG, tail, since
        )

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """Why the job ended, from its marker, its log and the kernel. Raises Unreachable."""
        return classify(await self.in_thread(self.observer.evidence, handle))

    # -- end -----------------------------------------------------------------------------------------------------------

    async def out_of_reach(self, unseen: Sequence[JobHandle]) -> dict[JobHandle, str]:
        """The jobs of other machines and containers. Raises Unreachable."""
        hosts = {handle: await self.in_thread(self.observer.host, handle) for handle in unseen}
        return hosts | {handle: f"{hosts[handle]}, {handle.site}" for handle in await self.elsewhere(unseen)}

    async def ask_to_end(self, handles: Sequence[JobHandle]) -> None:
        """Leave word in the job's folder and send the runner a signal. Raises Unreachable."""
        for handle in handles:
            await self.in_thread(self._ask_to_end, handle)

    async def insist(
        self, left: Sequence[JobHandle], seen: Mapping[JobHandle, Observation], spent: float, timeout: float
    ) -> None:
        """Kill commands whose time is up, later their runners too, and at once what has lost its runner.

        Runners come last, so that outputs are saved and the marker tells of the end.
        """
        if spent > kill_after(timeout):
            await self.in_thread(self._kill, left, left, with_runner=spent > 0.8 * timeout)
        elif orphans := [handle for handle in left if handle in seen and seen[handle].native_state == RUNNER_LOST]:
            await self.in_thread(self._kill, orphans, orphans)

    async def is_cleared(self, seen: Collection[JobHandle], asked: Collection[JobHandle]) -> bool:
        """Whether no process of these jobs is left; what is left is killed."""
        return not await self.in_thread(self._kill_leftovers, list(seen), asked)

    def _ask_to_end(self, handle: JobHandle) -> None:
        folder = self.observer.folder(handle.key, handle.attempt)
        with suppress(OSError):  # on a full disk too a job must end, though its marker cannot say on whose request
            folder.mkdir(parents=True, exist_ok=True)  # the runner looks there why it is to end, were it deleted or not
            (folder / job_folder.STOP).write_text(EndedBy.CANCEL)
            # A launcher that would start this job later finds its name taken.
            process_starter.claim(str(folder), json.dumps({"ident": handle.native_id, "canceled": True}))
        ident = self.observer.ident(handle, self.observer.record(handle))
        if ident and client.life(ident) == "T":
            client.send(ident, signal.SIGCONT)
        if not (ident and client.send(ident, signal.SIGTERM)):
            self._kill([handle], [handle])

    def _kill_leftovers(self, handles: Sequence[JobHandle], asked: Collection[JobHandle]) -> int:
        """Kill until nothing is found twice: what forks and ends during the first look hides its child from it."""
        return self._kill(handles, asked) or self._kill(handles, asked)

    def _kill(self, handles: Sequence[JobHandle], asked: Collection[JobHandle], with_runner: bool = True) -> int:
        """Kill what is left of these jobs, also what left their process groups; returns how many processes it was.

        The session is asked for only of jobs that were not over when we came: the number of one that ended long ago
        may be another's by now. What may not be killed counts too, for it still runs.
        """
        carriers, count = client.carriers(f"{self.root / 'jobs'}/"), 0
        runners = {handle: self.observer.ident(handle, self.observer.record(handle)) for handle in handles}
        sessions = client.sessions(ident for handle, ident in runners.items() if ident and handle in asked)
        for handle, runner in runners.items():
            found = {*carriers.get(str(self.observer.folder(handle.key, handle.attempt)), [])}
            found.update(sessions.get(runner, []) if runner else [])
            for ident in found if with_runner else found - {runner}:
                client.send(ident, signal.SIGKILL)
                count += 1
        return count

    # -- find ----------------------------------------------------------------------------------------------------------

    async def site(self) -> str:
        """This machine, by the id that it keeps over reboots. Raises Unreachable when that cannot be read."""
        return await self.in_thread(client.site)

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """Attempts by folder, by result record and, when both are gone, by living process. Raises Unreachable."""
        return await self.in_thread(self._find, list(keys))

    def _find(self, keys: list[str]) -> dict[str, list[JobHandle]]:
        carriers = client.carriers(f"{self.root / 'jobs'}/")
        living = {Path(folder).name: str(idents[0]) for folder, idents in carriers.items()}
        attempts: dict[str, set[int]] = {key: set() for key in keys}
        for name in (*job_folder.names(self.root / "jobs"), *living):
            ours = _parsed(name)
            if ours and ours.key in attempts:
                attempts[ours.key].add(ours.attempt)
        for key in keys:
            stems = (name.removesuffix(".json") for name in job_folder.names(self.results_root / key / "attempts"))
            attempts[key] |= {int(stem) for stem in stems if stem.isdigit()}
        found = {
            key: [self._handle(key, number, living.get(str(JobName(key, number)), "")) for number in sorted(numbers)]
            for key, numbers in attempts.items()
        }
        for far in site_notes.others(self._local, [self._unseen(key) for key in keys]):
            if far.attempt not in attempts[far.key]:
                found[far.key] = sorted([*found[far.key], far], key=lambda one: one.attempt)
        return found

    async def request_of(self, handle: JobHandle) -> JobRequest | None:
        """What the job was asked to do, for those who have only its name."""
        job = job_folder.read_json(self.observer.folder(handle.key, handle.attempt) / job_folder.JOB) or {}
        try:
            return JobRequest.model_validate(job["request"])
        except (KeyError, ValidationError):  # gone, or written by another version
            return None

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """All job folders, newest first, swept of secrets; machines may share the root. Raises Unreachable."""
        found = await self.in_thread(self._jobs, dict(labels or {}))
        far = await self.elsewhere(found)
        return [handle for handle in found if handle not in far]

    def _jobs(self, labels: dict[str, str]) -> list[JobHandle]:
        found = []
        for name in job_folder.names(self.root / "jobs"):
            ours, folder = _parsed(name), self.root / "jobs" / name
            if ours is None or str(ours) != name:
                continue
            job = job_folder.read_json(folder / job_folder.JOB) or {}
            is_job = job.get("name") == name or (not job and job_folder.is_damaged(folder))
            if is_job and labels.items() <= job.get("labels", {}).items():
                found.append((job.get("created", 0), self._handle(ours.key, ours.attempt)))
        self._sweep()
        return [handle for _, handle in sorted(found, key=lambda item: item[0], reverse=True)]

    def _handle(self, key: str, attempt: int, living: str = "") -> JobHandle:
        """The handle of a job that is there; `living` is its oldest process, for a job whose folder was deleted."""
        folder = self.observer.folder(key, attempt)
        job = job_folder.read_json(folder / job_folder.JOB) or {}
        claim = job_folder.read_json(folder / job_folder.CLAIM) or {}
        handle = JobHandle(
            target=self.target,
            key=key,
            attempt=attempt,
            native_id=str(claim.get("ident") or ""),
            site=client.site(client.Ident.parse(str(claim.get("ident")))),
            results=str(Path(job.get("env", {}).get("TAO_RESULTS_ROOT", self.results_root)) / key),
            digest=str(job.get("digest") or ""),
            labels=job.get("labels") or {},
        )
        if handle.native_id:
            return handle
        if living or folder.is_dir():
            record = self.observer.record(handle) or {}
            return handle.model_copy(update={"native_id": str(record.get("native_id") or living)})
        return left_by(handle, self.observer.any_record(handle), handle.site)

    # -- paths and probes ----------------------------------------------------------------------------------------------

    def reach(self, uri: str) -> tuple[Files, str]:
        """The files of this machine, or storage. Raises InvalidInput."""
        return (self._bucket, uri) if is_seen(uri) else (self._local, str(path_here(uri)))

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """Folders can be written, and the machine has what the request asks for."""
        return await self.in_thread(self._probe, request)

    def _probe(self, request: JobRequest | None) -> list[Finding]:
        findings = probes.writable_findings(jobs=self.root, results=self.results_root)
        return findings + (probes.fit_findings(request, self._devices, bool(self.gpu_ids)) if request else [])

    async def all_gpus(self, image: str | None = None) -> int | None:
        """The GPUs of this machine that jobs may have. Raises Unreachable."""
        return len(await self.in_thread(self._devices))

    async def disk_free(self) -> dict[str, int]:
        """Free bytes for results. Raises Unreachable."""
        return {str(self.results_root): await self.in_thread(self._free)}

    def _free(self) -> int:
        return self._local.free(str(self.results_root))

    def settings(self) -> dict[str, Any]:
        """Root folders."""
        return {"target": self.target, "root": str(self.root), "results_root": str(self.results_root)}


def _parsed(name: str) -> JobName | None:
    try:
        return JobName.parse(name)
    except InvalidInput:
        return None
