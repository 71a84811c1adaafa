"""What runs beside the API server of the stand-in: the Job controller, the scheduler and the garbage collector.

Conditions, counts, events and their order are those that were recorded on a real cluster.
"""

from __future__ import annotations

import threading
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from kube_rules import admit, defaults, quantity
from kube_store import (
    CLAIMS,
    FOREGROUND,
    JOBS,
    NODES,
    PODS,
    RESOURCES,
    TRACKING,
    ApiError,
    Object,
    Store,
    stamp,
)

INDEX = "batch.kubernetes.io/job-completion-index"
OVER = ("Succeeded", "Failed")
TICK = 0.05


def phase(pod: Object) -> str:
    return str(pod["status"].get("phase"))


def condition(one: Object, kind: str) -> Object | None:
    return next((each for each in one["status"].get("conditions") or () if each["type"] == kind), None)


def set_condition(one: Object, kind: str, status: str, reason: str = "", message: str = "") -> None:
    """Put a condition into the status; one that is there already keeps its time unless its status changes."""
    there = condition(one, kind)
    new = {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": stamp()}
    new |= {"reason": reason} if reason else {}
    new |= {"message": message} if message else {}
    if there is None:
        one["status"].setdefault("conditions", []).append(new)
        return
    if there["status"] == status:
        new["lastTransitionTime"] = there["lastTransitionTime"]
    there.clear()
    there.update(new)


def evict(store: Store, pod: Object) -> None:
    """As the eviction API does it."""
    text = "Eviction API: evicting"
    store.update(PODS, pod, lambda new: set_condition(new, "DisruptionTarget", "True", "EvictionByEvictionAPI", text))
    store.delete(PODS, pod)


class Controllers:
    """One thread that brings everything a step further whenever something has changed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_stopping = False
        self.is_scheduling = self.is_counting = True
        self.thread = threading.Thread(target=self._run, daemon=True, name="kube-controllers")

    def _run(self) -> None:
        seen = -1
        while not self.is_stopping:
            with self.store.changed:
                if self.store.version == seen:
                    self.store.changed.wait(TICK)
                seen = self.store.version
            self.step()

    def step(self) -> None:
        for job in self.store.all(JOBS) if self.is_counting else ():
            with suppress(ApiError):
                self._job(job)
        self._collect()
        if self.is_scheduling:
            self._schedule()

    # -- Jobs ----------------------------------------------------------------------------------------------------------

    def _pods(self, job: Object) -> list[Object]:
        return [one for kind, one in self.store.owned(job) if kind is PODS]

    def _job(self, job: Object) -> None:
        if (job["spec"].get("managedBy") or "kubernetes.io/job-controller") != "kubernetes.io/job-controller":
            return
        if any(one["status"] == "True" and one["type"] in ("Complete", "Failed") for one in _conditions(job)):
            self._forget_finished(job)
            return
        with self.store.changed:
            pods = self._pods(job)
            failed = self._count(job, pods)
            job = self.store.find(JOBS, job["metadata"]["namespace"], job["metadata"]["name"]) or job
            if job["metadata"].get("deletionTimestamp"):
                return
            pods = self._pods(job)
            if self._finish(job, pods, failed):
                return
            if job["spec"].get("suspend"):
                self._suspend(job, pods)
            else:
                self._start(job, pods)

    def _count(self, job: Object, pods: list[Object]) -> list[Object]:
        """Count Pods that are over and let them go; returns those that failed now."""
        failed = []
        early = job["spec"].get("podReplacementPolicy") != "Failed"
        for pod in pods:
            is_leaving = bool(pod["metadata"].get("deletionTimestamp"))
            lost = is_leaving and (early or not pod["spec"].get("nodeName"))
            if TRACKING not in pod["metadata"].get("finalizers", []) or not (phase(pod) in OVER or lost):
                continue
            is_good = phase(pod) == "Succeeded"
            failed += [] if is_good else [pod]

            def count(new: Object, is_good: bool = is_good, pod: Object = pod) -> None:
                status = new["status"]
                field = "succeeded" if is_good else "failed"
                status[field] = status.get(field, 0) + 1
                if is_good and INDEX in pod["metadata"].get("annotations", {}):
                    known = [part for part in status.get("completedIndexes", "").split(",") if part]
                    known.append(pod["metadata"]["annotations"][INDEX])
                    status["completedIndexes"] = ",".join(sorted(set(known), key=int))

            self.store.update(JOBS, job, count)
            self.store.update(PODS, pod, _without(TRACKING))
        return failed

    def _finish(self, job: Object, pods: list[Object], failed: list[Object]) -> bool:
        """Take the next step towards the end, if there is one; the first condition comes before the last Pod ends."""
        target = next((one for one in _conditions(job) if one["type"] in ("FailureTarget", "SuccessCriteriaMet")), None)
        if target is None:
            found = self._verdict(job, failed)
            if found is None:
                return False
            kind, reason, message = found
            self.store.update(JOBS, job, lambda new: set_condition(new, kind, "True", reason, message))
            return True
        active = [pod for pod in pods if phase(pod) not in OVER]
        for pod in active:
            if not pod["metadata"].get("deletionTimestamp"):
                self.store.delete(PODS, pod)
                self.store.event(
                    job, "Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}", "job-controller"
                )
        self._active(job, pods)
        if active:
            return True
        is_good = target["type"] == "SuccessCriteriaMet"

        def end(new: Object) -> None:
            set_condition(new, "Complete" if is_good else "Failed", "True", target["reason"], target["message"])
            if is_good:
                new["status"]["completionTime"] = stamp()
            for field in ("active",):
                new["status"].pop(field, None)
            new["status"] |= {"terminating": 0, "ready": 0}

        self.store.update(JOBS, job, end)
        if is_good:
            self.store.event(job, "Normal", "Completed", "Job completed", "job-controller")
        else:
            self.store.event(job, "Warning", target["reason"], target["message"], "job-controller")
        return True

    def _verdict(self, job: Object, failed: list[Object]) -> tuple[str, str, str] | None:
        spec, status = job["spec"], job["status"]
        for pod in failed:
            if said := _policy(spec, pod):
                return "FailureTarget", "PodFailurePolicy", said
        if status.get("failed", 0) > spec["backoffLimit"]:
            return "FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        began, deadline = status.get("startTime"), spec.get("activeDeadlineSeconds")
        if began and deadline and not spec.get("suspend") and _age(began) >= deadline:
            return "FailureTarget", "DeadlineExceeded", "Job was active longer than specified deadline"
        if status.get("succeeded", 0) >= spec["completions"]:
            return "SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods"
        return None

    def _suspend(self, job: Object, pods: list[Object]) -> None:
        for pod in pods:
            if phase(pod) not in OVER and not pod["metadata"].get("deletionTimestamp"):
                self.store.delete(PODS, pod)
        if condition(job, "Suspended") is None or (condition(job, "Suspended") or {})["status"] != "True":

            def hold(new: Object) -> None:
                set_condition(new, "Suspended", "True", "JobSuspended", "Job suspended")
                new["status"].pop("startTime", None)

            self.store.update(JOBS, job, hold)
            self.store.event(job, "Normal", "Suspended", "Job suspended", "job-controller")
        self._active(job, pods)

    def _start(self, job: Object, pods: list[Object]) -> None:
        held = condition(job, "Suspended")

        def begin(new: Object) -> None:
            if held and held["status"] == "True":
                set_condition(new, "Suspended", "False", "JobResumed", "Job resumed")
            new["status"].setdefault("startTime", stamp())

        self.store.update(JOBS, job, begin)
        if held and held["status"] == "True":
            self.store.event(job, "Normal", "Resumed", "Job resumed", "job-controller")
        living = [pod for pod in pods if phase(pod) not in OVER]
        wanted = job["spec"]["completions"] - job["status"].get("succeeded", 0)
        missing = min(job["spec"]["parallelism"], wanted) - len(living)
        if job["spec"]["completionMode"] == "Indexed":
            taken = {pod["metadata"]["annotations"][INDEX] for pod in living}
            taken |= set(filter(None, job["status"].get("completedIndexes", "").split(",")))
            numbers = [str(n) for n in range(job["spec"]["completions"]) if str(n) not in taken][: max(missing, 0)]
        else:
            numbers = [""] * max(missing, 0)
        for number in numbers:
            if not self._make_pod(job, number):
                break
        self._active(job, self._pods(job))

    def _make_pod(self, job: Object, number: str) -> bool:
        template, name = job["spec"]["template"], job["metadata"]["name"]
        meta = template.get("metadata", {})
        prefix = f"{name}-{number}-" if number else f"{name}-"
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
        pod: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": prefix + uuid.uuid4().hex[:5],
                "generateName": prefix,
                "labels": dict(meta.get("labels", {})),
                "annotations": dict(meta.get("annotations") or {}),
                "finalizers": [TRACKING],
                "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": {**template["spec"]},
        }
        if number:
            pod["metadata"]["annotations"][INDEX] = number
            pod["metadata"]["labels"][INDEX] = number
            pod["spec"]["hostname"] = f"{name}-{number}"
            field = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
            pod["spec"]["containers"] = [
                {**one, "env": [*one.get("env", []), {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}]}
                for one in pod["spec"]["containers"]
            ]
        space = job["metadata"]["namespace"]
        try:
            admit(self.store, PODS, space, {**pod, "metadata": {**pod["metadata"], "name": prefix}})
        except ApiError as error:
            self.store.event(job, "Warning", "FailedCreate", f"Error creating: {error}", "job-controller")
            return False
        defaults(PODS, pod)
        made = self.store.create(PODS, space, pod)
        self.store.event(
            job, "Normal", "SuccessfulCreate", f"Created pod: {made['metadata']['name']}", "job-controller"
        )
        return True

    def _active(self, job: Object, pods: list[Object]) -> None:
        living = [pod for pod in pods if phase(pod) not in OVER]
        leaving = [pod for pod in living if pod["metadata"].get("deletionTimestamp")]
        ready = [pod for pod in living if (condition(pod, "Ready") or {}).get("status") == "True"]

        def count(new: Object) -> None:
            new["status"] |= {"terminating": len(leaving), "ready": len(ready), "uncountedTerminatedPods": {}}
            if active := len(living) - len(leaving):
                new["status"]["active"] = active
            else:
                new["status"].pop("active", None)

        self.store.update(JOBS, job, count)

    def _forget_finished(self, job: Object) -> None:
        seconds = job["spec"].get("ttlSecondsAfterFinished")
        ended = next(one for one in _conditions(job) if one["type"] in ("Complete", "Failed"))
        if seconds is None or job["metadata"].get("deletionTimestamp") or _age(ended["lastTransitionTime"]) < seconds:
            return
        self.store.delete(JOBS, job, "Foreground")

    # -- garbage -------------------------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Owned objects go with their owner; an owner that is deleted in the foreground goes after those that block."""
        with self.store.changed:
            for (resource, _, _), one in list(self.store.objects.items()):
                owners = one["metadata"].get("ownerReferences") or []
                has_owner = any(self._owner(one, ref) is not None for ref in owners)
                if not has_owner and TRACKING in one["metadata"].get("finalizers", []):
                    self.store.update(resource, one, _without(TRACKING))  # nobody counts it any more
                if owners and not has_owner:
                    self._let_go(resource, one)
                if FOREGROUND not in one["metadata"].get("finalizers", []):
                    continue
                blocking = []
                for kind, other in self.store.owned(one):
                    self._let_go(kind, other)
                    if self.store.find(kind, other["metadata"]["namespace"], other["metadata"]["name"]):
                        blocking.append(other)
                if not any(
                    ref.get("blockOwnerDeletion") for other in blocking for ref in other["metadata"]["ownerReferences"]
                ):
                    self.store.update(resource, one, _without(FOREGROUND))

    def _let_go(self, resource: Any, one: Object) -> None:
        if resource is PODS and TRACKING in one["metadata"].get("finalizers", []) and phase(one) in OVER:
            self.store.update(PODS, one, _without(TRACKING))
        if not one["metadata"].get("deletionTimestamp"):
            one = self.store.delete(resource, one)
        if resource is PODS and not one["spec"].get("nodeName"):
            self.store.update(PODS, one, _without(TRACKING))

    def _owner(self, one: Object, ref: Object) -> Object | None:
        kind = next(resource for resource in RESOURCES.values() if resource.kind == ref["kind"])
        found = self.store.find(kind, one["metadata"]["namespace"], ref["name"])
        return found if found and found["metadata"]["uid"] == ref["uid"] else None

    # -- scheduling ----------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        waiting = [pod for pod in self.store.all(PODS) if not pod["spec"].get("nodeName") and phase(pod) == "Pending"]
        for pod in waiting:
            if pod["metadata"].get("deletionTimestamp"):
                continue
            if pod["spec"].get("schedulingGates"):
                text = "Scheduling is blocked due to non-empty scheduling gates"
                self.store.update(
                    PODS,
                    pod,
                    lambda new, text=text: set_condition(new, "PodScheduled", "False", "SchedulingGated", text),
                )
                continue
            node, why = self._place(pod)
            if node:
                self._bind(pod, node)
                continue
            if (condition(pod, "PodScheduled") or {}).get("message") == why:
                continue
            self.store.update(
                PODS, pod, lambda new, why=why: set_condition(new, "PodScheduled", "False", "Unschedulable", why)
            )
            self.store.event(pod, "Warning", "FailedScheduling", why, "default-scheduler")

    def _bind(self, pod: Object, node: str) -> None:
        def bind(new: Object) -> None:
            new["spec"]["nodeName"] = node
            set_condition(new, "PodScheduled", "True")

        self.store.update(PODS, pod, bind)
        meta = pod["metadata"]
        text = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"
        self.store.event(pod, "Normal", "Scheduled", text, "default-scheduler")

    def _place(self, pod: Object) -> tuple[str, str]:
        """A node for the Pod, or the scheduler's words for that there is none."""
        nodes = self.store.all(NODES)
        if why := self._volumes(pod):
            return "", _nowhere(len(nodes), why, f"{len(nodes)} Preemption is not helpful for scheduling.")
        reasons: dict[str, int] = {}
        for node in nodes:
            lacks = self._lacks(pod, node)
            if not lacks:
                return node["metadata"]["name"], ""
            for reason in lacks:
                reasons[reason] = reasons.get(reason, 0) + 1
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        rest = f"{len(nodes)} No preemption victims found for incoming pod."
        return "", _nowhere(len(nodes), told, rest)

    def _volumes(self, pod: Object) -> str:
        for volume in pod["spec"].get("volumes") or ():
            if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
                found = self.store.find(CLAIMS, pod["metadata"]["namespace"], claim)
                if found is None:
                    return f'persistentvolumeclaim "{claim}" not found'
                if found.get("status", {}).get("phase") != "Bound":
                    return "pod has unbound immediate PersistentVolumeClaims"
        return ""

    def _lacks(self, pod: Object, node: Object) -> list[str]:
        labels, name = node["metadata"].get("labels", {}), node["metadata"]["name"]
        if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
            return ["node(s) didn't match Pod's node affinity/selector"]
        if not _likes(pod, name):
            return ["node(s) didn't match Pod's node affinity/selector"]
        for taint in node["spec"].get("taints") or ():
            if taint["effect"] in ("NoSchedule", "NoExecute") and not _tolerates(pod, taint):
                return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
        used: dict[str, float] = {}
        for other in self.store.all(PODS):
            if other["spec"].get("nodeName") == name and phase(other) not in OVER:
                for key, amount in requests(other).items():
                    used[key] = used.get(key, 0) + amount
        free = {key: quantity(text) - used.get(key, 0) for key, text in node["status"]["allocatable"].items()}
        return [f"Insufficient {key}" for key, amount in sorted(requests(pod).items()) if amount > free.get(key, 0)]


def _nowhere(nodes: int, why: str, rest: str) -> str:
    return f"0/{nodes} nodes are available: {why}. preemption: 0/{nodes} nodes are available: {rest}"


def requests(pod: Object) -> dict[str, float]:
    """What the Pod asks of its node, of all resources."""
    found: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        asked = container.get("resources") or {}
        for key, text in {**(asked.get("limits") or {}), **(asked.get("requests") or {})}.items():
            found[key] = found.get(key, 0) + quantity(text)
    return found


def _conditions(one: Object) -> list[Object]:
    return list(one["status"].get("conditions") or ())


def _age(text: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()


def _without(finalizer: str) -> Any:
    def remove(new: Object) -> None:
        meta = new["metadata"]
        left = [one for one in meta.get("finalizers", []) if one != finalizer]
        meta["finalizers"] = left
        if not left:
            meta.pop("finalizers")

    return remove


def _policy(spec: Object, pod: Object) -> str:
    """What a FailJob rule says about a Pod that failed; empty where none fits."""
    for number, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or ()):
        if rule["action"] != "FailJob":
            continue
        space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for wanted in rule.get("onPodConditions") or ():
            if (condition(pod, wanted["type"]) or {}).get("status") == wanted.get("status", "True"):
                return f"Pod {space}/{name} has condition {wanted['type']} matching FailJob rule at index {number}"
        codes = (rule.get("onExitCodes") or {}).get("values") or ()
        for status in pod["status"].get("containerStatuses") or ():
            code = (status["state"].get("terminated") or {}).get("exitCode")
            if code and code in codes:
                said = f"Container {status['name']} for pod {space}/{name} failed with exit code {code}"
                return f"{said} matching FailJob rule at index {number}"
    return ""


def _likes(pod: Object, node: str) -> bool:
    """Whether a term of the Pod's node affinity lets it onto the node; only names that are not wanted are looked at."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    terms = (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms")
    unwanted = [[name for field in term.get("matchFields") or () for name in field["values"]] for term in terms or ()]
    return not terms or any(node not in names for names in unwanted)


def _tolerates(pod: Object, taint: Object) -> bool:
    for one in pod["spec"].get("tolerations") or ():
        fits = one.get("key") in (None, "", taint["key"]) and one.get("effect") in (None, "", taint["effect"])
        if fits and (one.get("operator") == "Exists" or one.get("value", "") == taint.get("value", "")):
            return True
    return False
