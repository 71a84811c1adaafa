"""The driver of the shelf: a job is a folder, the process that claims it runs it, and its record says how it ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName, is_our_name
from prefect_tao.jobs.platform import LogChunk, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.verdict import Evidence, Verdict, classify
from prefect_tao.platforms import logtext
from prefect_tao.platforms.base import Driver, kill_after
from prefect_tao.platforms.files import Files, LocalFiles
from prefect_tao.platforms.markers import ended, has_ended, kept_end, left_by, moment, read_record
from prefect_tao.platforms.process import client, job_folder
from prefect_tao.platforms.progress import ProgressReader
from prefect_tao.storage.locations import path_here
from prefect_tao_shelf.render import CLAIM, END, JOB, LOG, SCRIPT, SECRETS, STOP, render
from prefect_tao_shelf.settings import ShelfSettings

P = ParamSpec("P")
T = TypeVar("T")
START_SECONDS = 30.0


class ShelfPlatform(Driver):
    """Jobs below one folder. They outlive their launcher; their truth is in their folders and in the kernel."""

    poll_seconds = (0.05, 2.0)
    runs_here = True
    cancel_pause = 0.02

    def __init__(self, target: str, settings: ShelfSettings) -> None:
        super().__init__(target)
        # Resolved, because the processes of a job are recognized by the folder that they carry.
        self.root = Path(settings.root).expanduser().resolve()
        self._files, self._progress = LocalFiles(), ProgressReader()
        self._children: list[subprocess.Popen[bytes]] = []

    def _folder(self, name: str) -> Path:
        return self.root / "jobs" / name

    async def in_thread(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A disk that does not answer is silence and no evidence. Raises Unreachable."""
        try:
            return await asyncio.to_thread(question, *args, **kwargs)
        except OSError as error:
            raise Unreachable(f"{self.root} cannot be read: {error}", "the job goes on; look again later") from error

    # -- launch --------------------------------------------------------------------------------------------------------

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """The files of the job. Raises InvalidInput."""
        return render(request, key, attempt, self._folder(str(JobName(key, attempt))), self.root / "results")

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Put the folder on the shelf and return when a process has claimed it. Raises SubmitFailed, Unreachable."""
        name = JobName(rendered.key, rendered.attempt)
        folder = self._folder(str(name))
        child = await asyncio.to_thread(self._start, folder, rendered, secrets)
        await self.in_thread(_await_claim, folder, child)
        return await self.in_thread(self._handle, name)

    def _start(self, folder: Path, rendered: Rendered, secrets: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """A process that may become the job; none where the job has one."""
        self._children = [child for child in self._children if child.poll() is None]
        try:
            if not folder.is_dir():
                job_folder.stage(folder, rendered.files)  # whole or not at all; of two launchers one does it
            if (folder / CLAIM).exists():
                return None
            hidden = folder / f"{SECRETS}{token_hex(4)}"
            job_folder.write_private(hidden, json.dumps(dict(secrets)).encode())
            # With the folder from the first moment on, because a process is found by it before the script exports it.
            here = {"SHELF_HERE": f"{client.boot_id()}.{client.place()}", "TAO_WORK_DIR": str(folder)}
            here |= {"TAO_SITE": client.site(), "TAO_TARGET": self.target}
            kept = {name: os.environ[name] for name in ("HOME", "LANG", "PATH") if name in os.environ}
            with open(folder / LOG, "ab") as log:
                child = subprocess.Popen(
                    ["/bin/sh", str(folder / SCRIPT)],
                    env={**kept, **here, "TAO_SECRETS_FILE": str(hidden)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise SubmitFailed(f"{folder} cannot be written: {error}", "free space, or choose another shelf") from error
        self._children.append(child)
        return child

    # -- look ----------------------------------------------------------------------------------------------------------

    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """Read each job's record and ask the kernel about its process. Raises Unreachable."""
        found = {handle: await self.in_thread(self._look, handle) for handle in handles}
        await self.in_thread(self._progress.refresh, self._files, [handle.results for handle in handles])
        return {
            handle: seen.model_copy(update={"progress": self._progress.of(handle.results)})
            for handle, seen in found.items()
            if seen
        }

    def _look(self, handle: JobHandle) -> Observation | None:
        """The job as it is now; None where only another machine knows. An end is written down, so that it stays."""
        folder = self._folder(handle.name)
        if kept := kept_end(job_folder.read(folder / END)):
            return kept
        seen = self._end(handle) or self._now(handle, folder)
        if seen and seen.state.terminal and folder.is_dir():
            for secret in folder.glob(f"{SECRETS}*"):
                secret.unlink(missing_ok=True)
            with suppress(OSError):  # on a full disk it is found out anew each time
                job_folder.replace(folder / END, seen.model_dump_json().encode())
        return seen

    def _record(self, handle: JobHandle) -> dict[str, Any] | None:
        return read_record(job_folder.read(Path(handle.results) / "attempts" / f"{handle.attempt}.json"))

    def _end(self, handle: JobHandle) -> Observation | None:
        """The end that the runner wrote down among the results."""
        record = self._record(handle)
        return ended(record, f"exit {record['exit_code']}") if record and has_ended(record) else None

    def _now(self, handle: JobHandle, folder: Path) -> Observation | None:
        # The claim is asked for first: a process that takes it from here on is no reason to call the job over.
        record, is_claimed = self._record(handle), (folder / CLAIM).exists()
        ident = self._ident(handle)
        if ident and not client.is_here(ident):
            return None
        lives = client.life(ident) if ident else None
        if lives or client.members(str(folder), ident):
            state = JobState.RUNNING if record else JobState.PENDING
            state = JobState.CANCELING if (folder / STOP).exists() else state
            started = moment(record and record.get("started"))
            return Observation(state=state, native_state=lives or "runner lost", evidence="/proc", started_at=started)
        # It may have ended between the two looks.
        return self._end(handle) or _without_process(folder, is_claimed)

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """The job's output; the cursor is a byte offset. Raises Unreachable."""
        return await self.in_thread(logtext.read_file, self._folder(handle.name) / LOG, tail, since)

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """Why the job ended, from its record and the end of its log. Raises Unreachable."""
        seen = await self.seen(handle)
        record = await self.in_thread(self._record, handle) or {}
        return classify(
            Evidence(
                exit_code=seen.exit_code,
                ended_by=seen.ended_by,
                native_state=seen.native_state,
                reason=seen.reason,
                phase=str(record.get("phase") or ""),
                runner_error=str(record.get("error") or ""),
                log_tail=logtext.ending(self._folder(handle.name) / LOG),
            )
        )

    # -- end -----------------------------------------------------------------------------------------------------------

    async def ask_to_end(self, handles: Sequence[JobHandle]) -> None:
        """Leave word in the folder, then send the runner a signal. Raises Unreachable."""
        for handle in handles:
            await self.in_thread(self._ask_to_end, handle)

    def _ask_to_end(self, handle: JobHandle) -> None:
        folder = self._folder(handle.name)
        folder.mkdir(parents=True, exist_ok=True)  # the runner looks there for the reason, deleted or not
        (folder / STOP).write_text(EndedBy.CANCEL)
        with suppress(FileExistsError):  # a job that no process has claimed never begins
            (folder / CLAIM).open("x").close()
        ident = self._ident(handle)
        if not (ident and client.send(ident, signal.SIGTERM)):
            self._kill([handle])

    async def insist(
        self, left: Sequence[JobHandle], seen: Mapping[JobHandle, Observation], spent: float, timeout: float
    ) -> None:
        """Kill commands whose time is up, and later their runners, which would have recorded the end."""
        if spent > kill_after(timeout):
            await self.in_thread(self._kill, left, spare_runner=spent < 0.8 * timeout)

    async def is_cleared(self, seen: Collection[JobHandle], asked: Collection[JobHandle]) -> bool:
        """Whether nothing is left, even of what left the job's process group; what is left is killed."""
        return not await self.in_thread(self._kill, list(asked))

    def _kill(self, handles: Sequence[JobHandle], spare_runner: bool = False) -> int:
        """Kill the processes of these jobs; returns how many there were."""
        found = 0
        for handle in handles:
            runner = self._ident(handle)
            for ident in client.members(str(self._folder(handle.name)), runner):
                found += 1
                if ident != runner or not spare_runner:
                    client.send(ident, signal.SIGKILL)
        return found

    def _ident(self, handle: JobHandle) -> client.Ident | None:
        claim = job_folder.read(self._folder(handle.name) / CLAIM) or b""
        return client.Ident.parse(claim.decode().strip() or handle.native_id)

    # -- find ----------------------------------------------------------------------------------------------------------

    async def site(self) -> str:
        """This machine, by the id that it keeps over reboots. Raises Unreachable when that cannot be read."""
        return await self.in_thread(client.site)

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """Attempts by folder and by what they left among the results. Raises Unreachable."""
        return await self.in_thread(lambda: {key: self._attempts(key) for key in keys})

    def _attempts(self, key: str) -> list[JobHandle]:
        records = job_folder.names(self.root / "results" / key / "attempts")
        numbers = {int(stem) for stem in (name.removesuffix(".json") for name in records) if stem.isdigit()}
        numbers |= {name.attempt for name in self._names() if name.key == key}
        return [self._handle(JobName(key, number)) for number in sorted(numbers)]

    def _names(self) -> list[JobName]:
        return [JobName.parse(name) for name in job_folder.names(self.root / "jobs") if is_our_name(name)]

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """All folders on the shelf that are this machine's, newest first. Raises Unreachable."""
        found = await self.in_thread(self._jobs, dict(labels or {}))
        far = await self.elsewhere(found)
        return [handle for handle in found if handle not in far]

    def _jobs(self, labels: dict[str, str]) -> list[JobHandle]:
        files = {name: self._folder(str(name)) / JOB for name in self._names()}
        made = {name: file.stat().st_mtime_ns for name, file in files.items() if file.exists()}
        handles = [self._handle(name) for name in sorted(made, key=made.__getitem__, reverse=True)]
        return [handle for handle in handles if labels.items() <= handle.labels.items()]

    def _handle(self, name: JobName) -> JobHandle:
        folder = self._folder(str(name))
        job = job_folder.read_json(folder / JOB) or {}
        claim = (job_folder.read(folder / CLAIM) or b"").decode().strip()
        handle = JobHandle(
            target=self.target,
            key=name.key,
            attempt=name.attempt,
            native_id=claim,
            site=client.site(client.Ident.parse(claim)),  # of the machine that claimed it; else nobody has, and we may
            results=str(self.root / "results" / name.key),
            digest=job.get("digest", ""),
            labels=job.get("labels", {}),
        )
        return handle if folder.is_dir() else left_by(handle, self._record(handle), handle.site)

    async def request_of(self, handle: JobHandle) -> JobRequest | None:
        """What the job was asked to do."""
        job = await self.in_thread(job_folder.read_json, self._folder(handle.name) / JOB) or {}
        try:
            return JobRequest.model_validate(job["request"])
        except (KeyError, ValidationError):  # gone, or written by another version
            return None

    # -- paths and probes ----------------------------------------------------------------------------------------------

    def reach(self, uri: str) -> tuple[Files, str]:
        """The files of this machine. Raises InvalidInput."""
        return self._files, str(path_here(uri))

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """Whether the shelf can be written, found out without writing."""
        if await self.in_thread(self._files.writable, str(self.root)):
            return [Finding(level=Level.OK, subject="shelf", message=f"{self.root} can be written")]
        message, remedy = f"{self.root} cannot be written", "choose another folder: SHELF_ROOT, or the block's root"
        return [Finding(level=Level.FAIL, subject="shelf", message=message, remedy=remedy)]

    async def all_gpus(self, image: str | None = None) -> int | None:
        """The one that jobs take turns with."""
        return 1

    def settings(self) -> dict[str, Any]:
        """The shelf's folder."""
        return {"target": self.target, "root": str(self.root)}


def _await_claim(folder: Path, child: subprocess.Popen[bytes] | None) -> None:
    """Wait until a process has the job: ours, or that of another launcher. Raises SubmitFailed, Unreachable."""
    deadline = time.monotonic() + START_SECONDS
    while not (folder / CLAIM).exists():
        if child and child.poll() is not None and not (folder / CLAIM).exists():
            raise SubmitFailed(f"the job's process did not start: {logtext.ending(folder / LOG)}", "see its message")
        if time.monotonic() > deadline:
            raise Unreachable(f"no process has claimed {folder.name}", "launch again: it attaches to the job")
        time.sleep(0.002)


def _without_process(folder: Path, is_claimed: bool) -> Observation:
    """No process and no record: the kernel positively says that nothing of the job is left."""
    state, ended_by, reason = JobState.ERROR, EndedBy.NONE, "its processes are gone without an exit marker"
    is_unstarted = folder.is_dir() and not is_claimed
    if is_unstarted:
        state, reason = JobState.PENDING, "its launcher ended before it was started; launch again to start it"
    elif (folder / STOP).exists():
        state, ended_by, reason = JobState.CANCELED, EndedBy.CANCEL, EndedBy.CANCEL.words
    return Observation(
        state=state,
        native_state="no process",
        reason=reason,
        evidence="/proc",
        ended_by=ended_by,
        unstarted=is_unstarted,
    )
