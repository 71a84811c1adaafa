"""The stand-in cluster answers as a real one was recorded to, and the tools of others can drive it."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml
from kube_cluster import ADMIN, KubeCluster
from kube_store import EVENTS, JOBS, PODS, SECRETS
from kubernetes_recordings import facts, situation

from prefect_tao.platforms.kubernetes.observe import JobFacts, has_started, observation
from prefect_tao.platforms.kubernetes.render import INDEX

pytestmark = pytest.mark.xdist_group("kubernetes")
SPACE = "default"
# Answers whose request the stand-in can be asked as it was recorded; compared are code, reason and, mostly, message.
REPLAYED = (
    "404-job",
    "404-namespace",
    "404-delete",
    "400-strict-decoding",
    "422-restart-policy",
    "422-no-image",
    "422-request-over-limit",
    "422-invalid-name",
    "400-wrong-type",
    "409-already-exists",
)
SAME_MESSAGE = {"404-job", "404-namespace", "404-delete", "422-restart-policy", "422-no-image", "409-already-exists"}


def ask(kube: KubeCluster, method: str, path: str, body: Any = None, token: str = ADMIN) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(kube.api.url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def job(name: str, command: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "registry.example/tool:1", "command": ["/bin/sh", "-c", command]}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}, **spec},
    }


def until(condition: Any, seconds: float = 20.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)
    return found


@pytest.mark.parametrize("name", REPLAYED)
def test_an_error_is_answered_as_it_was_recorded(kube: KubeCluster, name: str) -> None:
    recorded = situation("17")["answers"][name]
    space = "case-17-errors"
    path = recorded["request"]["path"].replace(space, SPACE)
    body = recorded["request"].get("body")
    if name == "409-already-exists":
        ask(kube, "POST", path, body)
    code, answer = ask(kube, recorded["request"]["method"], path, body)
    real = recorded["response"]
    assert (code, answer["reason"], answer["kind"]) == (real["code"], real["body"]["reason"], "Status")
    if name in SAME_MESSAGE:
        assert answer["message"] == real["body"]["message"].replace(space, SPACE)
        assert answer.get("details", {}).get("name") == real["body"].get("details", {}).get("name")


# Situations that the stand-in is put into as the real cluster was, and at which moment they are compared.
LIVES = (
    "01", "02", "02d", "04", "04b", "05f", "06", "07", "08@stuck", "08b@stuck", "08d@stuck", "08e@stuck", "08f@stuck",
    "09", "12", "12b", "13", "14", "14c", "30d/fall", "30d/file",
)  # fmt: skip
# Seconds that a test need not wait for.
SHORTER = {"activeDeadlineSeconds": 1, "terminationGracePeriodSeconds": 1}


def recreated(real: dict[str, Any]) -> dict[str, Any]:
    """The Job as it was sent, before the cluster added to it."""
    sent = copy.deepcopy(real)
    del sent["status"], sent["spec"]["selector"]
    sent["metadata"] = {"name": real["metadata"]["name"]}
    sent["spec"].pop("manualSelector", None)
    sent["spec"]["template"]["metadata"] = {}
    for spec in (sent["spec"], sent["spec"]["template"]["spec"]):
        spec |= {name: value for name, value in SHORTER.items() if name in spec}
    return sent


def read_fields(known: JobFacts) -> dict[str, Any]:
    """What the driver reads of a Job and its Pods, with the names and times of this one left out."""
    keys = ("type", "status", "reason", "message")
    conditions = [[one.get(key) for key in keys] for one in known.job["status"].get("conditions") or ()]
    names = [known.job["metadata"]["namespace"], *(pod["metadata"]["name"] for pod in known.pods)]
    names += [pod["spec"].get("nodeName") or "" for pod in known.pods]
    counts = {name: known.job["status"].get(name) or 0 for name in ("succeeded", "failed", "active")}
    # A Pod that starts after all was seen to be told of a mount that failed first; then it tells nothing.
    waits = not any(has_started(pod) for pod in known.pods)
    faults = {one["reason"] for one in known.events if waits and one["reason"] in ("FailedCreate", "FailedMount")}
    found = {
        "conditions": conditions,
        **counts,
        "pods": sorted((_pod_fields(pod) for pod in known.pods), key=str),
        "faults": sorted(faults),
        "killed": any(one["reason"] == "Killing" for one in known.events),
        "deleted": any(one["reason"] == "SuccessfulDelete" for one in known.events),
    }
    text = json.dumps(found)
    for number, name in enumerate(filter(None, names)):
        text = text.replace(name, f"NAME{number}")
    return json.loads(re.sub(r"machine|registry[.]\S+", "", text))


def _pod_fields(pod: dict[str, Any]) -> dict[str, Any]:
    status = pod["status"]
    kinds = ("PodScheduled", "DisruptionTarget", "Ready", "ContainersReady")
    conditions = {one["type"]: (one["status"], one.get("reason")) for one in status.get("conditions") or ()}
    states = [one["state"] for one in status.get("containerStatuses") or ()]
    shown = [(kind, one.get("reason"), one.get("exitCode")) for state in states for kind, one in state.items()]
    meta = pod["metadata"]
    return {
        "phase": status["phase"],
        "reason": status.get("reason"),
        "message": status.get("message"),
        "conditions": {kind: conditions.get(kind) for kind in kinds},
        "containers": shown,
        "said": [_said(state["terminated"]) for state in states if "terminated" in state],
        "index": (meta.get("annotations") or {}).get(INDEX),
        "hostname": pod["spec"].get("hostname"),
        "is_leaving": "deletionTimestamp" in meta,
        "has_node": bool(pod["spec"].get("nodeName")),
        "owner": [one["kind"] for one in meta["ownerReferences"]],
    }


def _said(end: dict[str, Any]) -> str | None:
    """What is in the status; of a container that cannot be made each runtime has its own words."""
    message = end.get("message")
    return message.partition(":")[0] if end["reason"] == "StartError" else message


def seen_now(kube: KubeCluster) -> JobFacts:
    [one] = kube.jobs()
    return JobFacts(one, kube.pods(), kube.store.all(EVENTS))


@pytest.mark.parametrize("name", LIVES)
def test_what_the_driver_reads_is_as_it_was_recorded(kube: KubeCluster, name: str) -> None:
    where, _, which = name.partition("/")
    case, _, moment = where.partition("@")
    real = facts(case, moment or "final", which)
    ask(kube, "POST", f"/apis/batch/v1/namespaces/{SPACE}/jobs", recreated(dict(real.job)))
    if case in ("14", "14c"):
        until(lambda: [pod for pod in kube.pods() if pod["status"]["phase"] == "Running"])
        [pod] = kube.pods()
        kube.evict(pod) if case == "14" else kube.store.delete(PODS, pod)
    with suppress(AssertionError):
        until(lambda: kube.jobs() and read_fields(seen_now(kube)) == read_fields(real), 10)
    assert read_fields(seen_now(kube)) == read_fields(real)
    mine, theirs = observation(seen_now(kube)), observation(real)
    told = ("state", "native_state", "exit_code", "ended_by")
    assert [getattr(mine, field) for field in told] == [getattr(theirs, field) for field in told]


def test_a_delete_without_a_word_leaves_pods_and_one_in_the_foreground_waits_for_them(kube: KubeCluster) -> None:
    path = f"/apis/batch/v1/namespaces/{SPACE}/jobs"
    ask(kube, "POST", path, job("one", "trap 'exit 0' TERM; sleep 100 & wait"))
    until(lambda: [pod for pod in kube.pods() if pod["status"]["phase"] == "Running"])
    code, answer = ask(kube, "DELETE", f"{path}/one", {"propagationPolicy": "Foreground"})
    assert (code, answer["kind"]) == (200, "Job")
    assert answer["metadata"]["finalizers"] == ["foregroundDeletion"]
    code, answer = ask(kube, "POST", path, job("one", "true"))
    assert code == 409
    assert "object is being deleted" in answer["message"]
    until(lambda: not kube.jobs())
    assert kube.pods() == []
    ask(kube, "POST", path, job("two", "sleep 100"))
    until(lambda: [pod for pod in kube.pods() if pod["status"]["phase"] == "Running"])
    assert ask(kube, "DELETE", f"{path}/two")[1]["status"] == "Success"
    assert [pod["status"]["phase"] for pod in kube.pods()] == ["Running"]


def test_what_a_job_owns_goes_with_it(kube: KubeCluster) -> None:
    path = f"/apis/batch/v1/namespaces/{SPACE}/jobs"
    _, made = ask(kube, "POST", path, job("owner", "true", suspend=True))
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "owner", "uid": made["metadata"]["uid"]}
    secret = {"metadata": {"name": "owned", "ownerReferences": [reference]}, "data": {}}
    assert ask(kube, "POST", f"/api/v1/namespaces/{SPACE}/secrets", secret)[0] == 201
    ask(kube, "DELETE", f"{path}/owner", {"propagationPolicy": "Background"})
    until(lambda: not kube.store.all(SECRETS))


@pytest.fixture
def kubectl(kube: KubeCluster) -> Iterator[Any]:
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("there is no kubectl here: put one on PATH")
    env = {"PATH": os.environ["PATH"], "HOME": str(kube.folder), "KUBECONFIG": str(kube.kubeconfig())}

    def run(*words: str, text: str = "") -> str:
        done = subprocess.run([program, *words], env=env, input=text, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_kubectl_drives_it(kube: KubeCluster, kubectl: Any) -> None:
    wanted = job("talks", "echo hello; sleep 1; exit 3")
    kubectl("apply", "-f", "-", text=json.dumps(wanted))
    wanted["metadata"]["labels"] = {"changed": "yes"}
    assert "configured" in kubectl("apply", "-f", "-", text=json.dumps(wanted))
    assert kubectl("get", "jobs", "--selector=changed=yes", "--output=name") == "job.batch/talks\n"
    kubectl("wait", "--for=condition=failed", "job/talks", "--timeout=30s")
    assert kubectl("logs", "job/talks") == "hello\n"
    kubectl("delete", "job", "talks", "--cascade=foreground")
    assert kube.store.all(JOBS) == []


def test_kubectl_is_told_of_a_field_that_is_not_there(kube: KubeCluster, kubectl: Any) -> None:
    with pytest.raises(AssertionError, match=r'unknown field "spec.backoffLimt"'):
        kubectl("apply", "-f", "-", text=json.dumps(job("typo", "true", backoffLimt=1)))
    assert kube.jobs() == []


def test_the_official_client_runs_a_job_and_reads_its_log(kube: KubeCluster) -> None:
    from kubernetes import client, config, watch  # type: ignore[import-untyped]

    with config.new_client_from_config(str(kube.kubeconfig())) as api:
        batch, core = client.BatchV1Api(api), client.CoreV1Api(api)
        batch.create_namespaced_job(SPACE, job("spoken", "echo hello"))
        for event in watch.Watch().stream(batch.list_namespaced_job, SPACE, timeout_seconds=30):
            if any(one.type == "Complete" for one in event["object"].status.conditions or ()):
                break
        [pod] = core.list_namespaced_pod(SPACE, label_selector="job-name=spoken").items
        assert pod.status.container_statuses[0].state.terminated.exit_code == 0
        assert core.read_namespaced_pod_log(pod.metadata.name, SPACE) == "hello\n"
        with pytest.raises(client.ApiException) as refused:
            batch.create_namespaced_job(SPACE, job("spoken", "echo hello"))
        assert (refused.value.status, json.loads(refused.value.body)["reason"]) == (409, "AlreadyExists")
        batch.delete_namespaced_job("spoken", SPACE, propagation_policy="Foreground")
        until(lambda: not kube.jobs())
        with pytest.raises(client.ApiException) as gone:
            batch.read_namespaced_job("spoken", SPACE)
        assert (gone.value.status, json.loads(gone.value.body)["reason"]) == (404, "NotFound")


async def test_the_asynchronous_client_lists_in_pieces_and_watches(kube: KubeCluster) -> None:
    from kubernetes_asyncio import client, config, watch

    await config.load_kube_config(str(kube.kubeconfig()))
    async with client.ApiClient() as api:
        batch = client.BatchV1Api(api)
        for number in range(3):
            await batch.create_namespaced_job(SPACE, job(f"many-{number}", "true", suspend=True))
        first = await batch.list_namespaced_job(SPACE, limit=2)
        rest = await batch.list_namespaced_job(SPACE, limit=2, _continue=first.metadata._continue)
        names = [one.metadata.name for one in (*first.items, *rest.items)]
        assert names == ["many-0", "many-1", "many-2"]
        with pytest.raises(client.ApiException, match="already exists"):
            await batch.create_namespaced_job(SPACE, job("many-0", "true"))
        seen = []
        await batch.patch_namespaced_job("many-1", SPACE, {"spec": {"suspend": False}})
        stream = watch.Watch().stream(
            batch.list_namespaced_job, SPACE, resource_version=first.metadata.resource_version, timeout_seconds=20
        )
        async for event in stream:
            seen.append((event["type"], event["object"].metadata.name))
            if any(one.type == "Complete" for one in event["object"].status.conditions or ()):
                break
        assert set(seen) == {("MODIFIED", "many-1")}
        kube.store.forget_history()
        with pytest.raises(client.ApiException, match="too old resource version") as old:
            async for _ in watch.Watch().stream(batch.list_namespaced_job, SPACE, resource_version="101"):
                pass
        assert old.value.status == 410


async def test_prefect_kubernetes_runs_a_job_on_it(kube: KubeCluster) -> None:
    from prefect_kubernetes.credentials import KubernetesClusterConfig, KubernetesCredentials
    from prefect_kubernetes.jobs import create_namespaced_job, read_namespaced_job_status

    text = yaml.safe_load(kube.kubeconfig().read_text())
    blank = KubernetesClusterConfig(config=text, context_name="stand-in")
    credentials = KubernetesCredentials(cluster_config=blank)
    await create_namespaced_job.fn(credentials, job("theirs", "true"), namespace=SPACE)
    await asyncio.to_thread(until, lambda: [one for one in kube.jobs() if one["status"].get("succeeded")])
    seen = await read_namespaced_job_status.fn(credentials, "theirs", namespace=SPACE)
    assert seen.status.succeeded == 1
