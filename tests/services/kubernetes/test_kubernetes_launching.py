"""Launching on a cluster that loses requests and answers: one job, whatever is lost, and nothing left of a refusal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import IMAGE, KubeCluster
from kube_store import JOBS, PODS, SECRETS, ApiError
from opened_platforms import kubernetes_at

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.verdict import Category
from prefect_tao.platforms.kubernetes import driver as driver_module
from prefect_tao.platforms.kubernetes import submit as submit_module
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.platforms.kubernetes.probes import RIGHTS
from prefect_tao.testing.contract import COUNTED, new_key, until

pytestmark = pytest.mark.xdist_group("kubernetes")
Opener = Callable[..., KubernetesPlatform]
# The requests of a launch, in their order.
STEPS = ("POST jobs", "GET configmaps", "POST secrets", "PATCH jobs")


@pytest.fixture
async def opened(kube: KubeCluster, tmp_path: Path) -> AsyncIterator[Opener]:
    results = tmp_path / "results"
    results.mkdir()
    made: list[KubernetesPlatform] = []

    def open_one(token: str = "admin", **settings: Any) -> KubernetesPlatform:
        own = {
            "kubeconfig": str(kube.kubeconfig(token)),
            "results_root": str(results),
            "mounts": [f"host://{results}:{results}"],
            "gpus": 0,
            "helper_image": IMAGE,
        }
        made.append(kubernetes_at(**{**own, **settings}))
        return made[-1]

    yield open_one
    kube.api.is_away = False
    for platform in made:
        await platform.close()


def request(command: str = f"{COUNTED}", **fields: Any) -> JobRequest:
    return JobRequest.build(**{"command": command, "image": IMAGE, **fields})


async def start(platform: KubernetesPlatform, *args: Any, key: str = "", attempt: int = 1, **fields: Any) -> JobHandle:
    return await platform.submit(platform.render(request(*args, **fields), key or new_key(), attempt), {})


async def end(platform: KubernetesPlatform, handle: JobHandle, seconds: float = 30.0) -> Observation:
    async def over() -> Observation | None:
        seen = (await platform.observe([handle])).get(handle)
        return seen if seen and seen.state.terminal else None

    found = await until(over, seconds)
    assert found
    return found


async def runs(platform: KubernetesPlatform, handle: JobHandle) -> int:
    return sum("/run-" in entry for entry in await platform.list_path(f"{handle.results}/results_dir"))


def step_of(method: str, path: str) -> str:
    plural = re.sub(r"\?.*", "", path).split("/namespaces/default/")[-1].split("/")[0]
    return f"{method} {plural}"


def once(kube: KubeCluster, step: str, fault: Any) -> None:
    """Spoil the first request of this kind."""
    left = [step]

    def spoil(method: str, path: str) -> Any:
        if left and step_of(method, path) == left[0]:
            left.clear()
            return fault
        return None

    kube.api.fault = spoil


# -- exactly once ------------------------------------------------------------------------------------------------------


async def test_a_plain_job_takes_one_request_each_for_job_secret_and_start(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    await platform.site()
    kube.api.requests.clear()
    await start(platform)
    asked = [step_of(method, path) for method, path in kube.api.requests]
    assert asked == list(STEPS)


@pytest.mark.parametrize("fault", ["lost before", "lost after", 500, 429, 504])
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
    await until(lambda: _runs(platform, first), 20)
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


async def _runs(platform: KubernetesPlatform, handle: JobHandle) -> bool:
    return (await platform.observe([handle]))[handle].state is JobState.RUNNING


async def test_a_false_refusal_of_a_server_that_has_just_started_is_no_answer(
    kube: KubeCluster, opened: Opener
) -> None:
    platform = opened()
    once(kube, "POST jobs", ApiError(403, "Forbidden", 'User "x" cannot create resource "jobs" in API group "batch"'))
    assert await start(platform)


# -- bad input ---------------------------------------------------------------------------------------------------------

BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("label", {"pod_template": {"metadata": {"labels": {"a": "b c"}}}}, {}, "valid label"),
    ("typo", {"pod_template": {"spec": {"hostNetwrk": True}}}, {}, "unknown field"),
    (
        "volume",
        {
            "pod_template": {
                "spec": {"containers": [{"name": "main", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}]}
            }
        },
        {},
        "Not found",
    ),
]


@pytest.mark.parametrize(("settings", "fields", "words"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_what_the_cluster_refuses_is_said_and_leaves_nothing(
    kube: KubeCluster, opened: Opener, settings: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    platform = opened(**settings)
    before = sorted(kube.store.objects)
    tried = await platform.probe(request(**fields))
    assert [one for one in tried if one.level is Level.FAIL and words in one.message and one.remedy]
    with pytest.raises(SubmitFailed, match=re.escape(words)) as refused:
        await start(platform, **fields)
    assert refused.value.remedy
    assert sorted(kube.store.objects) == before


async def test_a_namespace_that_is_not_there_is_said_at_once(opened: Opener) -> None:
    platform = opened(namespace="nowhere")
    assert any('namespaces "nowhere" not found' in one.message for one in await platform.probe(request()) if one.blocks)
    with pytest.raises(Unreachable, match="the namespace nowhere") as refused:
        await start(platform)
    assert not refused.value.retryable


async def test_a_quota_is_a_finding_and_a_refusal(kube: KubeCluster, opened: Opener) -> None:
    kube.add_quota({"count/jobs.batch": "0"})
    platform = opened()
    assert any("exceeded quota" in one.message and one.blocks for one in await platform.probe(request()))
    with pytest.raises(SubmitFailed, match="exceeded quota"):
        await start(platform)


async def test_a_secret_that_may_not_be_made_takes_the_job_back(kube: KubeCluster, opened: Opener) -> None:
    kube.add_user("weak", lambda verb, resource: resource != "secrets")
    platform = opened("weak")
    [denied] = [one for one in await platform.probe(request()) if one.blocks]
    assert "create secrets" in denied.message
    with pytest.raises(SubmitFailed, match='cannot create resource "secrets"'):
        await start(platform)
    assert kube.jobs() == []


async def test_the_rights_that_are_documented_are_enough(kube: KubeCluster, opened: Opener) -> None:
    allowed = {(verb, plural) for verb, _, plural in RIGHTS}
    kube.add_user("narrow", lambda verb, resource: (verb, resource) in allowed)
    platform = opened("narrow")
    findings = await platform.probe(request(resources={"gpus": 1}))
    assert not [one for one in findings if one.blocks]
    assert any("may not list nodes" in one.message for one in findings)
    handle = await start(platform, f"{COUNTED}; echo hello")
    assert (await end(platform, handle)).state is JobState.COMPLETE
    assert "hello" in (await platform.logs(handle)).text
    assert await runs(platform, handle) == 1
    again = await start(platform, "sleep 300")
    assert (await platform.cancel([again], timeout=20))[again].state is JobState.CANCELED
    two = await start(platform, "true", resources={"nodes": 2})
    assert (await end(platform, two)).state is JobState.COMPLETE


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kubeconfig": "/nowhere/config"}, "there is no kubeconfig at /nowhere/config"),
        ({"context": "other"}, "leads to no cluster"),
    ],
)
async def test_a_cluster_that_cannot_be_found_is_a_finding(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    [found] = await opened(**settings).probe(request())
    assert found.blocks
    assert words in found.message
    assert found.remedy


async def test_an_expired_token_is_a_finding(kube: KubeCluster, opened: Opener) -> None:
    [found] = await opened("expired").probe(request())
    assert (found.level, found.message) == (Level.FAIL, "Unauthorized")
    assert "log in anew" in found.remedy


async def test_more_gpus_than_any_node_has_are_a_finding(opened: Opener) -> None:
    findings = await opened().probe(request(resources={"gpus": 9}))
    assert [one.message for one in findings if one.blocks] == [
        "9 nvidia.com/gpu are wanted, and the nodes have 16 in total, 8 on the largest"
    ]
    elastic = await opened(autoscales=True).probe(request(resources={"gpus": 9}))
    assert not [one for one in elastic if one.blocks]


# -- waiting and ending ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "category"),
    [
        ("rpc error: code = NotFound desc = failed to resolve reference: not found", Category.IMAGE),
        ("failed to authorize: failed to fetch anonymous token: 401 Unauthorized", Category.CREDENTIALS),
    ],
)
async def test_an_image_that_cannot_be_pulled_ends_the_job_after_a_while(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch, said: str, category: Category
) -> None:
    kube.kubelet.pull_error = lambda image: said
    platform = opened(image_patience=1)
    handle = await start(platform)

    async def pending() -> bool:
        seen = (await platform.observe([handle]))[handle]
        return seen.state is JobState.PENDING and "Image" in seen.native_state

    await until(pending, 20)
    over = await end(platform, handle)
    assert over.state is JobState.ERROR
    verdict = await platform.diagnose(handle)
    assert verdict.category is category
    assert kube.jobs() == kube.pods() == []
    assert [one.attempt for one in (await opened().find([handle.key]))[handle.key]] == [1]


async def test_nodes_that_do_not_all_come_are_given_back(kube: KubeCluster, opened: Opener) -> None:
    platform = opened(start_patience=1)
    handle = await start(platform, "sleep 300", resources={"nodes": 3, "gpus": 8})
    over = await end(platform, handle, 90)  # a Pod that is deleted while it starts may need all of its grace
    assert over.state is JobState.ERROR
    assert "2 of 3 nodes have started" in over.reason
    verdict = await platform.diagnose(handle)
    assert (verdict.category, verdict.retryable) == (Category.CAPACITY, True)
    assert kube.jobs() == kube.pods() == []


async def test_pods_of_one_job_meet_by_the_name_of_the_first(opened: Opener) -> None:
    meet = """
import os, socket
rank, there = int(os.environ["NODE_RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    server = socket.create_server(there)
    print("met by", server.accept()[0].recv(9).decode(), "of", os.environ["WORLD_SIZE"], flush=True)
else:
    import time
    for _ in range(300):
        try:
            socket.create_connection(there).sendall(b"rank %d" % rank)
            break
        except OSError:
            time.sleep(0.1)
"""
    platform = opened()
    handle = await start(platform, f"python3 -c '{meet}'", resources={"nodes": 2}, env={"MASTER_PORT": "29517"})
    assert (await end(platform, handle)).state is JobState.COMPLETE
    assert "[0] met by rank 1 of 2\n" in (await platform.logs(handle)).text
    assert [one.state for one in await platform.replicas(handle)] == ["Succeeded", "Succeeded"]


async def test_a_pod_that_is_evicted_is_preempted_and_one_that_is_deleted_is_canceled(
    kube: KubeCluster, opened: Opener
) -> None:
    platform = opened()
    evicted, deleted = [await start(platform, "echo begun; sleep 300") for _ in range(2)]
    for handle in (evicted, deleted):
        await until(lambda handle=handle: _says(platform, handle), 20)  # type: ignore[misc]
    for pod in kube.pods():
        is_first = pod["metadata"]["labels"]["prefect-tao/key"] == evicted.key
        kube.evict(pod) if is_first else kube.store.delete(PODS, pod)
    assert (await end(platform, evicted)).state is JobState.ERROR
    assert (await platform.diagnose(evicted)).category is Category.PREEMPTED
    assert (await end(platform, deleted)).state is JobState.CANCELED


async def _says(platform: KubernetesPlatform, handle: JobHandle) -> bool:
    return "begun" in (await platform.logs(handle)).text


async def test_a_job_that_somebody_deletes_is_canceled(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "GONE_SECONDS", 0.2)
    platform = opened()
    handle = await start(platform, "sleep 300")
    await until(lambda: _runs(platform, handle), 20)
    [job] = kube.jobs()
    kube.store.delete(JOBS, job, "Background")
    over = await end(platform, handle)
    assert (over.state, over.reason) == (JobState.CANCELED, driver_module.DELETED)


async def test_an_end_is_kept_before_the_cluster_may_forget_the_job(kube: KubeCluster, opened: Opener) -> None:
    platform = opened(ttl_seconds_after_finished=0)
    handle = await start(platform, "exit 4")
    await until(lambda: _is_over(kube), 20)
    [job] = kube.jobs()
    assert "ttlSecondsAfterFinished" not in job["spec"]
    first = await end(platform, handle)

    async def forgotten() -> bool:
        return not kube.jobs()

    await until(forgotten, 20)
    another = opened()
    assert (await end(another, handle)).same_as(first)
    assert (await another.find([handle.key]))[handle.key] == [handle]
    assert await start(another, "exit 4", key=handle.key) == handle
    assert kube.jobs() == kube.store.all(SECRETS) == []


async def _is_over(kube: KubeCluster) -> bool:
    return any(one["type"] == "Failed" for job in kube.jobs() for one in job["status"].get("conditions", ()))


async def test_the_cost_of_a_look_does_not_grow_with_the_jobs(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    handles = [await start(platform, "sleep 300") for _ in range(2)]
    for handle in handles:
        await until(lambda handle=handle: _runs(platform, handle), 20)  # type: ignore[misc]
    asked = []
    for some in (handles[:1], handles):
        kube.api.requests.clear()
        await platform.observe(some)
        asked.append(len(kube.api.requests))
    assert asked == [2, 2]


async def test_an_image_whose_user_is_not_root_reads_its_secrets(kube: KubeCluster, opened: Opener) -> None:
    platform = opened(run_as_user=12345, fs_group=23456, results_root=None, mounts=[])
    rendered = platform.render(request('id -u; test -n "$TOKEN" && echo told', secrets=["TOKEN"]), new_key(), 1)
    handle = await platform.submit(rendered, {"TOKEN": "s3cret"})
    over = await end(platform, handle)
    assert over.state is JobState.COMPLETE, (await platform.logs(handle)).text
    assert "12345\ntold\n" in (await platform.logs(handle)).text


async def test_silence_is_told_as_silence(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    kube.api.is_away = True
    [found] = await platform.probe(request())
    assert (found.level, found.blocks) == (Level.UNKNOWN, True)
    with pytest.raises(Unreachable):
        await platform.find([new_key()])
