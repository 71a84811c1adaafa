"""The stand-in cluster answers as a real one was recorded to, and the tools of others can drive it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from kube_cluster import ADMIN, KubeCluster
from kube_store import EVENTS, JOBS, SECRETS
from kubernetes_recordings import situation

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


@pytest.mark.parametrize(("case", "command"), [("01", "echo hello; true"), ("02", "exit 7")])
def test_a_life_has_the_conditions_and_events_that_were_recorded(kube: KubeCluster, case: str, command: str) -> None:
    ask(kube, "POST", f"/apis/batch/v1/namespaces/{SPACE}/jobs", job("life", command))
    ends = ("Complete", "Failed")
    until(lambda: [one for each in kube.jobs() for one in each["status"].get("conditions", ()) if one["type"] in ends])
    [mine], [real] = kube.jobs(), situation(case)["final"]["jobs"]
    keys = ("type", "status", "reason", "message")

    def shown(one: dict[str, Any]) -> list[tuple[str, ...]]:
        return [tuple(each.get(key) for key in keys) for each in one["status"]["conditions"]]

    assert shown(mine) == shown(real)
    for field in ("succeeded", "failed", "active", "ready", "terminating"):
        assert mine["status"].get(field) == real["status"].get(field), field
    assert set(real["spec"]) == set(mine["spec"])
    [pod], [real_pod] = kube.pods(), situation(case)["final"]["pods"]
    assert pod["status"]["phase"] == real_pod["status"]["phase"]
    state, real_state = (one["status"]["containerStatuses"][0]["state"]["terminated"] for one in (pod, real_pod))
    assert (state["exitCode"], state["reason"]) == (real_state["exitCode"], real_state["reason"])
    reasons = {one["reason"] for one in kube.store.all(EVENTS)}
    assert {"SuccessfulCreate", "Scheduled", "Started"} <= reasons


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
    kubectl("create", "--validate=false", "-f", "-", text=json.dumps(job("talks", "echo hello; exit 3")))
    kubectl("wait", "--for=condition=failed", "job/talks", "--timeout=30s")
    assert kubectl("logs", "job/talks") == "hello\n"
    assert "talks" in kubectl("get", "jobs", "--output=name")
    kubectl("delete", "job", "talks", "--cascade=foreground")
    assert kube.store.all(JOBS) == []
