"""The Kubernetes driver: one Job per attempt in one namespace, found by its labels."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from prefect_tao.jobs.clock import now
from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Listing, LogChunk, Rendered, Replica
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.verdict import Category, Verdict, classify
from prefect_tao.platforms import markers
from prefect_tao.platforms.base import Denials, Driver, kill_after
from prefect_tao.platforms.files import BucketFiles, Files
from prefect_tao.platforms.kubernetes import abandoned, kept_ends, pod_logs, probes, render
from prefect_tao.platforms.kubernetes.client import MERGE, ApiRefused, ClusterApi, Manifest
from prefect_tao.platforms.kubernetes.forgotten import ForgottenJobs, deleted
from prefect_tao.platforms.kubernetes.observe import (
    JobFacts,
    Waiting,
    decisive,
    evidence_of,
    has_started,
    is_managed_elsewhere,
    is_over,
    lacks_pods,
    observation,
    rank_of,
    replicas_of,
    waiting,
)
from prefect_tao.platforms.kubernetes.runner_records import RunnerRecords
from prefect_tao.platforms.kubernetes.settings import KubernetesSettings
from prefect_tao.platforms.kubernetes.submit import JobLauncher, remedy_for, sure
from prefect_tao.platforms.kubernetes.told_progress import ToldProgress
from prefect_tao.platforms.kubernetes.volume_looks import VolumeLooks
from prefect_tao.runner.inside.schemes import bucket_name
from prefect_tao.storage.known_schemes import is_seen

T = TypeVar("T")
_log = logging.getLogger(__name__)
LOG_LINES = 2000
# How long a verdict waits for a log: a node that is gone never gives it.
LOG_SECONDS = 10.0
ROOT_CERTIFICATE = "kube-root-ca.crt"
MOST_KEYS = 40
AT_ONCE = 10


class KubernetesPlatform(Driver):
    """Jobs of a cluster. They outlive whoever launched them; their truth is in the cluster and in their results."""

    def __init__(self, target: str, settings: KubernetesSettings) -> None:
        super().__init__(target)
        bucket = bucket_name(settings.s3_bucket_name or "") or None
        self.options = settings.model_copy(update={"s3_bucket_name": bucket})
        self.poll_seconds = settings.pauses((0.5, 15.0))
        self.cancel_pause = min(self.poll_seconds[0], 0.5)
        self.api = ClusterApi(self.options)
        self.launcher = JobLauncher(self.api, self.options, target)
        self.volumes = VolumeLooks(self.api, self.options)
        self.records = RunnerRecords(BucketFiles.named_by(self.options, {}), self.volumes)
        self.forgotten = ForgottenJobs(self.api, target, self.records)
        self.told = ToldProgress(self.api, (4 * self.poll_seconds[0], self.poll_seconds[1]))
        self._site = ""
        self._faults, self._gangs = Denials(), Denials()

    def take_credentials(self, credentials: Mapping[str, str]) -> None:
        """The text of a saved kubeconfig, and the keys of NVIDIA's registry and of storage. They stay in memory."""
        self.api.kubeconfig_text = credentials.get("KUBECONFIG_TEXT", "")
        self.api.saved_context = credentials.get("TAO_K8S_CONTEXT", "")
        self.launcher.ngc_key = credentials.get("NGC_KEY", "")
        self.records.bucket = BucketFiles.named_by(self.options, credentials)

    # -- launch --------------------------------------------------------------------------------------------------------

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """What is sent to the cluster, as manifests. Raises InvalidInput for what cannot run there."""
        return render.render(request, key, attempt, self.options, self.target)

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Create the Job and let it start, or adopt the one that has the name. Raises SubmitFailed, Unreachable."""
        own = self._unseen(rendered.key, rendered.attempt, await sure(self.site))
        await self.records.leave_note(own)
        try:
            avoided = await self._answered(sure(lambda: self._bad_nodes(rendered.key))) if rendered.attempt > 1 else []
            handle = await self._answered(self.launcher.submit(rendered, secrets, own.site, avoided))
        except SubmitFailed:
            await self.records.drop_note(own)
            raise
        return handle.model_copy(update={"site": own.site})

    def _unseen(self, key: str, attempt: int, site: str) -> JobHandle:
        """The handle of an attempt in this namespace of which nothing is known yet."""
        results = render.results_of(key, self.options)
        return JobHandle(target=self.target, key=key, attempt=attempt, site=site, results=results)

    async def _bad_nodes(self, key: str) -> list[str]:
        """Nodes that failed earlier attempts, unless there are no others. Raises Unreachable."""
        jobs = await self.api.listed("jobs", f"{render.KEY}={key}")
        noted = ((job["metadata"].get("annotations") or {}).get(render.BAD_NODES) or "" for job in jobs)
        found = sorted({node for text in noted for node in text.split(",") if node})
        return found if found and await probes.has_others(self, found) else []

    async def _answered(self, question: Awaitable[T]) -> T:
        """What a refusal of a mere question means: nothing is known. Raises Unreachable."""
        try:
            return await question
        except ApiRefused as error:
            raise Unreachable(
                f"the cluster refuses to answer: {error.said}", remedy_for(error.said), retryable=False
            ) from error

    # -- look ----------------------------------------------------------------------------------------------------------

    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """One list of Jobs and one of Pods, whatever their number. Raises Unreachable."""
        return await self._answered(self._look(handles))

    async def _look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        jobs, pods = await self._all(render.KEY)
        there = {one["metadata"]["name"]: one for one in jobs}
        known = {
            handle: JobFacts(there[handle.name], pods.get(there[handle.name]["metadata"]["uid"], ()))
            for handle in handles
            if handle.name in there and handle.native_id in ("", there[handle.name]["metadata"]["uid"])
        }
        known = await self._with_events(known)
        gone = [handle for handle in handles if handle not in known]
        left = {handle: pods.get(handle.native_id, ()) for handle in gone}
        seen = await self._each(known)
        found = {**seen, **await self.forgotten.seen(gone, left)}
        return await self._with_progress(found, {one: facts.pods for one, facts in known.items()})

    async def _all(self, labels: str) -> tuple[list[Manifest], dict[str, list[Manifest]]]:
        """Jobs with these labels, and their Pods by the uid of the Job, also of one that is gone."""
        jobs = await self.api.listed("jobs", labels)
        # After the Jobs and not beside them: a Job that is over must not meet a Pod as it was before its end.
        pods = await self.api.listed("pods", labels)
        by_owner: dict[str, list[Manifest]] = {}
        for pod in pods:
            by_owner.setdefault(render.job_uid(pod), []).append(pod)
        return jobs, by_owner

    async def _with_events(self, known: dict[JobHandle, JobFacts]) -> dict[JobHandle, JobFacts]:
        """Events, in one question, where Jobs and Pods alone do not tell what keeps a job or ended it."""
        if not any(_needs_events(facts) for facts in known.values()):
            return known
        events = await self.api.listed("events")
        return {handle: _add_events(facts, events) for handle, facts in known.items()}

    async def _each(self, known: Mapping[JobHandle, JobFacts]) -> dict[JobHandle, Observation]:
        """What is seen of each; many that end at once are put away side by side, or the look would take minutes."""
        few = asyncio.Semaphore(AT_ONCE)

        async def one(handle: JobHandle, facts: JobFacts) -> Observation:
            async with few:
                return await self._of(handle, facts)

        found = await asyncio.gather(*(one(handle, facts) for handle, facts in known.items()))
        return dict(zip(known, found, strict=True))

    async def _of(self, handle: JobHandle, facts: JobFacts) -> Observation:
        self.forgotten.denials.seconds(handle, is_listed=True)
        seen = observation(facts)
        if seen.state.terminal:
            return await self._ended(handle, facts, seen)
        if seen.state is JobState.PENDING and not facts.is_suspended and not is_managed_elsewhere(facts.job):
            return await self._patient(handle, facts, seen)
        self._faults.seconds(handle, is_listed=True)
        self._gangs.seconds(handle, is_listed=True)
        return seen

    async def _ended(self, handle: JobHandle, facts: JobFacts, seen: Observation) -> Observation:
        if seen.evidence != markers.EVIDENCE and (record := await self.records.of(handle)):
            seen = observation(JobFacts(facts.job, facts.pods, facts.events, record))
        try:
            await self._put_away(handle, facts.job, seen)
        except ApiRefused as error:  # a quota, mostly: then the Job stays, and the end is known all the same
            _log.warning("the end of %s could not be put down: %s", handle.name, error.said)
        return seen

    async def _put_away(self, handle: JobHandle, job: Manifest, end: Observation) -> None:
        """Take secrets back, and write down the end where the cluster would else be the only one to know it."""
        if self.options.ngc_pull_secret:
            await kept_ends.empty_pull_secret(self.api, handle)
        notes = job["metadata"].get("annotations") or {}
        if render.survives(notes.get(render.RESULTS, "")):
            if _has_secrets(job):
                await kept_ends.empty_secret(self.api, handle)
        elif kept_ends.KEPT not in notes:  # whether it has a time to live or not: policies of clusters give Jobs one
            await kept_ends.keep(self.api, self._handle(job) or handle, end)
            await kept_ends.let_go(self.api, job, self.options.ttl_seconds_after_finished)

    def _handle(self, job: Manifest) -> JobHandle | None:
        return render.handle_of(self.target, job)

    # -- patience ------------------------------------------------------------------------------------------------------

    async def _patient(self, handle: JobHandle, facts: JobFacts, seen: Observation) -> Observation:
        """A job that waits, until what it waits for has not come for too long: then it is given up, and says why."""
        why, started = waiting(facts), sum(map(has_started, facts.pods))
        stuck = self._faults.seconds(handle, is_listed=why.heals)
        split = self._gangs.seconds(handle, is_listed=not started)
        if stuck > self.options.image_patience:
            return await self._give_up(handle, facts, seen, why, f"for {self.options.image_patience} s")
        if started and split > self.options.start_patience:
            missing = Waiting("Unschedulable", seen.reason)
            return await self._give_up(handle, facts, seen, missing, f"for {self.options.start_patience} s")
        return seen

    async def _give_up(
        self, handle: JobHandle, facts: JobFacts, seen: Observation, why: Waiting, how_long: str
    ) -> Observation:
        reason = f"{why} ({how_long})"
        end = Observation(
            state=JobState.ERROR, native_state=why.word, reason=reason, evidence=seen.evidence, ended_at=now()
        )
        await kept_ends.keep(self.api, self._handle(facts.job) or handle, end)
        await self._delete(facts.job)
        return seen

    async def _delete(self, job: Manifest) -> None:
        meta = job["metadata"]
        await self.api.delete("jobs", meta["name"], meta["uid"], propagationPolicy="Foreground")

    async def _with_progress(
        self, seen: dict[JobHandle, Observation], pods: Mapping[JobHandle, Sequence[Manifest]]
    ) -> dict[JobHandle, Observation]:
        begun = [one for one, state in seen.items() if state.state is not JobState.PENDING]
        ended = {one for one in begun if seen[one].state.terminal}
        # Whether the next attempt may go on depends on how far this one came.
        goes_on = [one for one in ended if seen[one].ended_by is EndedBy.TIME_LIMIT and not seen[one].progress]
        known = await self.records.progress(begun, ended, goes_on)
        far = {one: min(pods[one], key=rank_of) for one in begun if one not in known and pods.get(one)}
        running = {one: pod for one, pod in far.items() if one not in ended}
        await self.told.refresh(running, {one: pod for one, pod in far.items() if one in ended})
        return {
            one: state.model_copy(update={"progress": known.get(one) or self.told.of(one) or state.progress})
            for one, state in seen.items()
        }

    # -- closer --------------------------------------------------------------------------------------------------------

    async def _facts(self, handle: JobHandle) -> JobFacts | None:
        """All that the cluster has on one job; None when it has none."""
        jobs, pods = await self._all(f"{render.KEY}={handle.key},{render.ATTEMPT}={handle.attempt}")
        job = next((one for one in jobs if handle.native_id in ("", one["metadata"]["uid"])), None)
        if job is None:
            return None
        events = await self.api.listed("events")
        return _add_events(JobFacts(job, pods.get(job["metadata"]["uid"], ())), events)

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """The logs of all its Pods, each line with its rank where there are several. Raises Unreachable."""
        return await self._answered(self._logs(handle, tail, since))

    async def _logs(self, handle: JobHandle, tail: int | None, since: str | None) -> LogChunk:
        return await pod_logs.read(self.api, await self._pods(handle), tail, since)

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """Why the job ended, from its record, its log, its Pods and their events. Raises Unreachable."""
        seen = await self.seen(handle)
        facts = await self._answered(self._facts(handle))
        record = await self.records.of(handle)
        if facts:
            facts = JobFacts(facts.job, facts.pods, facts.events, record)
        verdict = classify(evidence_of(facts, seen, await self._last_words(handle), record))
        if facts and verdict.category in (Category.NODE_FAILURE, Category.GPU_FAILURE):
            await self._answered(self._note_bad_node(facts))
        return verdict

    async def _last_words(self, handle: JobHandle) -> str:
        """The end of the log; none where the cluster answers, and the node that has it does not. Raises Unreachable."""
        try:
            return (await retry(lambda: self.logs(handle, tail=LOG_LINES), LOG_SECONDS)).text
        except Unreachable:
            await self._answered(self._pods(handle))  # with the cluster itself away nothing is known
            return ""

    async def _note_bad_node(self, facts: JobFacts) -> None:
        """So that the next attempt is not sent to the node that has just failed."""
        pod = decisive(facts.pods, is_failure=True)
        if pod and (node := pod["spec"].get("nodeName")):
            patch = {"metadata": {"annotations": {render.BAD_NODES: node}}}
            path = self.api.path("jobs", facts.job["metadata"]["name"])
            await self.api.ask("PATCH", path, patch, kind=MERGE)

    async def replicas(self, handle: JobHandle) -> list[Replica]:
        """The Pods of the job, and what keeps each from running. Raises Unreachable."""
        facts = await self._answered(self._facts(handle))
        return replicas_of(facts) if facts else []

    # -- end -----------------------------------------------------------------------------------------------------------

    async def ask_to_end(self, handles: Sequence[JobHandle]) -> None:
        """Keep the cancellation, then delete the Jobs in the foreground: they go after their Pods."""
        await self._answered(_gathered(self._ask_to_end(handle) for handle in handles))

    async def _ask_to_end(self, handle: JobHandle, is_urgent: bool = False) -> None:
        job, pods = await asyncio.gather(self.api.find("jobs", handle.name), self._pods(handle))
        if job is None or handle.native_id not in ("", job["metadata"]["uid"]):
            left = [pod for pod in pods if not is_over(pod) and not pod["metadata"].get("deletionTimestamp")]
            await _gathered(self.api.delete("pods", pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in left)
            return
        seen = observation(JobFacts(job, pods))
        # Its Pods may have ended, and only the Job not said so yet: then its end is its own.
        is_ending = len(pods) == job["spec"].get("parallelism") and all(map(is_over, pods))
        if seen.state.terminal or (is_ending and not is_urgent):
            return
        await kept_ends.keep(self.api, self._handle(job) or handle, deleted(EndedBy.CANCEL.words, seen))
        await self._delete(job)

    async def insist(
        self, left: Sequence[JobHandle], seen: Mapping[JobHandle, Observation], spent: float, timeout: float
    ) -> None:
        """Have Pods killed whose time is up, and ask once more for the end of Jobs. Raises Unreachable."""
        if spent > kill_after(timeout):
            await self._answered(_gathered(self._kill(handle) for handle in left))

    async def _kill(self, handle: JobHandle) -> None:
        await self._ask_to_end(handle, is_urgent=True)
        for pod in await self._living_pods(handle):
            # Not zero, which would only forget the Pod, whether it runs on or not.
            await self.api.delete("pods", pod["metadata"]["name"], pod["metadata"]["uid"], gracePeriodSeconds=1)

    async def _living_pods(self, handle: JobHandle) -> list[Manifest]:
        return [pod for pod in await self._pods(handle) if not is_over(pod)]

    async def _pods(self, handle: JobHandle) -> list[Manifest]:
        return await self.api.listed("pods", f"{render.KEY}={handle.key},{render.ATTEMPT}={handle.attempt}")

    async def is_cleared(self, seen: Collection[JobHandle], asked: Collection[JobHandle]) -> bool:
        """Whether no Pod is left that a careless delete of the Job forgot. Raises Unreachable."""
        for handle in asked:
            if await self._answered(self._living_pods(handle)):
                await self._answered(self._kill(handle))
                return False
        return True

    # -- find ----------------------------------------------------------------------------------------------------------

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """Attempts by Job, by what is kept of their ends, by records and notes in storage. Raises Unreachable."""
        return await self._answered(self._find(list(keys)))

    async def site(self) -> str:
        """The cluster by its own certificate, which every namespace shows, and the namespace. Raises Unreachable."""
        if not self._site:
            shown = await self._answered(self.api.find("configmaps", ROOT_CERTIFICATE)) or {}
            if not (text := (shown.get("data") or {}).get("ca.crt")):
                said = f"the namespace {self.api.namespace} does not show the cluster's certificate"
                remedy = f"check that it is there: kubectl get configmap {ROOT_CERTIFICATE} -n {self.api.namespace}"
                raise Unreachable(said, remedy, retryable=False)
            digest = hashlib.sha256(text.strip().encode()).hexdigest()[:16]
            self._site = f"Kubernetes cluster {digest}, namespace {self.api.namespace}"
        return self._site

    async def _find(self, keys: list[str]) -> dict[str, list[JobHandle]]:
        site = await self.site()
        few = f"{render.KEY} in ({','.join(keys)})" if len(keys) <= MOST_KEYS else render.KEY
        jobs, pods, kept = await asyncio.gather(
            self.api.listed("jobs", few), self.api.listed("pods", few), kept_ends.kept(self.api, self.target, few)
        )
        # A Job that was deleted may have left a Pod that runs.
        left = [
            one for pod in pods if not is_over(pod) and (one := render.handle_of_pod(self.target, pod, self.options))
        ]
        found: dict[str, dict[int, JobHandle]] = {key: {} for key in keys}
        for handle in [*left, *kept, *(one for job in jobs if (one := self._handle(job)))]:
            if handle.key in found:
                found[handle.key][handle.attempt] = handle.model_copy(update={"site": site})
        over = {job["metadata"]["name"] for job in jobs if observation(JobFacts(job)).state.terminal}
        # An attempt that goes on is the last one. Of others, those that came later may have left only their records.
        idle = [
            self._unseen(key, 1, site)
            for key, known in found.items()
            if all(handle.name in over or handle in kept for handle in known.values())
        ]
        for one in await self.records.attempts(idle):
            if one.attempt not in found[one.key]:
                found[one.key][one.attempt] = markers.left_by(one, await self.records.of(one), site)
        for far in await self.records.noted_elsewhere(idle):
            found[far.key].setdefault(far.attempt, far)
        return {key: [attempts[number] for number in sorted(attempts)] for key, attempts in found.items()}

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """All Jobs of ours, newest first; what dead launchers left behind is removed. Raises Unreachable."""
        found = await self._answered(self.api.listed("jobs", render.KEY))
        await abandoned.sweep(self.api, found)
        await self.volumes.sweep()
        found.sort(key=_created, reverse=True)
        handles, own = [one for job in found if (one := self._handle(job))], await self.site()
        return [one.model_copy(update={"site": own}) for one in handles if (labels or {}).items() <= one.labels.items()]

    async def in_flight(self) -> int:
        """How many of our Jobs are not over, in one list. Raises Unreachable."""
        found = await self._answered(self.api.listed("jobs", render.KEY))
        return sum(not observation(JobFacts(job)).state.terminal for job in found)

    async def request_of(self, handle: JobHandle) -> JobRequest | None:
        """What the job was asked to do; it stands in the job's Secret until its end is seen. Raises Unreachable."""
        secret = await self._answered(self.api.find("secrets", handle.name)) or {}
        kept = (secret.get("data") or {}).get(render.REQUEST_FILE) or ""
        try:
            return JobRequest.model_validate_json(base64.b64decode(kept))
        except ValidationError:  # gone, too large, or written by another version
            return None

    # -- paths and probes ----------------------------------------------------------------------------------------------

    def reach(self, uri: str) -> tuple[Files, str]:
        """Storage. Raises InvalidInput for what is neither that nor on a volume."""
        return (self.records.bucket, uri) if is_seen(uri) else super().reach(uri)

    async def check_path(self, uri: str) -> bool:
        """Whether `uri` is in storage or on a volume of the jobs. Raises InvalidInput, Unreachable."""
        return await (super().check_path(uri) if is_seen(uri) else self.volumes.exists(uri))

    async def list_path(self, uri: str) -> list[str]:
        """The entries of a folder in storage or on a volume. Raises InvalidInput, Unreachable."""
        return await (super().list_path(uri) if is_seen(uri) else self.volumes.entries(uri))

    async def list_files(self, uri: str, depth: int, limit: int, skip: Collection[str]) -> Listing:
        """The files below `uri`; on a volume by one Pod. Raises InvalidInput, Unreachable."""
        if is_seen(uri):
            return await super().list_files(uri, depth, limit, skip)
        return await self.volumes.files(uri, depth, limit, skip)

    async def within(self, folder: str, paths: Sequence[str]) -> list[str]:
        """All of them: whatever links there are on a volume, the Pod that reads it sees nothing but that volume."""
        return list(paths)

    async def read_path(self, uri: str, limit: int) -> bytes:
        """The first bytes of a file in storage or on a volume. Raises InvalidInput, Unreachable."""
        return await (super().read_path(uri, limit) if is_seen(uri) else self.volumes.read(uri, limit))

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """The cluster answers, allows what jobs need, and has what the request asks for; nothing stays behind."""
        return await probes.findings(self, request)

    async def host_versions(self) -> dict[str, str] | None:
        """Driver and CUDA as the nodes' labels tell them, the oldest; None where no label does. Raises Unreachable."""
        return await self._answered(probes.versions(self))

    async def all_gpus(self, image: str | None = None) -> int | None:
        """The most GPUs that one node has; None where nodes may not be listed. Raises Unreachable."""
        return await probes.most_gpus(self)

    async def close(self) -> None:
        """Let go of the connections; jobs go on."""
        await self.api.close()

    def settings(self) -> dict[str, Any]:
        """The cluster, the namespace and where results go."""
        return {
            "target": self.target,
            "context": self.options.context or "the kubeconfig's current one",
            "namespace": self.options.namespace,
            "results": render.results_of("KEY", self.options) or "end with the Pod",
        }


async def _gathered(questions: Iterable[Awaitable[Any]]) -> None:
    await asyncio.gather(*questions)


def _needs_events(facts: JobFacts) -> bool:
    if facts.condition("Complete", "Failed"):
        return not facts.pods
    return not facts.is_suspended and (lacks_pods(facts) or not all(map(has_started, facts.pods)))


def _add_events(facts: JobFacts, events: Sequence[Manifest]) -> JobFacts:
    """Those about the Job and its Pods, also about Pods that are gone, whose names begin with the Job's."""
    uid, own = facts.uid, f"{facts.job['metadata']['name']}-"
    about = [one for one in events if one["involvedObject"].get("uid") == uid]
    about += [one for one in events if one["involvedObject"].get("name", "").startswith(own)]
    return JobFacts(facts.job, facts.pods, about, facts.record)


def _has_secrets(job: Manifest) -> bool:
    containers = job["spec"]["template"]["spec"]["containers"]
    return any(one["name"] == "TAO_SECRETS_FILE" for container in containers for one in container.get("env") or ())


def _created(job: Manifest) -> int:
    return int((job["metadata"].get("annotations") or {}).get(render.CREATED) or 0)
