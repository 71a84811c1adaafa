"""What can be seen of process jobs: their exit markers, their claims, and what the kernel says of their processes."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import Evidence
from prefect_tao.platforms import logtext
from prefect_tao.platforms.files import LocalFiles
from prefect_tao.platforms.markers import ended, has_ended, kept_end, moment, read_record
from prefect_tao.platforms.process import client, job_folder
from prefect_tao.platforms.progress import ProgressReader

FULL_BELOW = 1 << 16
# After so long a launcher that has brought secrets and started nothing must be gone.
ABANDONED_SECONDS = 600.0
RUNNER_LOST = "runner lost"


class ProcessObserver:
    """Looks at jobs below one root. Methods raise OSError when the disk does not answer: then nothing is known."""

    def __init__(self, root: Path, results_root: Path) -> None:
        self.root = root
        self.results_root = results_root
        self._local, self._read = LocalFiles(), ProgressReader()

    def folder(self, key: str, attempt: int) -> Path:
        """The job's own folder, there or not."""
        return self.root / "jobs" / str(JobName(key, attempt))

    def results(self, handle: JobHandle) -> Path:
        """Where the job's results are: as it was launched with, even where another place is the default by now."""
        return Path(handle.results) if handle.results else self.results_root / handle.key

    def record(self, handle: JobHandle) -> dict[str, Any] | None:
        """What the runner wrote among the results: the start, and, once it holds `ended`, the exit marker."""
        found = self.any_record(handle)
        return found if found and found.get("site") in ("", None, client.site()) else None

    def any_record(self, handle: JobHandle) -> dict[str, Any] | None:
        """The same, whichever site has written it."""
        return read_record(job_folder.read(self.results(handle) / "attempts" / f"{handle.attempt}.json"))

    def ident(self, handle: JobHandle, record: Mapping[str, Any] | None) -> client.Ident | None:
        """Who runs the job: as claimed, else, when the folder is gone, as the record or the handle remember."""
        claim = job_folder.read_json(self.folder(handle.key, handle.attempt) / job_folder.CLAIM) or {}
        for text in (claim.get("ident"), (record or {}).get("native_id"), handle.native_id):
            if text and (ident := client.Ident.parse(text)):
                return ident
        return client.NOBODY if claim.get("canceled") else None

    def host(self, handle: JobHandle) -> str:
        """The machine that the job was started on, as far as it is written down."""
        claim = job_folder.read_json(self.folder(handle.key, handle.attempt) / job_folder.CLAIM) or {}
        return str(claim.get("host") or (self.any_record(handle) or {}).get("host") or "another machine")

    def look(self, handle: JobHandle) -> Observation | None:
        """The job as it is now, or None when it is on another machine or in another container and has left no end.

        An end once seen is kept, so that it stays what it was whatever is deleted later.
        """
        folder = self.folder(handle.key, handle.attempt)
        seen = kept_end(job_folder.read(folder / job_folder.END)) or self._look(handle, folder)
        if seen is None:
            return None
        if seen.state.terminal:
            _keep_end(folder, seen)
        return seen.model_copy(update={"progress": self._progress(handle)})

    def _look(self, handle: JobHandle, folder: Path) -> Observation | None:
        record = self.record(handle)
        if record and has_ended(record):
            return _ended(record)
        ident = self.ident(handle, record)
        if ident and not client.is_here(ident):
            return None  # our kernel knows nothing of its processes, and that is no evidence
        if ident and (life := client.life(ident)):
            return _alive(folder, record, life)
        record = self.record(handle)  # it may have ended between the two looks
        if record and has_ended(record):
            return _ended(record)
        if not ident and folder.is_dir() and not job_folder.is_damaged(folder):
            return Observation(
                state=JobState.PENDING,
                native_state="staged",
                reason="its launcher ended before it was started; launch again to start it",
                evidence=str(folder),
                unstarted=True,
            )
        if survivors := client.members(str(folder), ident):
            return Observation(
                state=JobState.RUNNING,
                native_state=RUNNER_LOST,
                reason=f"the runner is gone, but {len(survivors)} of the job's processes still run",
                evidence="/proc",
                started_at=moment(record and record.get("started")),
            )
        return _lost(folder, ident, record)

    def _progress(self, handle: JobHandle) -> Progress | None:
        folder = str(self.results(handle))
        self._read.refresh(self._local, [folder])
        return self._read.of(folder)

    def sweep(self, handles: Iterable[JobHandle]) -> None:
        """Remove the secrets of jobs that are over, and of those that no launcher starts any more.

        A launch of such a job brings its secrets along.
        """
        for handle in handles:
            folder = self.folder(handle.key, handle.attempt)
            if (folder / job_folder.CLAIM).exists():
                self.look(handle)  # an end that is seen takes them away
                continue
            for path in job_folder.secrets_in(folder):
                with suppress(FileNotFoundError):  # it is claimed at this very moment
                    if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                        path.unlink()

    def evidence(self, handle: JobHandle) -> Evidence:
        """All that tells why the job ended. Raises Unreachable when only another machine can tell."""
        seen = self.look(handle)
        if seen is None:
            raise Unreachable(f"{handle.name} is on {self.host(handle)}", "ask there; from here nothing is known of it")
        folder = self.folder(handle.key, handle.attempt)
        record = self.record(handle) or {}
        claim = job_folder.read_json(folder / job_folder.CLAIM) or {}
        killed = seen.exit_code == 128 + signal.SIGKILL or seen.native_state == "killed"
        phase, error = str(record.get("phase") or ""), str(record.get("error") or "")
        if not error and seen.exit_code != 0 and _disk_is_full(folder, self.results(handle)):
            phase, error = "outputs", "No space left on device: the disk that holds the job's log or results is full"
        return Evidence(
            exit_code=seen.exit_code,
            ended_by=seen.ended_by,
            native_state=seen.native_state,
            reason=seen.reason,
            oom_killed=killed and client.oom_kills() > claim.get("oom_kills", client.oom_kills()),
            phase=phase,
            runner_error=error,
            log_tail=logtext.ending(folder / job_folder.LOG),
        )


def _alive(folder: Path, record: Mapping[str, Any] | None, life: str) -> Observation:
    state, reason = JobState.RUNNING, ""
    if not folder.is_dir():
        reason = "the job's folder was deleted; the job itself goes on"
    elif record is None and not (folder / job_folder.STARTED).exists():
        waits = (job_folder.read_json(folder / job_folder.JOB) or {}).get("gpus")
        state, reason = JobState.PENDING, "waiting for a free GPU" if waits else "starting"
    elif life == "T":
        state, reason = JobState.PAUSED, "stopped by a signal"
    if (folder / job_folder.STOP).exists():
        state, reason = JobState.CANCELING, "asked to end"
    started = moment(record and record.get("started"))
    return Observation(state=state, native_state=life, reason=reason, evidence="/proc", started_at=started)


def _ended(record: Mapping[str, Any]) -> Observation:
    return ended(record, f"exit {record['exit_code']}")


def _lost(folder: Path, ident: client.Ident | None, record: Mapping[str, Any] | None) -> Observation:
    """No process and no marker: the kernel positively says that nothing is left of the job."""
    state, ended_by = JobState.ERROR, EndedBy.NONE
    if (folder / job_folder.STOP).exists():
        state, ended_by, native, reason = JobState.CANCELED, EndedBy.CANCEL, "canceled", "ended on request"
    elif ident and ident.boot != client.boot_id():
        native, reason = "NODE_FAIL", "the machine was restarted while the job ran"
    elif ident is None and job_folder.is_damaged(folder):
        native, reason = "NODE_FAIL", "the machine went down while the job was started: its files are damaged"
    elif not folder.is_dir():
        native, reason = "deleted", "the job's folder was deleted, and no process of it is left"
    else:
        native, reason = "killed", "the job's processes are gone without an exit marker"
    return Observation(
        state=state,
        native_state=native,
        reason=reason,
        evidence="/proc",
        ended_by=ended_by,
        started_at=moment(record and record.get("started")),
    )


def _keep_end(folder: Path, seen: Observation) -> None:
    """Write the end down beside the job, once. A job that is over needs its secrets no more."""
    if not folder.is_dir() or (folder / job_folder.END).exists():
        return
    for path in job_folder.secrets_in(folder):
        path.unlink(missing_ok=True)
    with suppress(OSError):  # on a full disk it is found out anew each time
        job_folder.replace(folder / job_folder.END, seen.model_dump_json().encode())


def _disk_is_full(*paths: Path) -> bool:
    for path in paths:
        try:
            if shutil.disk_usage(path).free < FULL_BELOW:
                return True
        except OSError:
            continue
    return False
