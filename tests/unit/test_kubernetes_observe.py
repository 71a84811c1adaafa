"""What the driver makes of every situation that was recorded on a real cluster: state, reason and verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes_recordings import facts, situation

from prefect_tao.jobs.state import EndedBy, JobState
from prefect_tao.jobs.verdict import Category, classify
from prefect_tao.platforms.kubernetes.observe import (
    BY_HAND,
    NO_RECORD,
    JobFacts,
    evidence_of,
    is_managed_elsewhere,
    observation,
    replicas_of,
    waiting,
)
from prefect_tao.platforms.kubernetes.render import RESUMED

RAN = {"started": 1.0, "ended": 2.0, "exit_code": 0, "ended_by": "none", "error": ""}
STOPPED = {**RAN, "exit_code": 143, "ended_by": "preempt"}

COMPLETE = ["01", "05g", "06b/hog1", "09c", "10", "12", "12d", "12e", "13b", "22", "26c", "30c"]
# Situation, state, the cluster's word, exit code, what ended it, the verdict.
ENDS: list[tuple[str, JobState, str, int | None, str, Category]] = [
    ("02", JobState.ERROR, "Error", 7, "none", Category.PROGRAM),
    ("02b", JobState.ERROR, "Error", 7, "none", Category.PROGRAM),
    ("02c", JobState.ERROR, "BackoffLimitExceeded", None, "none", Category.UNKNOWN),
    ("02d", JobState.ERROR, "StartError", 128, "none", Category.PROGRAM),
    ("03", JobState.ERROR, "OOMKilled", 137, "none", Category.OUT_OF_MEMORY),
    ("04", JobState.ERROR, "DeadlineExceeded", None, "time_limit", Category.TIME_LIMIT),
    ("04b", JobState.ERROR, "DeadlineExceeded", 3, "time_limit", Category.TIME_LIMIT),
    ("12b", JobState.ERROR, "Error", 7, "none", Category.PROGRAM),
    ("12c", JobState.ERROR, "Error", 7, "none", Category.PROGRAM),
    ("13", JobState.ERROR, "Error", 42, "none", Category.PROGRAM),
    ("14c", JobState.CANCELED, "deleted", None, "cancel", Category.CANCELED),
    ("14d", JobState.CANCELED, "deleted", None, "cancel", Category.CANCELED),
    ("30", JobState.ERROR, "Error", 5, "none", Category.PROGRAM),
    ("30b", JobState.ERROR, "Error", 7, "none", Category.PROGRAM),
    ("30d/fall", JobState.ERROR, "Error", 9, "none", Category.PROGRAM),
    ("31", JobState.ERROR, "Evicted", 143, "none", Category.STORAGE),
    ("31b", JobState.ERROR, "Evicted", 137, "none", Category.STORAGE),
]
# Situation at a moment, the cluster's word, whether waiting is all there is to do, the verdict should it last.
WAITS: list[tuple[str, str, bool, Category]] = [
    ("05", "ImagePullBackOff", False, Category.IMAGE),
    ("05b", "ImagePullBackOff", False, Category.IMAGE),
    ("05c", "ImagePullBackOff", False, Category.CREDENTIALS),
    ("05d", "ImagePullBackOff", False, Category.CREDENTIALS),
    ("05e", "ErrImageNeverPull", False, Category.IMAGE),
    ("05f", "InvalidImageName", False, Category.IMAGE),
    ("06", "Unschedulable", True, Category.CAPACITY),
    ("06d", "Unschedulable", True, Category.CAPACITY),
    ("07", "Unschedulable", True, Category.CAPACITY),
    ("07b", "Unschedulable", True, Category.CAPACITY),
    ("08@stuck", "CreateContainerConfigError", False, Category.PROGRAM),
    ("08b@stuck", "CreateContainerConfigError", False, Category.PROGRAM),
    ("08c@stuck", "CreateContainerConfigError", False, Category.PROGRAM),
    ("08d@stuck", "FailedMount", False, Category.STORAGE),
    ("08e@stuck", "FailedMount", False, Category.STORAGE),
    ("08f@stuck", "FailedCreate", False, Category.PROGRAM),
    ("09", "UnboundVolumeClaim", False, Category.STORAGE),
    ("09b", "UnboundVolumeClaim", False, Category.STORAGE),
    ("17@quota-pods", "QuotaExceeded", True, Category.CAPACITY),
    ("17@job-pod-security-stuck", "FailedCreate", False, Category.PROGRAM),
    ("26@gated", "SchedulingGated", True, Category.UNKNOWN),
]


def at(text: str, record: dict[str, Any] | None = None) -> JobFacts:
    """The facts of `situation@moment/job`."""
    where, _, job = text.partition("/")
    name, _, moment = where.partition("@")
    return facts(name, moment or "final", job, record)


def with_object(known: JobFacts, **changed: Any) -> JobFacts:
    return JobFacts(**{"job": known.job, "pods": known.pods, "events": known.events, **changed})


@pytest.mark.parametrize("name", COMPLETE)
def test_a_job_is_complete_when_its_runner_says_so_too(name: str) -> None:
    seen = observation(at(name, RAN))
    assert (seen.state, seen.exit_code, seen.native_state) == (JobState.COMPLETE, 0, "Complete")
    assert seen.started_at
    assert seen.ended_at
    without = observation(at(name))
    assert (without.state, without.reason) == (JobState.ERROR, NO_RECORD)


def test_a_record_of_another_job_proves_nothing() -> None:
    known = at("01")
    seen = observation(with_object(known, record={**RAN, "native_id": "another"}))
    assert seen.reason == NO_RECORD


def test_the_pods_own_status_holds_the_record() -> None:
    known = at("01")
    [pod] = json.loads(json.dumps(known.pods))
    record = {**RAN, "native_id": known.uid, "exit_code": 0}
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = json.dumps(record)
    assert observation(with_object(known, pods=[pod])).state is JobState.COMPLETE


@pytest.mark.parametrize(("name", "state", "word", "code", "ended_by", "category"), ENDS)
def test_every_end_has_its_state_and_its_verdict(
    name: str, state: JobState, word: str, code: int | None, ended_by: str, category: Category
) -> None:
    known = at(name)
    seen = observation(known)
    assert (seen.state, seen.native_state, seen.exit_code, seen.ended_by.value) == (state, word, code, ended_by)
    assert seen.reason
    verdict = classify(evidence_of(known, seen))
    assert verdict.category is category
    assert verdict.remedy


@pytest.mark.parametrize(("name", "word", "heals", "category"), WAITS)
def test_every_wait_says_what_for(name: str, word: str, heals: bool, category: Category) -> None:
    known = at(name)
    seen = observation(known)
    assert (seen.state, seen.native_state) == (JobState.PENDING, word)
    assert seen.reason.startswith(f"{word}: ")
    assert waiting(known).heals is heals
    assert classify(evidence_of(known, seen)).category is category
    for replica in replicas_of(known):
        assert (replica.state, replica.reason) == ("Pending", word)
        assert replica.message


def test_the_first_condition_is_not_the_end() -> None:
    for name in ("02", "04"):
        target = situation(name)["objects"]["job-failure-target"]
        seen = observation(with_object(at(name), job=target))
        assert (seen.state, seen.native_state) == (JobState.RUNNING, "FailureTarget")


def test_a_job_that_was_made_and_not_resumed_can_be_completed() -> None:
    held = situation("10")["objects"]["job-suspended"]
    seen = observation(JobFacts(held))
    assert (seen.state, seen.unstarted) == (JobState.PENDING, True)
    again = json.loads(json.dumps(situation("10")["objects"]["job-suspended-again"]))
    again["metadata"]["annotations"] = {RESUMED: "true"}
    seen = observation(JobFacts(again))
    assert (seen.state, seen.unstarted) == (JobState.PAUSED, False)
    again["metadata"].setdefault("labels", {})["kueue.x-k8s.io/queue-name"] = "gpus"
    seen = observation(JobFacts(again))
    assert (seen.state, seen.reason) == (JobState.PENDING, "waits in the queue gpus")


def test_a_job_that_something_else_manages_is_not_judged() -> None:
    assert is_managed_elsewhere(at("26b").job)
    seen = observation(at("26b"))
    assert seen.state is JobState.PENDING
    assert "kueue.x-k8s.io/multikueue" in seen.reason


def test_a_pod_that_was_taken_away_is_not_a_pod_that_somebody_deleted() -> None:
    evicted = with_object(at("14"), pods=[situation("14")["objects"]["pod-terminal"]], record=STOPPED)
    seen = observation(evicted)
    assert (seen.state, seen.native_state) == (JobState.ERROR, "EvictionByEvictionAPI")
    assert classify(evidence_of(evicted, seen)).category is Category.PREEMPTED
    deleted = with_object(at("14c"), pods=[situation("14c")["objects"]["pod-terminal"]], record=STOPPED)
    seen = observation(deleted)
    assert (seen.state, seen.reason, seen.ended_by) == (JobState.CANCELED, BY_HAND, EndedBy.CANCEL)


def test_the_jobs_own_condition_keeps_the_evidence_of_a_pod_that_is_gone() -> None:
    known = at("14")
    job = json.loads(json.dumps(known.job))
    for condition in job["status"]["conditions"]:
        condition["reason"] = "PodFailurePolicy"
        condition["message"] = "Pod a/b has condition DisruptionTarget matching FailJob rule at index 0"
    gone = with_object(known, job=job)
    seen = observation(gone)
    assert (seen.state, seen.native_state) == (JobState.ERROR, "Evicted")
    assert classify(evidence_of(gone, seen)).category is Category.PREEMPTED


def test_a_pod_that_is_deleted_after_its_end_was_not_stopped() -> None:
    known = at("02")
    [pod] = json.loads(json.dumps(known.pods))
    pod["metadata"]["deletionTimestamp"] = "2026-11-18T03:00:00Z"
    record = {**RAN, "exit_code": 7, "native_id": known.uid}
    seen = observation(with_object(known, pods=[pod], record=record))
    assert (seen.state, seen.exit_code) == (JobState.ERROR, 7)


def test_a_job_on_a_lost_node_goes_on_until_more_is_known() -> None:
    known = at("15@after-dflt/repl")
    seen = observation(known)
    assert seen.state is JobState.RUNNING
    assert "node2 does not answer" in seen.reason
    assert classify(evidence_of(known, seen)).category is Category.NODE_FAILURE


def test_a_program_that_fails_on_a_node_that_had_looked_away_is_at_fault_itself() -> None:
    """A restart of the API server was seen to be told of a healthy Pod as NodeNotReady."""
    known = at("02")
    [pod] = known.pods
    involved = {"uid": pod["metadata"]["uid"], "name": pod["metadata"]["name"]}
    event = {"involvedObject": involved, "reason": "NodeNotReady", "message": "Node is not ready", "type": "Warning"}
    away = [*known.events, {**event, "metadata": {}}]
    ended = with_object(known, events=away, record={**RAN, "exit_code": 7, "native_id": known.uid})
    assert classify(evidence_of(ended, observation(ended))).category is Category.PROGRAM
    other = [{**one, "involvedObject": {**one["involvedObject"], "uid": "of a peer"}} for one in away]
    peer = with_object(ended, events=other)
    assert classify(evidence_of(peer, observation(peer))).category is Category.NODE_FAILURE
    silent = with_object(known, events=away)
    assert classify(evidence_of(silent, observation(silent))).category is Category.NODE_FAILURE


def test_a_job_being_deleted_is_not_gone_yet() -> None:
    known = at("06")
    meta = {**known.job["metadata"], "deletionTimestamp": "2026-11-18T03:00:00Z"}
    assert observation(with_object(known, job={**known.job, "metadata": meta})).state is JobState.CANCELING


def test_a_job_runs_when_all_of_its_nodes_do() -> None:
    known = at("12", RAN)
    job = {**known.job, "status": {}}
    pods = json.loads(json.dumps(known.pods))
    assert observation(with_object(known, job=job, pods=pods)).state is JobState.RUNNING
    [waits] = facts("06").pods
    seen = observation(with_object(known, job=job, pods=[pods[0], waits]))
    assert seen.state is JobState.PENDING
    assert seen.reason.startswith("1 of 2 nodes have started; Unschedulable: ")


def test_a_mount_that_failed_for_a_moment_is_no_fault_while_a_large_image_is_pulled() -> None:
    known = at("08d@stuck")
    [pod] = known.pods
    involved = {"involvedObject": {"uid": pod["metadata"]["uid"], "name": pod["metadata"]["name"]}, "metadata": {}}
    pulling = {**involved, "reason": "Pulling", "lastTimestamp": "2026-11-18T02:57:30Z"}
    on = with_object(known, events=[*known.events, pulling])
    assert (waiting(on).heals, observation(on).reason) == (True, "Pending: the node node2 is pulling its image")
    before = {**pulling, "lastTimestamp": "2026-11-18T02:57:15Z"}  # as after a restart of the node
    assert waiting(with_object(known, events=[*known.events, before])).word == "FailedMount"
    ready = json.loads(json.dumps(pod))
    for one in ready["status"]["conditions"]:
        one["status"] = "True" if one["type"] == "PodReadyToStartContainers" else one["status"]
    assert waiting(with_object(known, pods=[ready])).word == "Pending"


def test_a_second_pod_that_the_cluster_does_not_make_is_told() -> None:
    first = at("12")
    job = {**first.job, "status": {}}
    refused = [{**one, "involvedObject": {"uid": first.uid, "name": "idx"}} for one in at("17@quota-pods").events]
    seen = observation(with_object(first, job=job, pods=first.pods[:1], events=refused))
    assert (seen.state, seen.native_state) == (JobState.PENDING, "QuotaExceeded")
    assert seen.reason.startswith("1 of 2 nodes have started; QuotaExceeded: Error creating: pods")


def test_a_pod_that_something_else_keeps_alive_says_what() -> None:
    known = at("30b")
    pod = json.loads(json.dumps(known.pods[0]))
    pod["status"]["phase"] = "Running"
    for one in pod["status"]["containerStatuses"]:
        if one["name"] == "side":
            one["state"] = {"running": {"startedAt": "2026-11-18T03:00:00Z"}}
    seen = observation(with_object(known, job={**known.job, "status": {}}, pods=[pod]))
    assert (seen.state, seen.reason) == (
        JobState.RUNNING,
        "the job's own container has ended, and its Pod goes on with side",
    )


# What kubelets say of Pods that they end or do not take, with the condition that they set.
REFUSALS = [
    ("Terminated", "Pod was terminated in response to imminent node shutdown.", "TerminationByKubelet", "preempted"),
    ("Evicted", "The node was low on resource: memory.", "TerminationByKubelet", "preempted"),
    ("UnexpectedAdmissionError", "Allocate failed due to no healthy devices present", "", "node_failure"),
    ("OutOfnvidia.com/gpu", "Node didn't have enough resource: nvidia.com/gpu, requested: 8", "", "capacity"),
    ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed", "", "capacity"),
]


@pytest.mark.parametrize(("reason", "message", "condition", "category"), REFUSALS, ids=[one[0] for one in REFUSALS])
def test_what_a_node_does_to_a_pod_has_its_verdict_and_is_tried_again(
    reason: str, message: str, condition: str, category: str
) -> None:
    known = at("02")
    pod = json.loads(json.dumps(known.pods[0]))
    pod["status"] = {"phase": "Failed", "reason": reason, "message": message, "conditions": []}
    if condition:
        pod["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": condition}]
    ended = with_object(known, pods=[pod])
    seen = observation(ended)
    assert (seen.state, seen.native_state) == (JobState.ERROR, reason)
    verdict = classify(evidence_of(ended, seen))
    assert (verdict.category, verdict.retryable) == (category, True)
