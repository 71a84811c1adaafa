"""The process driver: detached process groups on this machine, each in a folder of its own name."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect_tao.jobs.errors import CancelUnconfirmed, InvalidInput, NameTaken, SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import LogChunk, Platform, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.statusfile import Progress, parse_status
from prefect_tao.jobs.verdict import Evidence, Verdict, classify
from prefect_tao.platforms.process import folder as layout
from prefect_tao.platforms.process import gpus, proc, starter
from prefect_tao.runner.entrypoint import entrypoint_for
from prefect_tao.runner.program import LOCAL_SCHEMES, config_text

STARTER = Path(starter.__file__)
START_SECONDS = 30.0
GRACE_SECONDS = 20.0
LOG_CHUNK = 1 << 20
LOG_TAIL = 1 << 16
# What steers Prefect and its workers has no business in a job.
CONTROL_PREFIXES = ("PREFECT_", "TAO_")
CONTROL_NAMES = {"BACKEND", "DOCKER_HOST", "DOCKER_NETWORK", "HOST_PLATFORM", "MONGOSECRET"}


class ProcessPlatform(Platform):
    """Jobs here. They outlive whoever launched them; their truth is in their folders and in the kernel."""

    poll_seconds = (0.05, 2.0)

    def __init__(
        self,
        target: str = "process",
        root: str | Path | None = None,
        results_root: str | Path | None = None,
        gpu_ids: Sequence[str] | None = None,
    ) -> None:
        self.target = target
        self.root = Path(root).expanduser().absolute() if root else layout.home()
        given = results_root or os.environ.get("TAO_RESULTS_ROOT")
        self.results_root = Path(given).expanduser().absolute() if given else self.root / "results"
        self.gpu_ids = list(gpu_ids) if gpu_ids is not None else None
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._status_cache: dict[Path, tuple[tuple[int, int], Progress | None]] = {}

    # -- launch --------------------------------------------------------------------------------------------------------

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """The job's folder content and the environment it adds. Raises InvalidInput for more than one node."""
        if request.resources.nodes > 1:
            raise InvalidInput(
                f"process runs on this machine only, and {request.resources.nodes} nodes were asked for",
                "use --nodes 1, or a target with several nodes such as slurm or kubernetes",
            )
        entrypoint = entrypoint_for(request, grace=GRACE_SECONDS)
        name = str(JobName(key, attempt))
        job = {
            "name": name,
            "key": key,
            "attempt": attempt,
            "digest": request.digest,
            "labels": request.labels,
            "env": {**request.env, **self._env(key, attempt)},
            "gpus": request.resources.gpus,
            "request": request.model_dump(mode="json"),
        }
        files = {layout.JOB: json.dumps(job).encode(), layout.PLAN: json.dumps(entrypoint.plan).encode()}
        return Rendered(request, key, attempt, self._text(request, name, job["env"]), files)

    def _env(self, key: str, attempt: int) -> dict[str, str]:
        folder = self._folder(key, attempt)
        return {
            "TAO_JOB_ID": key,
            "TAO_JOB_NAME": folder.name,
            "TAO_ATTEMPT": str(attempt),
            "TAO_RESULTS_ROOT": str(self.results_root),
            "TAO_WORK_DIR": str(folder),
            "TAO_STOP_FILE": str(folder / layout.STOP),
            "TAO_SECRETS_FILE": str(folder / layout.SECRETS),
        }

    @staticmethod
    def _text(request: JobRequest, name: str, env: Mapping[str, str]) -> str:
        lines = [f"# {name}: a process group on this machine"]
        lines += [f"cd {request.workdir}"] if request.workdir else []
        lines += [f"export {key}={value!r}" for key, value in sorted(env.items())]
        lines += [f"# secrets by name: {', '.join(request.secrets)}"] if request.secrets else []
        lines += [f"# GPUs: {request.resources.gpus}, as CUDA_VISIBLE_DEVICES"]
        if request.specs is not None:
            spec = config_text(request.specs, request.config_format)
            lines += [
                f"# {{config_path}} is spec.{request.config_format}:",
                *(f"#   {line}" for line in spec.split("\n")),
            ]
        arguments = "" if request.args is None else " " + json.dumps({**request.args, "flags": request.flags})
        return "\n".join([*lines, request.command + arguments, ""])

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Stage the folder, start the job, return when it has claimed its name."""
        return await asyncio.to_thread(self._submit, rendered, dict(secrets))

    def _submit(self, rendered: Rendered, secrets: dict[str, str]) -> JobHandle:
        folder = self._folder(rendered.key, rendered.attempt)
        job = json.loads(rendered.files[layout.JOB])
        job |= {"created": time.time(), "devices": self._devices() if job["gpus"] else []}
        files = {**rendered.files, layout.JOB: json.dumps(job).encode(), layout.SECRETS: json.dumps(secrets).encode()}
        try:
            if not layout.stage(folder, files):
                self._recognize(folder)
            if not (folder / layout.CLAIM).exists():
                self._start(folder, job["env"], secrets)
        except OSError as error:
            raise SubmitFailed(
                f"the job folder {folder} cannot be written: {error.strerror}",
                "free space or set PREFECT_TAO_HOME to a folder that can be written",
            ) from error
        return self._handle(rendered.key, rendered.attempt)

    def _recognize(self, folder: Path) -> None:
        """Raise NameTaken unless the folder is a job of ours; what is not ours is left alone."""
        job = layout.read_json(folder / layout.JOB)
        if job is None or job.get("name") != folder.name:
            raise NameTaken(f"{folder} is there, but it is not a job of prefect-tao", "move it away and launch again")

    def _start(self, folder: Path, env: Mapping[str, str], secrets: dict[str, str]) -> None:
        """Start the job's process and wait until a process has claimed the name: ours, or a rival's."""
        if not (folder / layout.SECRETS).exists():
            layout.write_private(folder / layout.SECRETS, json.dumps(secrets).encode())
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(CONTROL_PREFIXES) and key not in CONTROL_NAMES
        }
        with open(folder / layout.LOG, "ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(STARTER), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**inherited, **env},
                start_new_session=True,
            )
        self._children[folder.name] = child
        deadline = time.monotonic() + START_SECONDS
        while not (folder / layout.CLAIM).exists():
            if child.poll() is not None and not (folder / layout.CLAIM).exists():
                raise SubmitFailed(
                    f"the job's process ended with {child.returncode} before it could start: {_tail(folder / layout.LOG)}",
                    "see the message above; this is a fault of the machine or the installation, not of your command",
                )
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"the job's process did not report within {START_SECONDS:g} s",
                    "launch again: it attaches to the job",
                )
            time.sleep(0.001)

    def _devices(self) -> list[str]:
        return self.gpu_ids if self.gpu_ids is not None else gpus.inventory()

    # -- look ----------------------------------------------------------------------------------------------------------

    async def observe(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """Read each job's marker and ask the kernel about its process. Raises Unreachable when the disk does not answer."""
        return await asyncio.to_thread(self._observe, list(handles))

    def _observe(self, handles: list[JobHandle]) -> dict[JobHandle, Observation]:
        found = {}
        for handle in handles:
            try:
                found[handle] = self._look(handle)
            except OSError as error:
                raise Unreachable(
                    f"{self.root} cannot be read: {error}", "the job goes on; look again later"
                ) from error
        return found

    def _look(self, handle: JobHandle) -> Observation:
        folder = self._folder(handle.key, handle.attempt)
        if child := self._children.get(folder.name):
            child.poll()  # count our own dead children, or they stay in the process table
        record = self._record(handle)
        if record is None or "ended" not in record:
            ident = self._ident(handle, folder)
            life = proc.life(ident) if ident else None
            if life:
                return self._alive(handle, folder, record, life)
            record = self._record(handle)  # it may have ended between the two looks
            if record is None or "ended" not in record:
                if not ident and folder.is_dir():
                    return self._unstarted(folder)
                if survivors := proc.members(folder.name):
                    return Observation(
                        state=JobState.RUNNING,
                        native_state="runner lost",
                        reason=f"the runner is gone, but {len(survivors)} of the job's processes still run",
                        evidence="/proc",
                        started_at=_when(record, "started"),
                        progress=self._progress(handle),
                    )
                return self._lost(handle, folder, ident, record)
        self._forget(folder)
        return self._ended(handle, record)

    def _alive(self, handle: JobHandle, folder: Path, record: dict[str, Any] | None, life: str) -> Observation:
        state, reason = JobState.RUNNING, ""
        if record is None:
            state, reason = JobState.PENDING, "waiting for a free GPU" if self._job(folder).get("gpus") else "starting"
        elif life == "T":
            state, reason = JobState.PAUSED, "stopped by a signal"
        if (folder / layout.STOP).exists():
            state, reason = JobState.CANCELING, "asked to end"
        return Observation(
            state=state,
            native_state=life,
            reason=reason,
            evidence="/proc",
            started_at=_when(record, "started"),
            progress=self._progress(handle),
        )

    @staticmethod
    def _unstarted(folder: Path) -> Observation:
        return Observation(
            state=JobState.PENDING,
            native_state="staged",
            reason="its launcher ended before it was started; launch again to start it",
            evidence=str(folder),
        )

    def _lost(
        self, handle: JobHandle, folder: Path, ident: proc.Ident | None, record: dict[str, Any] | None
    ) -> Observation:
        """No process and no marker: the kernel positively says that nothing is left of the job."""
        canceled = (folder / layout.STOP).exists()
        if ident and ident.boot != proc.boot_id():
            native, reason = "NODE_FAIL", "the machine was restarted while the job ran"
        elif not folder.is_dir():
            native, reason = "deleted", "the job's folder was deleted, and no process of it is left"
        else:
            native, reason = "killed", "the job's processes are gone without an exit marker"
        self._forget(folder)
        return Observation(
            state=JobState.CANCELED if canceled else JobState.ERROR,
            native_state="canceled" if canceled else native,
            reason="ended on request" if canceled else reason,
            evidence="/proc",
            ended_by=EndedBy.CANCEL if canceled else EndedBy.NONE,
            started_at=_when(record, "started"),
            progress=self._progress(handle),
        )

    def _ended(self, handle: JobHandle, record: dict[str, Any]) -> Observation:
        ended_by = EndedBy(record["ended_by"])
        code = record["exit_code"]
        finished = JobState.COMPLETE if code == 0 and ended_by is EndedBy.NONE else JobState.ERROR
        return Observation(
            state=JobState.CANCELED if ended_by is EndedBy.CANCEL else finished,
            native_state=f"exit {code}",
            reason=record.get("error") or ("" if ended_by is EndedBy.NONE else f"stopped: {ended_by}"),
            evidence="exit marker",
            exit_code=code,
            ended_by=ended_by,
            started_at=_when(record, "started"),
            ended_at=_when(record, "ended"),
            progress=self._progress(handle),
        )

    def _progress(self, handle: JobHandle) -> Progress | None:
        """The newest status file among the job's results, read again only when it changed."""
        base = self.results_root / handle.key
        newest: tuple[int, Path, int] | None = None
        for pattern in ("*/status.json", "*/*/status.json"):
            for path in base.glob(pattern):
                facts = path.stat()
                if newest is None or facts.st_mtime_ns > newest[0]:
                    newest = (facts.st_mtime_ns, path, facts.st_size)
        if newest is None:
            return None
        mark, path = (newest[0], newest[2]), newest[1]
        if self._status_cache.get(path, (None, None))[0] != mark:
            self._status_cache[path] = (mark, parse_status(path.read_text(encoding="utf-8", errors="replace")))
        return self._status_cache[path][1]

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """The job's output; the cursor is a byte offset."""
        return await asyncio.to_thread(self._logs, self._folder(handle.key, handle.attempt) / layout.LOG, tail, since)

    @staticmethod
    def _logs(path: Path, tail: int | None, since: str | None) -> LogChunk:
        try:
            with open(path, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = int(since or 0) if tail is None else max(0, size - 512 * max(tail, 1) - LOG_TAIL)
                file.seek(min(start, size))
                data = file.read() if tail is not None else file.read(LOG_CHUNK)
        except FileNotFoundError:
            return LogChunk("", since or "0")
        end = min(start, size) + len(data)
        if tail is not None:
            lines = data.decode(errors="replace").splitlines(keepends=True)
            return LogChunk("".join(lines[-tail:] if tail else []), str(end))
        whole = _whole_characters(data)
        return LogChunk(data[:whole].decode(errors="replace"), str(end - len(data) + whole))

    # -- end -----------------------------------------------------------------------------------------------------------

    async def cancel(self, handles: Sequence[JobHandle], timeout: float = 60.0) -> dict[JobHandle, Observation]:
        """Ask all jobs to end, then make those that do not; returns when the kernel says that they are over."""
        deadline = time.monotonic() + timeout
        force_at = time.monotonic() + min(GRACE_SECONDS + 5, timeout * 0.7)
        for handle in handles:
            await asyncio.to_thread(self._ask_to_end, handle)
        while True:
            seen = await self.observe(handles)
            if all(one.state.terminal for one in seen.values()):
                return seen
            if time.monotonic() > deadline:
                left = ", ".join(handle.name for handle, one in seen.items() if not one.state.terminal)
                raise CancelUnconfirmed(
                    f"not over after {timeout:g} s: {left}", "cancel again; the processes were killed"
                )
            if time.monotonic() > force_at:
                for handle in (handle for handle, one in seen.items() if not one.state.terminal):
                    await asyncio.to_thread(_kill_all, handle.name)
            await asyncio.sleep(0.02)

    def _ask_to_end(self, handle: JobHandle) -> None:
        if self._look(handle).state.terminal:
            return
        folder = self._folder(handle.key, handle.attempt)
        if folder.is_dir():
            (folder / layout.STOP).write_text(EndedBy.CANCEL)
            # Whoever would start this job later finds its name taken.
            starter.claim(str(folder), {"ident": "", "canceled": True})
        ident = self._ident(handle, folder)
        if ident and proc.life(ident) == "T":
            proc.send(ident, signal.SIGCONT)
        if not (ident and proc.send(ident, signal.SIGTERM)):
            _kill_all(handle.name)

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """Why the job ended, from its marker, its log and the kernel."""
        return await asyncio.to_thread(self._diagnose, handle)

    def _diagnose(self, handle: JobHandle) -> Verdict:
        seen = self._look(handle)
        folder = self._folder(handle.key, handle.attempt)
        record = self._record(handle) or {}
        claim = layout.read_json(folder / layout.CLAIM) or {}
        killed = seen.exit_code == 128 + signal.SIGKILL or seen.native_state == "killed"
        error = str(record.get("error") or "")
        if not error and seen.exit_code != 0 and _disk_is_full(folder, self.results_root):
            error = "No space left on device: the disk that holds the job's log or results is full"
        return classify(
            Evidence(
                exit_code=seen.exit_code,
                ended_by=seen.ended_by,
                native_state=seen.native_state,
                reason=seen.reason,
                oom_killed=killed and proc.oom_kills() > claim.get("oom_kills", proc.oom_kills()),
                phase="outputs" if error and not record.get("error") else str(record.get("phase") or ""),
                runner_error=error,
                log_tail=_tail(folder / layout.LOG),
            )
        )

    # -- find ----------------------------------------------------------------------------------------------------------

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """Attempts by folder, by result record and, when both are gone, by living process."""
        return await asyncio.to_thread(lambda: {key: self._find(key) for key in keys})

    def _find(self, key: str) -> list[JobHandle]:
        attempts = {
            int(path.stem) for path in (self.results_root / key / "attempts").glob("*.json") if path.stem.isdigit()
        }
        attempts |= {JobName.parse(path.name).attempt for path in (self.root / "jobs").glob(f"tao-{key}-*")}
        if not attempts:  # somebody may have deleted the folders of a job that still runs
            attempts = {JobName.parse(name).attempt for name in proc.carriers(f"tao-{key}-")}
        return [self._handle(key, attempt) for attempt in sorted(attempts)]

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """All job folders, newest first."""
        return await asyncio.to_thread(self._jobs, dict(labels or {}))

    def _jobs(self, labels: dict[str, str]) -> list[JobHandle]:
        found = []
        for path in (self.root / "jobs").glob("tao-*"):
            job = layout.read_json(path / layout.JOB)
            if job and labels.items() <= job["labels"].items():
                found.append((job.get("created", 0), self._handle(job["key"], job["attempt"])))
        return [handle for _, handle in sorted(found, key=lambda item: item[0], reverse=True)]

    # -- paths and probes ----------------------------------------------------------------------------------------------

    async def check_path(self, uri: str) -> bool:
        """Whether a path or file:// location exists here."""
        return await asyncio.to_thread(_local(uri).exists)

    async def list_path(self, uri: str) -> list[str]:
        """The entries of a folder here."""
        path = _local(uri)
        if not path.exists():
            raise InvalidInput(f"{uri} does not exist on this machine", "check the spelling of the path")
        entries = sorted(path.iterdir()) if path.is_dir() else [path]
        return [f"{entry}/" if entry.is_dir() else str(entry) for entry in entries]

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """Folders can be written, and the machine has what the request asks for."""
        return await asyncio.to_thread(self._probe, request)

    def _probe(self, request: JobRequest | None) -> list[Finding]:
        findings = [_writable_finding("jobs", self.root), _writable_finding("results", self.results_root)]
        if request is None:
            return findings
        wanted = request.resources.gpus
        have = self._devices() if wanted else []
        if wanted > len(have):
            findings.append(
                Finding(
                    level=Level.FAIL,
                    check="gpus",
                    message=f"gpus: {wanted} were asked for, and this machine has {len(have)}",
                    remedy="ask for fewer, choose another target, or name the devices in PREFECT_TAO_GPUS",
                )
            )
        if request.workdir and not Path(request.workdir).is_dir():
            findings.append(
                Finding(
                    level=Level.FAIL,
                    check="workdir",
                    message=f"workdir: {request.workdir} is not a folder on this machine",
                    remedy="create it or name another one",
                )
            )
        if request.image:
            findings.append(
                Finding(
                    level=Level.WARN,
                    check="image",
                    message=f"process runs the command on this machine itself; the image {request.image} is not used",
                    remedy="choose local-docker to run in the image",
                )
            )
        return findings

    def settings(self) -> dict[str, Any]:
        """Root folders and GPUs."""
        return {"target": self.target, "root": str(self.root), "results_root": str(self.results_root)}

    # -- small -----------------------------------------------------------------------------------------------------------

    def _folder(self, key: str, attempt: int) -> Path:
        return self.root / "jobs" / str(JobName(key, attempt))

    def _record(self, handle: JobHandle) -> dict[str, Any] | None:
        return layout.read_json(self.results_root / handle.key / "attempts" / f"{handle.attempt}.json")

    @staticmethod
    def _job(folder: Path) -> dict[str, Any]:
        return layout.read_json(folder / layout.JOB) or {}

    def _ident(self, handle: JobHandle, folder: Path) -> proc.Ident | None:
        """Who runs the job: as claimed, or, when the folder is gone, as the handle and the record remember."""
        claim = layout.read_json(folder / layout.CLAIM) or {}
        record = {} if claim else self._record(handle) or {}
        for text in (claim.get("ident"), record.get("native_id"), "" if folder.is_dir() else handle.native_id):
            if text and (ident := proc.Ident.parse(text)):
                return ident
        return proc.Ident(0, 0, proc.boot_id()) if claim.get("canceled") else None

    def _handle(self, key: str, attempt: int) -> JobHandle:
        folder = self._folder(key, attempt)
        job = self._job(folder)
        claim = layout.read_json(folder / layout.CLAIM) or {}
        return JobHandle(
            target=self.target,
            key=key,
            attempt=attempt,
            native_id=str(claim.get("ident") or ""),
            results=str(self.results_root / key),
            digest=str(job.get("digest") or ""),
            labels=job.get("labels") or {},
        )

    @staticmethod
    def _forget(folder: Path) -> None:
        """A job that is over needs its secrets no more."""
        (folder / layout.SECRETS).unlink(missing_ok=True)


def _kill_all(name: str) -> None:
    for ident in proc.members(name):
        proc.send(ident, signal.SIGKILL)


def _when(record: Mapping[str, Any] | None, key: str) -> datetime | None:
    return datetime.fromtimestamp(record[key], UTC) if record and key in record else None


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _whole_characters(data: bytes) -> int:
    """How many bytes of `data` are whole characters: a chunk may end inside one."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if back >= need else len(data) - back
        if byte < 0x80:
            break
    return len(data)


def _disk_is_full(*paths: Path) -> bool:
    for path in paths:
        try:
            if shutil.disk_usage(path).free < 1 << 16:
                return True
        except OSError:
            continue
    return False


def _local(uri: str) -> Path:
    scheme, marker, rest = uri.partition("://")
    if marker and scheme not in LOCAL_SCHEMES:
        raise InvalidInput(f"{uri} is not on this machine", "give a path or a file:// location")
    return Path("/" + rest.lstrip("/")) if marker else Path(uri).expanduser()


def _writable_finding(check: str, path: Path) -> Finding:
    if layout.writable(path):
        return Finding(level=Level.OK, check=check, message=f"{path} can be written")
    return Finding(
        level=Level.FAIL,
        check=check,
        message=f"{check}: {path} cannot be written",
        remedy="choose another folder: PREFECT_TAO_HOME for jobs, TAO_RESULTS_ROOT for results",
    )
