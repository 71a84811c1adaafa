"""What the objects of a cluster say about a job: its state, why it waits, how it ended and what shows that. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from prefect_tao.jobs.platform import Replica
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.verdict import Evidence, NodeEvent
from prefect_tao.platforms import markers
from prefect_tao.platforms.kubernetes.render import INDEX, MAIN, QUEUE, RESUMED
from prefect_tao.platforms.markers import Record

Manifest = Mapping[str, Any]
EVIDENCE = "Job and Pods"
NO_RECORD = "the Pod ended well, but there is no record that it ran the job"
BY_HAND = "somebody deleted the Pod"
POD_GONE = "the Pod is gone, and there is no record of how it ended"
# Containers that wait for something which somebody has to put right.
_FAULTS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
_EVENT_FAULTS = ("FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox")
# What a node does only when volumes and network are there: a fault of these that came before it has healed.
_PAST_FAULTS = ("Pulling", "Pulled", "Created", "Started", "Failed", "BackOff")
_CLAIM = ("persistentvolumeclaim", "PersistentVolumeClaim")
BUILT_IN = "kubernetes.io/job-controller"


class Waiting(NamedTuple):
    """Why a job does not run yet. One that `heals` waits for room; any other for a person, or for a passing fault."""

    word: str
    message: str = ""
    heals: bool = True

    def __str__(self) -> str:
        return f"{self.word}: {self.message}" if self.message else self.word


@dataclass(frozen=True)
class JobFacts:
    """One Job, its Pods, what happened to them, and the runner's record among the results where it can be read."""

    job: Manifest
    pods: Sequence[Manifest] = ()
    events: Sequence[Manifest] = ()
    record: Record | None = field(default=None)

    @property
    def uid(self) -> str:
        """What the Job is known by for all time."""
        return str(self.job["metadata"]["uid"])

    def condition(self, *types: str) -> Manifest | None:
        """The first condition of one of these types that holds."""
        return next((one for one in _conditions(self.job) if one["type"] in types and one["status"] == "True"), None)

    @property
    def is_suspended(self) -> bool:
        """Whether its Pods are held back."""
        return bool(self.job["spec"].get("suspend"))


def observation(facts: JobFacts) -> Observation:
    """Where the job stands, as the cluster shows it."""
    if manager := _foreign_manager(facts.job):
        return _seen(JobState.PENDING, "managed elsewhere", f"{manager} runs this Job, and only that knows how it goes")
    if end := facts.condition("Complete", "Failed"):
        return _ended(facts, end)
    if facts.job["metadata"].get("deletionTimestamp"):
        return _seen(JobState.CANCELING, "Terminating", "the Job is being deleted", _started(facts.pods))
    if facts.is_suspended:
        return _suspended(facts)
    if target := facts.condition("FailureTarget", "SuccessCriteriaMet"):
        # Not the end yet: Pods that still run are being ended.
        return _seen(JobState.RUNNING, target["type"], str(target.get("message") or ""), _started(facts.pods))
    running = [pod for pod in facts.pods if has_started(pod)]
    if len(running) < int(facts.job["spec"].get("parallelism") or 1):
        why = waiting(facts)
        told = (
            f"{len(running)} of {facts.job['spec']['parallelism']} nodes have started; {why}" if running else str(why)
        )
        return _seen(JobState.PENDING, why.word, told)
    said = _lost_node(facts.pods) or _outlived(facts.pods)
    return _seen(JobState.RUNNING, "Running", said, _started(facts.pods))


def _seen(state: JobState, native: str, reason: str = "", started: datetime | None = None) -> Observation:
    return Observation(state=state, native_state=native, reason=reason, evidence=EVIDENCE, started_at=started)


def is_managed_elsewhere(job: Manifest) -> bool:
    """Whether another controller runs the Job: it is not judged here, and never given up."""
    return bool(_foreign_manager(job))


def _foreign_manager(job: Manifest) -> str:
    manager = str(job["spec"].get("managedBy") or BUILT_IN)
    return "" if manager == BUILT_IN else manager


def _suspended(facts: JobFacts) -> Observation:
    notes = facts.job["metadata"].get("annotations") or {}
    queue = (facts.job["metadata"].get("labels") or {}).get(QUEUE)
    if RESUMED not in notes:
        seen = _seen(JobState.PENDING, "Suspended", "created and not started; launch again if its launcher is gone")
        return seen.model_copy(update={"unstarted": True})
    if queue:
        return _seen(JobState.PENDING, "Suspended", f"waits in the queue {queue}")
    return _seen(JobState.PAUSED, "Suspended", "somebody suspended the Job", _started(facts.pods))


# -- waiting -----------------------------------------------------------------------------------------------------------


def waiting(facts: JobFacts) -> Waiting:
    """Why not all of its Pods have started; what a person has to put right comes first."""
    found = [_why_pod_waits(pod, facts.events) for pod in facts.pods if not has_started(pod)]
    if lacks_pods(facts) and (refused := _last(facts.events, facts.job, ("FailedCreate",))):
        message = str(refused.get("message") or "")
        has_quota = "exceeded quota" in message
        found.append(Waiting("QuotaExceeded" if has_quota else "FailedCreate", message, heals=has_quota))
    found.sort(key=lambda one: (one.heals, not one.message))
    return found[0] if found else Waiting("Pending", "the cluster has not made its Pod yet")


def lacks_pods(facts: JobFacts) -> bool:
    """Whether the cluster has not made all Pods of the Job."""
    return len(facts.pods) < int(facts.job["spec"].get("parallelism") or 1)


def _why_pod_waits(pod: Manifest, events: Sequence[Manifest]) -> Waiting:
    for status in _statuses(pod):
        state = (status.get("state") or {}).get("waiting") or {}
        if state.get("reason") in _FAULTS:
            return Waiting(state["reason"], str(state.get("message") or ""), heals=False)
    scheduled = next((one for one in _conditions(pod) if one["type"] == "PodScheduled"), {})
    if scheduled.get("status") == "False":
        message = str(scheduled.get("message") or "")
        if any(text in message for text in _CLAIM):
            return Waiting("UnboundVolumeClaim", message, heals=False)
        return Waiting(str(scheduled.get("reason") or "Unschedulable"), message)
    step = _last(events, pod, _PAST_FAULTS)
    if (fault := _last(events, pod, _EVENT_FAULTS)) and not _has_healed(fault, pod, step):
        return Waiting(fault["reason"], str(fault.get("message") or ""), heals=False)
    if step and step["reason"] == "Pulling":
        return Waiting("Pending", f"the node {pod['spec'].get('nodeName')} is pulling its image")
    return Waiting("Pending", "its container is being made" if pod["spec"].get("nodeName") else "waits for a node")


def _has_healed(fault: Manifest, pod: Manifest, step: Manifest | None) -> bool:
    """Whether the node came further since: on a busy one mounts fail for a moment, and large images then take long."""
    is_ready = any(one["type"] == "PodReadyToStartContainers" and one["status"] == "True" for one in _conditions(pod))
    return is_ready or (step is not None and _when_happened(step) >= _when_happened(fault))


def _last(events: Sequence[Manifest], thing: Manifest, reasons: Sequence[str]) -> Manifest | None:
    found = [one for one in events_of(events, thing) if one["reason"] in reasons]
    return max(found, key=_when_happened, default=None)


def events_of(events: Sequence[Manifest], thing: Manifest) -> list[Manifest]:
    """What happened to one object."""
    uid = thing["metadata"]["uid"]
    return [one for one in events if one["involvedObject"].get("uid") == uid]


def _when_happened(event: Manifest) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _lost_node(pods: Sequence[Manifest]) -> str:
    """What is said of a job on a node that does not answer: its container may well go on."""
    lost = [pod for pod in pods if _is_lost(pod)]
    return f"NodeNotReady: {lost[0]['spec'].get('nodeName')} does not answer; the job may go on there" if lost else ""


def _outlived(pods: Sequence[Manifest]) -> str:
    """What is said of a Pod that something keeps alive after the job: a sidecar that a webhook put there, mostly."""
    for pod in pods:
        living = [one["name"] for one in _statuses(pod) if "running" in (one.get("state") or {})]
        if living and _main(pod) and MAIN not in living:
            return f"the job's own container has ended, and its Pod goes on with {', '.join(living)}"
    return ""


def _is_lost(pod: Manifest) -> bool:
    """Whether the Pod's node is away: somebody else than its kubelet, which is silent, marked it as not ready."""
    ready = {one["type"]: one["status"] for one in _conditions(pod)}
    is_running = (pod.get("status") or {}).get("phase") == "Running"
    return is_running and ready.get("Ready") == "False" and ready.get("ContainersReady") == "True"


# -- the end -----------------------------------------------------------------------------------------------------------


def _ended(facts: JobFacts, end: Manifest) -> Observation:
    pod = decisive(facts.pods, is_failure=end["type"] == "Failed")
    record = _record(facts, pod)
    status = _main(pod) if pod else {}
    started, stopped = _time(status.get("startedAt")), _time(status.get("finishedAt"))
    why, code = _why_ended(facts, pod, end), status.get("exitCode")
    if why and why.state is not None:
        return Observation(
            state=why.state,
            native_state=why.word,
            reason=why.reason,
            evidence=EVIDENCE,
            exit_code=int(record["exit_code"]) if record else code,
            ended_by=why.ended_by,
            started_at=started or (markers.moment(record.get("started")) if record else None),
            ended_at=stopped or _time(end.get("lastTransitionTime")),
            progress=markers.progress_in(record),
        )
    if record:
        return markers.ended(record, str(end["type"]), started, stopped)
    return Observation(
        state=JobState.ERROR,
        native_state=str(status.get("reason") or end.get("reason") or end["type"]),
        reason=NO_RECORD if end["type"] == "Complete" else _words(status, end),
        evidence=EVIDENCE,
        exit_code=code,
        started_at=started,
        ended_at=stopped or _time(end.get("lastTransitionTime")),
    )


class _Cause(NamedTuple):
    state: JobState | None
    word: str
    reason: str = ""
    ended_by: EndedBy = EndedBy.NONE


def _why_ended(facts: JobFacts, pod: Manifest | None, end: Manifest) -> _Cause | None:
    """What the cluster itself did to the job, or somebody in it; None where the job ended by its own doing."""
    if end.get("reason") == "DeadlineExceeded" or _pod_reason(pod) == "DeadlineExceeded":
        said = str(end.get("message") if end.get("reason") == "DeadlineExceeded" else _message(pod))
        return _Cause(JobState.ERROR, "DeadlineExceeded", said, EndedBy.TIME_LIMIT)
    disruption = _disruption(pod) if pod else None
    if pod and _pod_reason(pod):
        by = f" ({disruption['reason']})" if disruption and disruption.get("reason") else ""
        return _Cause(JobState.ERROR, _pod_reason(pod), f"{_pod_reason(pod)}: {_message(pod)}{by}")
    if pod and disruption:
        word = str(disruption.get("reason") or "DisruptionTarget")
        where = f" on {pod['spec'].get('nodeName')}" if _is_lost(pod) else ""
        lost = "NodeNotReady, " if where else ""
        return _Cause(JobState.ERROR, word, f"{lost}{word}{where}: {disruption.get('message') or ''}")
    if end.get("reason") == "PodFailurePolicy" and "DisruptionTarget" in str(end.get("message")):
        return _Cause(JobState.ERROR, "Evicted", f"Evicted: {end['message']}")
    if pod and _main(pod).get("reason") == "OOMKilled" and _main(pod).get("exitCode"):
        return _Cause(JobState.ERROR, "OOMKilled", "OOMKilled: the container exceeded its memory limit")
    if _was_deleted(facts, pod, end):
        return _Cause(JobState.CANCELED, "deleted", BY_HAND, EndedBy.CANCEL)
    if pod is None and end["type"] == "Failed" and not facts.record:
        return _Cause(JobState.ERROR, str(end.get("reason")), POD_GONE)
    return None


def _was_deleted(facts: JobFacts, pod: Manifest | None, end: Manifest) -> bool:
    """Whether somebody deleted a Pod that ran. The Job itself deletes peers of one that failed, and says so."""
    if pod is not None:
        return bool(pod["metadata"].get("deletionTimestamp")) and _stopped_by_signal(facts, pod)
    if end["type"] != "Failed" or end.get("reason") != "BackoffLimitExceeded":
        return False
    if facts.record and facts.record.get("ended_by") != EndedBy.PREEMPT:
        return False
    own = {one["message"].rpartition(" ")[2] for one in facts.events if one["reason"] == "SuccessfulDelete"}
    killed = {one["involvedObject"]["name"] for one in facts.events if one["reason"] == "Killing"}
    return bool(killed - own)


def _stopped_by_signal(facts: JobFacts, pod: Manifest) -> bool:
    """Whether the command was stopped: what it wrote down, or else how it ended, tells that."""
    record = _record(facts, pod)
    return record.get("ended_by") == EndedBy.PREEMPT if record else bool(_main(pod).get("exitCode", 1))


def decisive(pods: Sequence[Manifest], is_failure: bool) -> Manifest | None:
    """The Pod whose end is the job's: the first that failed by itself; of those that ended well, the first rank."""
    ended = [pod for pod in pods if is_over(pod)]
    if is_failure:
        failed = [pod for pod in ended if pod["status"]["phase"] == "Failed"]
        failed += [pod for pod in pods if pod not in failed and _disruption(pod)]
        return min(
            failed, key=lambda pod: (bool(pod["metadata"].get("deletionTimestamp")), _ended_at(pod)), default=None
        )
    return min(ended, key=rank_of, default=None)


def rank_of(pod: Manifest) -> int:
    """The Pod's number among those of its job."""
    notes = pod["metadata"].get("annotations") or {}
    return int(notes.get(INDEX) or 0)


def _record(facts: JobFacts, pod: Manifest | None) -> dict[str, Any] | None:
    """The runner's own word on the end: from the Pod's status, else from the results."""
    if pod and (told := own_record([pod], facts.uid)):
        return told
    record = facts.record
    return dict(record) if record and markers.has_ended(record) and markers.is_of(record, facts.uid) else None


def own_record(pods: Sequence[Manifest], uid: str) -> dict[str, Any] | None:
    """What the runner in the first of the Pods that tells has left in its status at its end."""
    for pod in sorted(pods, key=rank_of):
        told = markers.read_record(_main(pod).get("message"))
        if told and markers.has_ended(told) and markers.is_of(told, uid):
            return told
    return None


def _words(status: Manifest, end: Manifest) -> str:
    said = str(status.get("message") or "")
    if status.get("reason") in (None, "Error", "Completed"):
        code = status.get("exitCode")
        return said or (f"the container ended with exit code {code}" if code else str(end.get("message") or ""))
    return f"{status['reason']}: {said}" if said else str(status["reason"])


# -- evidence ----------------------------------------------------------------------------------------------------------


def evidence_of(
    facts: JobFacts | None, seen: Observation, log_tail: str = "", record: Record | None = None
) -> Evidence:
    """All that tells why the job ended, for the verdict."""
    pod = decisive(facts.pods, is_failure=True) if facts else None
    told = (_record(facts, pod) if facts else record) or {}
    warnings = [one for one in facts.events if one.get("type") == "Warning"] if facts else []
    if pod and markers.has_ended(told) and told.get("ended_by") == EndedBy.NONE:
        # Its node came back, if it was away at all: a restart of the API server makes nodes look so for a moment.
        old = [one for one in events_of(warnings, pod) if one["reason"] == "NodeNotReady"]
        warnings = [one for one in warnings if one not in old]
    node = pod["spec"].get("nodeName") if pod else None
    return Evidence(
        exit_code=seen.exit_code,
        ended_by=seen.ended_by,
        native_state=seen.native_state,
        reason=seen.reason,
        oom_killed=seen.native_state == "OOMKilled",
        phase=str(told.get("phase") or ""),
        runner_error=str(told.get("error") or ""),
        log_tail=log_tail,
        node_events=tuple(
            NodeEvent(name=str(one["reason"]), message=str(one.get("message") or ""), node=node) for one in warnings
        ),
    )


def replicas_of(facts: JobFacts) -> list[Replica]:
    """Every Pod of the job, and what keeps it from running."""
    found = []
    for pod in sorted(facts.pods, key=rank_of):
        phase = str((pod.get("status") or {}).get("phase") or "Pending")
        why = _why_pod_waits(pod, facts.events) if phase == "Pending" else Waiting("")
        found.append(Replica(pod["metadata"]["name"], phase, why.word, why.message))
    return found


# -- parts -------------------------------------------------------------------------------------------------------------


def _conditions(thing: Manifest) -> list[Manifest]:
    return list((thing.get("status") or {}).get("conditions") or [])


def _statuses(pod: Manifest) -> Iterator[Manifest]:
    status = pod.get("status") or {}
    yield from status.get("initContainerStatuses") or []
    yield from status.get("containerStatuses") or []


def _main(pod: Manifest) -> Manifest:
    """How the job's own container ended; that of an init container where one failed before it."""
    ended = {one["name"]: (one.get("state") or {}).get("terminated") for one in _statuses(pod)}
    own = ended.get(MAIN)
    failed = [state for name, state in ended.items() if state and state.get("exitCode") and name != MAIN]
    return own or (failed[0] if failed else {})


def is_over(pod: Manifest) -> bool:
    """Whether nothing of the Pod can run any more."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def has_started(pod: Manifest) -> bool:
    """Whether the Pod has begun; one that ends at once is never seen running."""
    return is_over(pod) or (pod.get("status") or {}).get("phase") == "Running"


def _disruption(pod: Manifest) -> Manifest | None:
    return next(
        (one for one in _conditions(pod) if one["type"] == "DisruptionTarget" and one["status"] == "True"), None
    )


def _pod_reason(pod: Manifest | None) -> str:
    return str((pod.get("status") or {}).get("reason") or "") if pod else ""


def _message(pod: Manifest | None) -> str:
    return str((pod.get("status") or {}).get("message") or "") if pod else ""


def _started(pods: Sequence[Manifest]) -> datetime | None:
    """Since when the first container runs; not since when the Pod waits for its image."""
    found = []
    for pod in pods:
        for status in _statuses(pod):
            state = (status.get("state") or {}).get("running") or (status.get("state") or {}).get("terminated") or {}
            found += [moment] if status["name"] == MAIN and (moment := _time(state.get("startedAt"))) else []
    return min(found, default=None)


def _ended_at(pod: Manifest) -> datetime:
    return _time(_main(pod).get("finishedAt")) or datetime.max.replace(tzinfo=UTC)


def _time(text: Any) -> datetime | None:
    """A moment as the API writes it, to the second or finer; containers that never ran have none."""
    if not text or str(text).startswith(("1970-01-01", "0001-")):
        return None
    return datetime.fromisoformat(str(text))
