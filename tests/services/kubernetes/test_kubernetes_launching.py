"""Launching on a cluster that loses requests and answers: one job, whatever is lost, and it gets what it needs."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube_cluster import KubeCluster
from kube_jobs import Opener, end, is_running, once, request, runs, start, step_of
from kube_store import JOBS, PODS, SECRETS, ApiError

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.verdict import Category
from prefect_tao.platforms.kubernetes import abandoned, forgotten
from prefect_tao.platforms.kubernetes import submit as submit_module
from prefect_tao.platforms.kubernetes.probes import RIGHTS
from prefect_tao.platforms.kubernetes.render import JOB_FILE
from prefect_tao.testing.contract import COUNTED, new_key, until

pytestmark = pytest.mark.xdist_group("kubernetes")
ROOT = Path(__file__).parents[3]
# The requests of a launch, in their order.
STEPS = ("POST jobs", "POST secrets", "PATCH jobs")


# -- exactly once ------------------------------------------------------------------------------------------------------


async def test_a_plain_job_takes_one_request_each_for_job_secret_and_start(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    await platform.site()
    kube.api.requests.clear()
    await start(platform)
    asked = [step_of(method, path) for method, path in kube.api.requests]
    assert asked == list(STEPS)


# As a real one says it: not as a Status.
BUSY = (429, b"Too many requests, please try again later.\n")


@pytest.mark.parametrize("fault", ["lost before", "lost after", 500, BUSY, 504])
@pytest.mark.parametrize("step", STEPS)
async def test_a_lost_request_or_answer_makes_no_second_job(
    kube: KubeCluster, opened: Opener, step: str, fault: Any
) -> None:
    platform = opened()
    once(
        kube,
        step,
        ApiError(fault, "InternalError", "etcdserver: request timed out") if isinstance(fault, int) else fault,
    )
    handle = await start(platform)
    assert (await end(platform, handle)).state is JobState.COMPLETE
    assert await runs(platform, handle) == 1
    assert len(kube.jobs()) == 1


@pytest.mark.parametrize("number", range(1, len(STEPS) + 1))
async def test_a_launcher_that_dies_after_any_request_leaves_what_the_next_one_completes(
    kube: KubeCluster, opened: Opener, number: int
) -> None:
    first, second, key = opened(), opened(), new_key()
    rendered = first.render(request(), key, 1)
    asked = 0

    def die(method: str, path: str) -> Any:
        nonlocal asked
        asked += 1
        if asked == number:
            launching.cancel()
            return "lost after"
        return None

    await first.site()
    kube.api.fault = die
    launching = asyncio.get_running_loop().create_task(first.submit(rendered, {}))
    with pytest.raises(asyncio.CancelledError):
        await launching
    kube.api.fault = lambda method, path: None
    [left] = (await second.find([key]))[key]
    seen = await second.observe([left])
    assert seen[left].unstarted is (number < len(STEPS))
    handle = await second.submit(second.render(request(), key, 1), {})
    assert handle.native_id == left.native_id
    assert (await end(second, handle)).state is JobState.COMPLETE
    assert await runs(second, handle) == 1


async def test_a_job_that_was_never_let_start_keeps_no_secret_and_can_still_be_launched(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(method: str, path: str) -> Any:
        if step_of(method, path) == STEPS[-1]:
            launching.cancel()
            return "lost before"
        return None

    def holds_secret() -> bool:
        held = [base64.b64decode(text) for one in kube.store.all(SECRETS) for text in one["data"].values()]
        return any(b"secret-for-later" in data for data in held)

    first, second, given = opened(), opened(), {"TOKEN": "secret-for-later"}
    rendered = first.render(request('printf %s "$TOKEN" | rev', secrets=["TOKEN"]), new_key(), 1)
    await first.site()
    kube.api.fault = die
    launching = asyncio.get_running_loop().create_task(first.submit(rendered, given))
    with pytest.raises(asyncio.CancelledError):
        await launching
    kube.api.fault = lambda method, path: None
    await second.jobs()
    assert holds_secret(), "its launcher may be about to let it start"
    monkeypatch.setattr(abandoned, "ABANDONED_SECONDS", -1.0)
    await second.jobs()
    assert not holds_secret()
    handle = await second.submit(rendered, given)
    assert (await end(second, handle)).state is JobState.COMPLETE
    assert given["TOKEN"][::-1] in (await second.logs(handle)).text


async def test_a_job_of_somebody_else_with_the_name_is_left_alone(kube: KubeCluster, opened: Opener) -> None:
    platform, key = opened(), new_key()
    rendered = platform.render(request(), key, 1)
    await platform.submit(rendered, {})
    [job] = kube.jobs()
    kube.store.update(JOBS, job, lambda new: new["metadata"]["labels"].pop("prefect-tao/key"))
    with pytest.raises(SubmitFailed, match="not a job of prefect-tao"):
        await platform.submit(rendered, {})
    assert len(kube.jobs()) == 1


async def test_the_next_attempt_waits_for_pods_of_the_one_before(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, key = opened(), new_key()
    first = await start(platform, "echo begun; sleep 300", key=key)
    await until(lambda: is_running(platform, first), 20)
    [job] = kube.jobs()
    kube.store.delete(JOBS, job, "Orphan")
    monkeypatch.setattr(submit_module, "DOUBT_SECONDS", 1.0)
    with pytest.raises(Unreachable, match="earlier attempt may still run"):
        await start(platform, key=key, attempt=2)
    [pod] = kube.pods()
    kube.store.delete(PODS, pod, grace=0)
    monkeypatch.setattr(submit_module, "DOUBT_SECONDS", 20.0)
    second = await start(platform, key=key, attempt=2)
    assert (await end(platform, second)).state is JobState.COMPLETE


@pytest.mark.parametrize(
    ("status", "said"),
    [(403, 'User "x" cannot create resource "jobs" in API group "batch"'), (401, "Unauthorized")],
)
async def test_a_false_refusal_of_a_server_that_has_just_started_is_no_answer(
    kube: KubeCluster, opened: Opener, status: int, said: str
) -> None:
    platform = opened()
    once(kube, "POST jobs", ApiError(status, "Forbidden", said))
    assert await start(platform)


async def test_a_name_that_is_being_deleted_is_waited_for(kube: KubeCluster, opened: Opener) -> None:
    platform, key = opened(), new_key()
    rendered = platform.render(request(), key, 1)
    job = json.loads(rendered.files[JOB_FILE])
    job["metadata"]["finalizers"] = ["example/held"]
    held = await platform.api.ask("POST", platform.api.path("jobs"), job)
    await platform.api.delete("jobs", held["metadata"]["name"], propagationPolicy="Background")
    kube.api.requests.clear()
    launching = asyncio.create_task(platform.submit(rendered, {}))
    await until(lambda: _asked_often(kube, "POST jobs"), 20)
    assert not launching.done()
    [leaving] = kube.jobs()
    kube.store.update(JOBS, leaving, lambda new: new["metadata"].update(finalizers=[]))
    handle = await launching
    assert handle.native_id != held["metadata"]["uid"]
    assert (await end(platform, handle)).state is JobState.COMPLETE


async def _asked_often(kube: KubeCluster, step: str) -> bool:
    return [step_of(*one) for one in kube.api.requests].count(step) > 1


async def test_a_cluster_that_does_not_know_what_is_newer_than_it_gets_a_job_without_that(
    kube: KubeCluster, opened: Opener
) -> None:
    kube.api.unknown_fields |= {"podReplacementPolicy", "podFailurePolicy"}
    platform = opened()
    [told] = [one for one in await platform.probe(request()) if one.subject == "job"]
    assert (told.level, told.blocks) == (Level.WARN, False)
    assert "without podFailurePolicy, podReplacementPolicy" in told.message
    handle = await start(platform)
    assert (await end(platform, handle)).state is JobState.COMPLETE
    typo = opened(pod_template={"spec": {"hostNetwrk": True}})
    with pytest.raises(SubmitFailed, match="hostNetwrk"):
        await start(typo)


# -- secrets, nodes and queues -----------------------------------------------------------------------------------------


async def test_a_pull_secret_is_made_from_the_key_and_goes_with_the_job(kube: KubeCluster, opened: Opener) -> None:
    platform = opened(ngc_pull_secret=True)
    assert any("NGC_KEY" in one.message and one.remedy for one in await platform.probe(request()) if one.blocks)
    with pytest.raises(SubmitFailed, match="NGC_KEY"):
        await start(platform)
    assert kube.jobs() == kube.store.all(SECRETS) == []
    platform.take_credentials({"NGC_KEY": "nvapi-secret"})
    assert not [one for one in await platform.probe(request()) if one.blocks]
    handle = await start(platform, "sleep 300")
    [pull] = [one for one in kube.store.all(SECRETS) if one["type"] == "kubernetes.io/dockerconfigjson"]
    login = json.loads(base64.b64decode(pull["data"][".dockerconfigjson"]))
    assert base64.b64decode(login["auths"]["nvcr.io"]["auth"]) == b"$oauthtoken:nvapi-secret"
    assert pull["metadata"]["ownerReferences"][0]["uid"] == handle.native_id
    [job] = kube.jobs()
    assert job["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": pull["metadata"]["name"]}]
    await platform.cancel([handle], timeout=20)
    await until(lambda: _holds_no_secret(kube), 20)
    ended = await start(platform, "true")
    await end(platform, ended)
    assert "nvapi" not in str([base64.b64decode(text) for text in _secret_texts(kube)])


async def _holds_no_secret(kube: KubeCluster) -> bool:
    return not any(_secret_texts(kube))


def _secret_texts(kube: KubeCluster) -> list[str]:
    return [text for one in kube.store.all(SECRETS) for text in (one.get("data") or {}).values()]


async def test_the_next_attempt_is_kept_off_a_node_whose_gpu_failed(kube: KubeCluster, opened: Opener) -> None:
    platform, key = opened(), new_key()
    first = await start(platform, "echo 'NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.'; exit 1", key=key)
    assert (await end(platform, first)).state is JobState.ERROR
    [pod] = kube.pods()
    assert (await platform.diagnose(first)).category is Category.GPU_FAILURE
    second = await start(opened(), key=key, attempt=2)
    assert (await end(platform, second)).state is JobState.COMPLETE
    [other] = [one for one in kube.pods() if one["metadata"]["labels"]["prefect-tao/attempt"] == "2"]
    assert {pod["spec"]["nodeName"], other["spec"]["nodeName"]} == {"node1", "node2"}
    only = opened(node_selector={"kubernetes.io/hostname": pod["spec"]["nodeName"]})
    third = await start(only, key=key, attempt=3)  # there is no other node for it
    assert (await end(only, third)).state is JobState.COMPLETE


async def test_a_queue_starts_the_job_when_its_secret_is_there_and_waiting_in_it_is_no_fault(
    kube: KubeCluster, opened: Opener
) -> None:
    platform = opened(queue="gpus", start_patience=1)
    handle = await start(platform, resources={"nodes": 2})
    asked = [step_of(method, path) for method, path in kube.api.requests]
    assert asked[-1] == "PATCH jobs"
    [job] = kube.jobs()
    assert (job["spec"]["suspend"], job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]) == (True, "gpus")
    for _ in range(2):  # longer than the patience with nodes that do not come
        seen = (await platform.observe([handle]))[handle]
        assert (seen.state, seen.reason) == (JobState.PENDING, "waits in the queue gpus")
        await asyncio.sleep(0.7)
    kube.store.update(JOBS, job, lambda new: new["spec"].update(suspend=False))  # as Kueue admits it
    assert (await end(platform, handle)).state is JobState.COMPLETE


async def test_what_a_job_was_asked_to_do_can_be_read_while_it_lives(opened: Opener) -> None:
    platform = opened()
    handle = await start(platform, "sleep 300", env={"A": "b"})
    assert await opened().request_of(handle) == request("sleep 300", env={"A": "b"})
    await platform.cancel([handle], timeout=20)
    assert await opened().request_of(handle) is None


async def test_gpus_that_others_use_are_a_hint_that_the_job_will_wait(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    handle = await start(platform, "sleep 300", resources={"gpus": 8})
    await until(lambda: is_running(platform, handle), 20)
    asked = {"one": {"gpus": 8}, "two": {"gpus": 8, "nodes": 2}}
    found = {name: await platform.probe(request(resources=shape)) for name, shape in asked.items()}
    told = {name: next(one for one in findings if one.subject == "gpus") for name, findings in found.items()}
    assert (told["one"].level, told["one"].message) == (Level.OK, "16 nvidia.com/gpu on 2 nodes, 8 wanted")
    assert told["two"].level is Level.WARN
    assert told["two"].message == "16 nvidia.com/gpu on 2 nodes, 16 wanted, 8 free now: the job will wait"
    too_many = ApiError(504, "Timeout", "request did not complete within requested timeout")
    kube.api.fault = lambda method, path: too_many if path.startswith("/api/v1/pods?") else None
    assert not [one for one in await platform.probe(request(resources=asked["two"])) if one.blocks]


async def test_a_saved_kubeconfig_leads_to_the_cluster_of_its_context(
    kube: KubeCluster, opened: Opener, tmp_path: Path
) -> None:
    saved = {**yaml.safe_load(kube.kubeconfig().read_text()), "current-context": "elsewhere"}
    platform = opened(kubeconfig=str(tmp_path / "none"))
    platform.take_credentials({"KUBECONFIG_TEXT": json.dumps(saved), "TAO_K8S_CONTEXT": "stand-in"})
    assert (await end(platform, await start(platform))).state is JobState.COMPLETE


# -- rights ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
async def test_the_rights_that_are_documented_are_enough_and_none_is_too_many(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgotten, "GONE_SECONDS", 0.2)
    roles = yaml.safe_load_all((ROOT / "deployments" / "kubernetes" / "rbac.yaml").read_text())
    rules = next(one["rules"] for one in roles if one["kind"] == "Role")
    granted = {(verb, plural) for rule in rules for plural in rule["resources"] for verb in rule["verbs"]}
    assert granted == {(verb, plural) for verb, _, plural in RIGHTS}
    used: set[tuple[str, str]] = set()
    kube.add_user("narrow", lambda verb, resource: (verb, resource) in granted)
    platform = opened("narrow")
    findings = await platform.probe(request(resources={"gpus": 1}))
    assert not [one for one in findings if one.blocks]
    assert any("may not list nodes" in one.message for one in findings)
    kube.add_user("narrow", lambda verb, resource: (used.add((verb, resource)), (verb, resource) in granted)[1])
    handle = await start(platform, f"{COUNTED}; echo hello")
    assert (await end(platform, handle)).state is JobState.COMPLETE
    assert "hello" in (await platform.logs(handle)).text
    assert await runs(platform, handle) == 1
    again = await start(platform, "sleep 300")
    await until(lambda: is_running(platform, again), 20)
    assert await start(platform, "sleep 300", key=again.key) == again
    assert await platform.request_of(again)
    assert [one.state for one in await platform.replicas(again)] == ["Running"]
    kube.api.fault = lambda method, path: "lost after" if step_of(method, path) == "POST services" else None
    launching = asyncio.create_task(start(platform, "true", resources={"nodes": 2}))
    await asyncio.sleep(1.0)
    kube.api.fault = lambda method, path: None
    assert (await end(platform, await launching)).state is JobState.COMPLETE
    [job] = [one for one in kube.jobs() if one["metadata"]["name"] == again.name]
    kube.store.delete(JOBS, job, "Orphan")
    assert (await platform.cancel([again], timeout=20))[again].state is JobState.CANCELED
    held = await start(platform, "sleep 300")
    await until(lambda: is_running(platform, held), 20)
    assert (await platform.cancel([held], timeout=20))[held].state is JobState.CANCELED
    assert granted - used == set()
