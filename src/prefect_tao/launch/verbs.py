"""The core verbs over one target: create a job, look at it, end it, explain it, and look at paths as jobs see them.

They are plain async calls without Prefect. `prefect_tao.sdk` offers them to scripts and notebooks, `prefect_tao.tasks`
to flows; both launch through the same session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.byname import find_by_name, known_request
from prefect_tao.jobs.clock import now
from prefect_tao.jobs.describing import last_word
from prefect_tao.jobs.errors import InvalidInput, TaoError, Unreachable, refusal
from prefect_tao.jobs.finding import Finding, Level, blocking
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import job_key, run_label
from prefect_tao.jobs.outcome import collect, judged
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.redacting import LogRedactor, redact, redacted
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.target import Target
from prefect_tao.jobs.verdict import Verdict
from prefect_tao.launch.job_secrets import FindSecrets, job_secrets, launch_credentials, surrounding_secrets
from prefect_tao.launch.parameters.declared import StepParameters
from prefect_tao.launch.parameters.derived import completed
from prefect_tao.launch.session import Saved, Session
from prefect_tao.preflight.checked_launch import Launch, Proofs
from prefect_tao.preflight.checks.credentials import secret_values
from prefect_tao.preflight.gates import run_gates
from prefect_tao.preflight.resolve.all_gpus import counted
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.resolving import open_catalog, resolve_given
from prefect_tao.preflight.resolve.translating import proofs_from
from prefect_tao.storage.known_schemes import is_seen
from prefect_tao.storage.objects import ObjectStore

# The step that a plain `run` names its job by: a run and a call with the same key mean the same job.
ONLY_STEP = "run"


@dataclass(frozen=True)
class Job:
    """A job as it was when it was asked for. `id` is its name, which every command and call takes.

    `attached` is true for one that was there before; `findings` are the warnings of its gates and of its launch.
    """

    id: str
    target: str
    status: JobState
    results_dir: str
    labels: Mapping[str, str] = field(default_factory=dict)
    attached: bool = False
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class JobStatus:
    """Where a job stands. `status` compares with and prints as text: Pending, Running, Complete, Error, Canceled.

    Unreachable says that its platform gave no answer: the job goes on.
    """

    job_id: str
    status: JobState
    message: str = ""
    updated_at: datetime = field(default_factory=now)


@dataclass
class Verbs:
    """The verbs on one open target. `place` is entered for a submission where the target limits them."""

    target: Target
    session: Session
    saved: Saved = field(default_factory=Saved)
    find_secrets: FindSecrets = surrounding_secrets
    place: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    _handles: dict[str, JobHandle] = field(default_factory=dict, init=False, repr=False)

    @property
    def platform(self) -> Platform:
        """The driver."""
        return self.session.platform

    # -- create --------------------------------------------------------------------------------------------------------

    async def create_job(
        self,
        given: Mapping[str, Any],
        run: str,
        step: str | None = None,
        owner: str | None = None,
        is_new: bool = False,
    ) -> Job:
        """Launch the job of `run` and `step` once, or attach to it; one that `is_new` cannot be there yet.

        The jobs of a run are found by its label, which is that of `owner` where that is another one. Raises
        InvalidInput with all that stands in the way, SubmitFailed, Unreachable.
        """
        catalog = self.saved.catalog(open_catalog(), self.target.platform)
        given = completed(StepParameters, {**given, "target": str(self.target)})
        resolved = resolve_given(await counted(given, self.platform), catalog)
        step = step or (ONLY_STEP if resolved.request is None else f"{ONLY_STEP}-{resolved.request.digest[:8]}")
        key, warnings = job_key(run, step), []
        if resolved.request is not None:
            labels = {**resolved.request.labels, "run": run_label(owner or run), "step": step}
            request = resolved.request.model_copy(update={"labels": labels})
            resolved = resolved.model_copy(update={"request": request})
        release = bool(given.get("release_elsewhere"))
        due = is_new or (await self.session.look(key)).is_due(release)
        if due:
            warnings = await self._pass_gates(catalog, resolved, proofs_from(given), key)
        assert resolved.request is not None  # noqa: S101 - a launch without a request passes no gate
        entry = catalog.platforms.get(self.target.platform)
        secrets = await job_secrets(resolved.request, entry, self.session.supplied, self.find_secrets)
        async with self.place() if due else nullcontext():
            launched = await self.session.launch(resolved.request, key, secrets)
        self._handles[launched.handle.name] = launched.handle
        state = await self._state(launched.handle)
        return _job(launched.handle, state, launched.adopted, (*warnings, *launched.findings))

    async def _pass_gates(self, catalog: Catalog, resolved: Resolved, proofs: Proofs, key: str) -> list[Finding]:
        """The warnings of all gates; what they let pass is what will be sent. Raises InvalidInput, Unreachable."""
        entry = catalog.platforms.get(self.target.platform)
        credentials = await launch_credentials(resolved, entry, self.session.supplied, self.find_secrets)
        launch = Launch(catalog, resolved, self.platform, credentials, **vars(proofs), key=key)
        findings = [finding for found in (await run_gates(launch)).values() for finding in found]
        if failed := blocking(findings):
            raise refusal(failed)
        self.session.keep(launch.rendered())
        return [finding for finding in findings if finding.level is Level.WARN]

    async def _state(self, handle: JobHandle) -> JobState:
        try:
            seen = (await self.platform.observe([handle])).get(handle)
        except Unreachable:
            return JobState.UNREACHABLE
        return seen.state if seen else JobState.PENDING

    # -- look ----------------------------------------------------------------------------------------------------------

    async def handle(self, job: str) -> JobHandle:
        """The job of that name. Raises InvalidInput when the target knows none, Unreachable."""
        if job not in self._handles:
            self._handles[job] = await find_by_name(self.platform, job)
        return self._handles[job]

    async def get_job_status(self, job: str) -> JobStatus:
        """Where the job stands. Raises InvalidInput; Unreachable only for a fault that waiting does not end."""
        try:
            handle = await self.handle(job)
            seen = (await self.platform.observe([handle])).get(handle)
        except Unreachable as error:
            if not error.retryable:
                raise
            return JobStatus(job, JobState.UNREACHABLE, error.cause)
        if seen is None:
            return JobStatus(job, JobState.UNREACHABLE, "nothing is known of it now; the job, if there is one, goes on")
        if seen.unstarted:
            await self._start(handle)
        if seen.state is JobState.COMPLETE and (doubt := await _doubt(self.platform, handle, seen)):
            return JobStatus(job, JobState.ERROR, doubt.cause)
        return JobStatus(job, seen.state, redact(last_word(seen), await self._hidden(handle)))

    async def _start(self, handle: JobHandle) -> None:
        """Start a job that was made and never started, because its launcher died in between; a later look tries again.

        To submit under its name again completes it, and never starts a second one. One whose secrets are not all known
        here is left to who has them.
        """
        with suppress(TaoError):
            request = await known_request(self.platform, handle)
            if request is not None:
                entry = open_catalog().platforms.get(self.target.platform)
                secrets = await job_secrets(request, entry, self.session.supplied, self.find_secrets)
                if request.lacking(secrets):
                    return
                await self.platform.submit(self.platform.render(request, handle.key, handle.attempt), secrets)

    async def get_job_logs(self, job: str, tail: int | None = None) -> str:
        """The job's output, or its last lines, without secret values. Raises InvalidInput, Unreachable."""
        handle, cursor = await self.handle(job), None
        log, text = LogRedactor(await self._hidden(handle)), ""
        while True:
            chunk = await self.platform.logs(handle, tail=tail if cursor is None else None, since=cursor)
            text += log.feed(chunk.text)
            if tail is not None or not chunk.text:
                return text + log.rest()
            cursor = chunk.cursor

    async def get_failure_analysis(self, job: str) -> Verdict | None:
        """Why the job failed; None for one that is not over, or ended well. Raises InvalidInput, Unreachable."""
        handle = await self.handle(job)
        verdict = await why_failed(self.platform, handle)
        return redacted(verdict, await self._hidden(handle)) if verdict else None

    async def get_job_replicas(self, job: str) -> list[dict[str, Any]]:
        """The parts of a job, and what keeps each from running. Raises InvalidInput, Unreachable."""
        return await replicas_of(self.platform, await self.handle(job))

    async def list_jobs(self, status: str | None = None, limit: int = 20) -> list[Job]:
        """Our jobs there, newest first. Raises InvalidInput for no state, Unreachable."""
        if status is not None and status not in list(JobState):
            raise InvalidInput(f"{status!r} is not a state of jobs", f"use one of {', '.join(JobState)}")
        handles = await self.platform.jobs()
        if status is None:
            handles = handles[: max(limit, 0)]
        seen = await self.platform.observe(handles)
        found = [_job(one, seen[one].state) for one in handles if one in seen]
        return [job for job in found if status in (None, job.status)][: max(limit, 0)]

    async def _hidden(self, handle: JobHandle) -> dict[str, str]:
        """The secrets of a job that must not be shown, as far as they are known here."""
        request = await known_request(self.platform, handle)
        if request is None:
            return {}
        entry = open_catalog().platforms.get(self.target.platform)
        return secret_values(
            open_catalog(), await job_secrets(request, entry, self.session.supplied, surrounding_secrets)
        )

    # -- end -----------------------------------------------------------------------------------------------------------

    async def cancel_job(self, job: str, timeout: float = 60.0) -> bool:
        """End the job; true when its platform says that it is over. Raises CancelUnconfirmed, InvalidInput."""
        handle = await self.handle(job)
        return (await self.platform.cancel([handle], timeout=timeout))[handle].state.terminal

    # -- rented machines ----------------------------------------------------------------------------------------------

    async def list_instances(self) -> list[dict[str, Any]]:
        """The machines that are rented there. Raises InvalidInput where the platform has none of its own."""
        return await self.platform.list_instances()

    async def delete_instance(self, instance_id: str) -> bool:
        """Give a machine back; true when it is gone. Raises InvalidInput where the platform has none of its own."""
        return await self.platform.delete_instance(instance_id)

    # -- paths ---------------------------------------------------------------------------------------------------------

    async def check_path(self, uri: str) -> bool:
        """Whether a path or location is there, as jobs on the target see it. Raises InvalidInput, Unreachable."""
        if is_seen(_given(uri)):
            return await asyncio.to_thread(self._objects.exists, uri)
        return await self.platform.check_path(uri)

    async def list_path(self, uri: str) -> list[str]:
        """What is in a folder or below a location, one level; folders end with a slash. Raises as `check_path`."""
        if is_seen(_given(uri)):
            return await asyncio.to_thread(self._objects.entries, uri)
        return await self.platform.list_path(uri)

    @property
    def _objects(self) -> ObjectStore:
        return ObjectStore(self.session.supplied)


def _given(uri: str) -> str:
    if not uri.strip():
        raise InvalidInput("the path is empty", "give a path, or a location such as s3://bucket/folder")
    return uri


# -- one job -----------------------------------------------------------------------------------------------------------


async def why_failed(platform: Platform, handle: JobHandle) -> Verdict | None:
    """Why the job failed; None for one that is not over, or ended well. Raises Unreachable."""
    seen = (await retry(lambda: platform.observe([handle]))).get(handle)
    if seen is None:
        raise Unreachable(f"nothing is known of {handle.name} now", "the job, if there is one, goes on; look later")
    if seen.state is JobState.COMPLETE:
        return await _doubt(platform, handle, seen)
    return await retry(lambda: platform.diagnose(handle)) if seen.state.terminal else None


async def _doubt(platform: Platform, handle: JobHandle, seen: Observation) -> Verdict | None:
    """Why a training that is complete by its own account is not; other actions are believed."""
    action = handle.labels.get("action")
    return judged(await collect(platform, handle, seen), action).verdict if action == "train" else None


async def replicas_of(platform: Platform, handle: JobHandle) -> list[dict[str, Any]]:
    """The parts of the job in the shape of the TAO SDK: `readiness_issue` is what keeps a part from running."""
    return [
        {
            "name": one.name,
            "status": {
                "state": one.state,
                "readiness_issue": {"reason": one.reason, "message": one.message or one.reason}
                if one.reason or one.message
                else None,
            },
        }
        for one in await platform.replicas(handle)
    ]


def _job(handle: JobHandle, state: JobState, attached: bool = True, findings: tuple[Finding, ...] = ()) -> Job:
    return Job(handle.name, handle.target, state, handle.results, handle.labels, attached, findings)
