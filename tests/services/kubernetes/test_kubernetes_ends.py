"""Jobs that wait, end, are taken away or forgotten by the cluster: what is seen, said and kept of them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import KubeCluster
from kube_jobs import Opener, end, has_begun, is_running, once, pods_are_over, request, runs, start, step_of
from kube_store import JOBS, SECRETS, ApiError

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.state import EndedBy, JobState
from prefect_tao.jobs.verdict import Category
from prefect_tao.platforms.kubernetes import driver, forgotten, volume_looks
from prefect_tao.testing.contract import new_key, until

pytestmark = pytest.mark.xdist_group("kubernetes")


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


NO_CONFIG_MAP = {
    "volumes": [{"name": "extra", "configMap": {"name": "none"}}],
    "containers": [{"name": "main", "volumeMounts": [{"name": "extra", "mountPath": "/extra"}]}],
}


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"mounts": ["pvc://none:/data"], "results_root": None}, 'persistentvolumeclaim "none" not found'),
        ({"pod_template": {"spec": NO_CONFIG_MAP}}, 'configmap "none" not found'),
    ],
    ids=["claim", "configmap"],
)
async def test_what_a_pod_needs_and_the_namespace_lacks_ends_the_job_after_a_while(
    kube: KubeCluster, opened: Opener, settings: dict[str, Any], word: str
) -> None:
    platform = opened(**settings, image_patience=1)
    handle = await start(platform)
    over = await end(platform, handle)
    assert over.state is JobState.ERROR
    assert word in over.reason
    verdict = await platform.diagnose(handle)
    assert verdict.category is Category.STORAGE
    assert not verdict.retryable
    assert kube.jobs() == kube.pods() == []


async def test_nodes_that_do_not_all_come_are_given_back(kube: KubeCluster, opened: Opener) -> None:
    platform = opened(start_patience=1)
    handle = await start(platform, "sleep 300", resources={"nodes": 3, "gpus": 8})
    over = await end(platform, handle, 90)  # a Pod that is deleted while it starts may need all of its grace
    assert over.state is JobState.ERROR
    assert "2 of 3 nodes have started" in over.reason
    verdict = await platform.diagnose(handle)
    assert (verdict.category, verdict.retryable) == (Category.CAPACITY, True)
    assert kube.jobs() == kube.pods() == []


async def test_a_job_that_somebody_deletes_is_canceled(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgotten, "GONE_SECONDS", 0.2)
    platform = opened()
    handle = await start(platform, "sleep 300")
    await until(lambda: is_running(platform, handle), 20)
    [job] = kube.jobs()
    kube.store.delete(JOBS, job, "Background")
    over = await end(platform, handle)
    assert (over.state, over.reason) == (JobState.CANCELED, forgotten.DELETED)


async def test_a_job_whose_pod_has_ended_is_not_called_canceled_because_its_job_lags(
    kube: KubeCluster, opened: Opener
) -> None:
    platform = opened(results_root=None, mounts=[])
    handle = await start(platform, "echo begun; exit 5")
    await until(lambda: pods_are_over(kube), 20)
    kube.controllers.is_counting = False
    for job in kube.jobs():
        kube.store.update(JOBS, job, lambda new: new["status"].pop("conditions", None))
    canceling = asyncio.create_task(platform.cancel([handle], timeout=20))
    await asyncio.sleep(0.5)
    kube.controllers.is_counting = True
    seen = (await canceling)[handle]
    assert (seen.state, seen.exit_code) == (JobState.ERROR, 5)
    assert kube.jobs()


async def test_a_job_that_ends_just_before_it_is_cancelled_keeps_its_end(
    kube: KubeCluster, opened: Opener, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    kube.add_claim("results", volume)
    settings: dict[str, Any] = {"results_root": None, "mounts": [], "results_claim": "results"}
    platform = opened(**settings)
    handle = await start(platform, "echo begun; until [ -e $TAO_RESULTS_DIR/go ]; do sleep 0.05; done")
    await until(lambda: has_begun(platform, handle), 20)

    def end_first(method: str, path: str) -> None:
        if step_of(method, path) == "DELETE jobs":
            (volume / handle.key / "results_dir" / "go").touch()
            record = volume / handle.key / "attempts" / "1.json"
            while '"ended"' not in record.read_text():
                time.sleep(0.02)

    kube.controllers.is_counting = False
    kube.api.fault = end_first
    seen = (await platform.cancel([handle], timeout=30))[handle]
    kube.controllers.is_counting = True
    assert (seen.state, seen.exit_code) == (JobState.COMPLETE, 0)
    kube.api.requests.clear()
    assert (await end(opened(**settings), handle)).state is JobState.COMPLETE
    assert "POST pods" not in [step_of(*one) for one in kube.api.requests]  # what was found out is kept


async def test_how_far_a_job_came_is_read_from_its_volume_when_its_time_is_up(
    kube: KubeCluster, opened: Opener, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    kube.add_claim("results", volume)
    platform = opened(results_root=None, mounts=[], results_claim="results", active_deadline_seconds=2)
    status = '{"status": "RUNNING", "epoch": 3, "max_epoch": 10}'
    command = f"mkdir -p $TAO_RESULTS_DIR/train; echo '{status}' > $TAO_RESULTS_DIR/train/status.json; sleep 300"
    handle = await start(platform, command)
    over = await end(platform, handle)
    assert (over.native_state, over.ended_by) == ("DeadlineExceeded", EndedBy.TIME_LIMIT)
    assert (over.progress.epoch if over.progress else None) == 3
    assert (await platform.diagnose(handle)).category is Category.TIME_LIMIT
    listed = await platform.list_files(handle.results, 3, 100, ["attempts"])
    assert listed.files == (f"{handle.results}/results_dir/train/status.json",)
    assert listed.whole


async def test_a_job_that_is_deleted_after_its_end_keeps_its_end_and_is_not_run_again(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgotten, "GONE_SECONDS", 0.2)
    platform = opened()
    handle = await start(platform)
    await until(lambda: pods_are_over(kube), 20)
    [job] = kube.jobs()
    kube.store.delete(JOBS, job, "Background")
    assert (await end(platform, handle)).state is JobState.COMPLETE
    assert await start(opened(), key=handle.key) == handle
    assert kube.jobs() == []
    assert await runs(platform, handle) == 1


async def test_a_pod_that_outlives_its_job_is_known_until_it_is_gone(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    handle = await start(platform, "echo begun; sleep 300")
    await until(lambda: has_begun(platform, handle), 20)
    [job] = kube.jobs()
    kube.store.delete(JOBS, job, "Orphan")
    await until(lambda: _has_no_jobs(kube), 20)
    seen = (await platform.observe([handle]))[handle]
    assert seen.state is JobState.CANCELING
    assert "is still there on node" in seen.reason
    assert (await platform.find([handle.key]))[handle.key] == [handle]
    assert (await platform.cancel([handle], timeout=30))[handle].state is JobState.CANCELED
    assert kube.pods() == []


async def _has_no_jobs(kube: KubeCluster) -> bool:
    return not kube.jobs()


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
    assert kube.jobs() == [one for one in kube.store.all(SECRETS) if one.get("data")] == []


async def test_an_end_is_kept_where_a_policy_of_the_cluster_has_jobs_forgotten(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forgotten, "GONE_SECONDS", 0.2)
    kube.api.added["ttlSecondsAfterFinished"] = 60
    platform = opened(results_root=None, mounts=[])
    [told] = [one for one in await platform.probe(request()) if "forgotten 60 s after their end" in one.message]
    assert (told.level, told.blocks) == (Level.WARN, False)
    handle = await start(platform, "exit 4")
    first = await end(platform, handle)
    [job] = kube.jobs()
    assert job["spec"]["ttlSecondsAfterFinished"] == 60
    kube.store.delete(JOBS, job, "Background")
    another = opened(results_root=None, mounts=[])
    assert (await end(another, handle)).same_as(first)
    assert await start(another, "exit 4", key=handle.key) == handle


async def _is_over(kube: KubeCluster) -> bool:
    return any(one["type"] == "Failed" for job in kube.jobs() for one in job["status"].get("conditions", ()))


async def test_the_cost_of_a_look_does_not_grow_with_the_jobs(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    handles = [await start(platform, "sleep 300") for _ in range(2)]
    for handle in handles:
        await until(lambda handle=handle: is_running(platform, handle), 20)  # type: ignore[misc]
    asked = []
    for some in (handles[:1], handles):
        kube.api.requests.clear()
        await platform.observe(some)
        asked.append(len(kube.api.requests))
    assert asked == [2, 2]


async def test_silence_is_told_as_silence(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    kube.api.is_away = True
    [found] = await platform.probe(request())
    assert (found.level, found.blocks) == (Level.UNKNOWN, True)
    with pytest.raises(Unreachable):
        await platform.find([new_key()])


@pytest.mark.parametrize(
    "answer",
    [(404, b"404 page not found\n"), (404, b"<html>no such page</html>"), (200, b"<html>log in</html>"), (200, b"{}")],
    ids=["a server that has just started", "a proxy", "a login page", "something else"],
)
async def test_what_is_not_the_api_servers_own_word_tells_nothing_of_a_job(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes]
) -> None:
    monkeypatch.setattr(forgotten, "GONE_SECONDS", 0.0)
    platform = opened()
    handle = await start(platform, "sleep 300")
    kube.api.fault = lambda method, path: answer
    for question in (platform.observe([handle]), platform.find([handle.key]), platform.request_of(handle)):
        with pytest.raises(Unreachable) as silence:
            await question
        assert silence.value.retryable
    kube.api.fault = lambda method, path: None
    assert not (await platform.observe([handle]))[handle].state.terminal


async def test_an_end_is_not_read_from_a_pod_as_it_was_before(kube: KubeCluster, opened: Opener) -> None:
    """The Job ends between the two questions, which an API server that is busy may answer a second apart."""
    platform = opened(results_root=None, mounts=[])
    handle = await start(platform, "echo begun; sleep 1.5")
    await until(lambda: has_begun(platform, handle), 20)

    def wait_for_the_end(method: str, path: str) -> None:
        if step_of(method, path) == "GET jobs":
            deadline = time.monotonic() + 20
            while "completionTime" not in kube.jobs()[0]["status"] and time.monotonic() < deadline:
                time.sleep(0.02)

    kube.api.fault = wait_for_the_end
    seen = (await platform.observe([handle]))[handle]
    assert (seen.state, seen.exit_code) == (JobState.COMPLETE, 0)


async def test_a_node_that_keeps_its_log_to_itself_does_not_keep_back_the_verdict(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LOG_SECONDS", 0.2)
    platform = opened()
    handle = await start(platform, "exit 7")
    await end(platform, handle)
    said = 'Get "https://node1:10250/containerLogs/default/x/main": dial tcp: connect: connection refused'
    kube.api.fault = lambda method, path: ApiError(500, "", said) if "/log" in path else None
    verdict = await platform.diagnose(handle)
    assert (verdict.category, verdict.exit_code) == (Category.PROGRAM, 7)
    kube.api.is_away = True
    with pytest.raises(Unreachable):
        await platform.diagnose(handle)


async def test_an_end_that_a_quota_keeps_from_being_put_down_is_an_end(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    handle = await start(platform, "exit 4")
    said = 'configmaps "x" is forbidden: exceeded quota: few, requested: count/configmaps=1, used: count/configmaps=1'
    kube.api.fault = lambda method, path: (
        ApiError(403, "Forbidden", said) if step_of(method, path) == "POST configmaps" else None
    )
    over = await end(platform, handle)
    assert (over.state, over.exit_code) == (JobState.ERROR, 4)
    kube.api.fault = lambda method, path: None
    assert "ttlSecondsAfterFinished" not in kube.jobs()[0]["spec"]
    another = opened()
    assert (await end(another, handle)).same_as(over)
    assert kube.jobs()[0]["spec"]["ttlSecondsAfterFinished"] == 3600


async def test_a_cancellation_that_could_not_be_put_down_deletes_nothing_yet(kube: KubeCluster, opened: Opener) -> None:
    platform = opened()
    handle = await start(platform, "echo begun; sleep 300")
    await until(lambda: has_begun(platform, handle), 20)
    kube.api.requests.clear()
    met = 'Operation cannot be fulfilled on resourcequotas "few": the object has been modified'
    once(kube, "POST configmaps", ApiError(409, "Conflict", met))
    seen = (await platform.cancel([handle], timeout=30))[handle]
    assert (seen.state, seen.ended_by) == (JobState.CANCELED, EndedBy.CANCEL)
    steps = [step_of(*one) for one in kube.api.requests]
    assert steps.count("POST configmaps") == 2
    assert steps.index("DELETE jobs") > len(steps) - 1 - steps[::-1].index("POST configmaps")


async def test_a_look_at_a_volume_whose_launcher_died_is_removed_by_the_next_list_of_jobs(
    kube: KubeCluster, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = opened()
    kube.api.fault = lambda method, path: (
        "lost before" if step_of(method, path) in ("DELETE pods", "GET pods") else None
    )
    with pytest.raises(Unreachable):
        await platform.check_path(str(tmp_path / "results"))
    kube.api.fault = lambda method, path: None
    await until(lambda: pods_are_over(kube), 20)
    await platform.jobs()
    assert len(kube.pods()) == 1  # its launcher may still read it
    monkeypatch.setattr(volume_looks, "PATIENCE", -1.0)
    await platform.jobs()
    assert kube.pods() == []
