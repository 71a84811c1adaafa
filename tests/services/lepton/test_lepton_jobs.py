"""What goes wrong between us and Lepton: lost answers, refusals, odd answers, storage on a mount. One job each time."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lepton_api import LeptonFault, LeptonRequest, LeptonServer, lepton_server
from lepton_cloud import NODE_GROUP, NODE_GROUP_NAME, OVER
from opened_platforms import lepton_at
from runner_tools import Bucket
from s3_server import S3Server

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.verdict import Category
from prefect_tao.platforms.lepton import client, observer, submit
from prefect_tao.platforms.lepton.driver import LeptonPlatform
from prefect_tao.testing.contract import new_key, until

pytestmark = pytest.mark.xdist_group("lepton")
ENV = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LeptonServer]:
    with lepton_server(tmp_path, gpus=1) as running:
        yield running


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    return Bucket(s3_server.endpoint)


@pytest.fixture
def platform(server: LeptonServer, bucket: Bucket) -> LeptonPlatform:
    return in_bucket(server, bucket)


def in_bucket(server: LeptonServer, bucket: Bucket, **settings: Any) -> LeptonPlatform:
    storage = {"s3_bucket_name": bucket.name, "s3_endpoint_url": bucket.env["AWS_ENDPOINT_URL"]}
    return quick(lepton_at(server, env=ENV, poll_seconds=0.05, **{**storage, **settings}))


def on_mount(server: LeptonServer, **settings: Any) -> LeptonPlatform:
    """Results on the node group's storage, which cannot be looked into from here."""
    root = server.cloud.folder / "volumes" / "lustre" / "results"
    return quick(lepton_at(server, results_root=str(root), poll_seconds=0.05, **settings))


def quick(platform: LeptonPlatform) -> LeptonPlatform:
    platform.denial_seconds = 0.3
    platform.workspace.sleep = lambda seconds: None
    return platform


def request(command: str = "echo ran", **fields: Any) -> JobRequest:
    return JobRequest.build(**{"command": command, "image": "any/image:1", **fields})


async def start(platform: LeptonPlatform, command: str = "echo ran", **fields: Any) -> JobHandle:
    return await platform.submit(platform.render(request(command, **fields), new_key(), 1), {})


async def end(platform: LeptonPlatform, handle: JobHandle) -> Observation:
    async def over() -> Observation | None:
        seen = (await platform.observe([handle])).get(handle)
        return seen if seen and seen.state.terminal else None

    found = await until(over, 60)
    assert found
    return found


def runs(server: LeptonServer) -> int:
    """How many workers have run the command."""
    return sum(bytes(worker.log.whole).count(b"ran\n") for job in server.cloud.jobs.values() for worker in job.workers)


# -- once --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_a_lost_answer_makes_one_job(server: LeptonServer, platform: LeptonPlatform, lost: str) -> None:
    server.hinder("POST /jobs", LeptonFault(lost=lost))
    launched = await launch(platform, request(), new_key(), {})
    assert (await end(platform, launched.handle)).state is JobState.COMPLETE
    assert len(server.cloud.jobs) == runs(server) == 1


@pytest.mark.parametrize("status", [429, *(pytest.param(status, marks=pytest.mark.long) for status in (500, 503))])
async def test_a_server_in_trouble_makes_one_job(server: LeptonServer, platform: LeptonPlatform, status: int) -> None:
    server.hinder(lambda asked: True, LeptonFault(status=status, headers={"Retry-After": "1"}))
    server.hinder("POST /jobs", LeptonFault(status=status))
    launched = await launch(platform, request(), new_key(), {})
    assert (await end(platform, launched.handle)).state is JobState.COMPLETE
    assert len(server.cloud.jobs) == 1


@pytest.mark.parametrize("body", [b"", b'{"message": "maintenance"}'])
async def test_an_answer_that_is_no_list_never_means_that_there_is_no_job(
    server: LeptonServer, platform: LeptonPlatform, body: bytes
) -> None:
    key = new_key()
    handle = await platform.submit(platform.render(request("echo ran; sleep 60"), key, 1), {})
    server.hinder("GET /jobs", LeptonFault(status=200, body=body), times=2)
    assert (await launch(platform, request("echo ran; sleep 60"), key, {})).handle == handle
    server.hinder("GET /jobs", LeptonFault(status=200, body=body), times=3)
    with pytest.raises(Unreachable):
        await platform.observe([handle])
    assert len(server.cloud.jobs) == 1
    await platform.cancel([handle], 20)


@pytest.mark.long
async def test_a_request_that_arrives_when_nobody_waits_for_it_any_more_makes_no_second_run(
    server: LeptonServer, platform: LeptonPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "READ_SECONDS", 0.3)
    server.hinder("POST /jobs", LeptonFault(delay=2.0))
    launched = await launch(platform, request(), new_key(), {})
    assert (await end(platform, launched.handle)).state is JobState.COMPLETE
    await until(lambda: _soon(len(server.cloud.jobs) == len(server.asked("POST /jobs"))), 20)
    await until(lambda: _soon(all(job.state in OVER for job in server.cloud.jobs.values())), 20)
    assert {job.name for job in server.cloud.jobs.values()} == {launched.handle.name}
    assert runs(server) == 1


async def test_a_server_that_wants_to_be_left_alone_is_left_alone(
    server: LeptonServer, platform: LeptonPlatform
) -> None:
    slept: list[float] = []
    platform.workspace.sleep = slept.append
    server.hinder("GET /jobs", LeptonFault(status=429, headers={"Retry-After": "3"}), times=2)
    assert await platform.jobs() == []
    assert slept == [3.0, 3.0]


async def test_a_job_that_was_not_taken_for_now_is_sent_again_without_a_doubt(server: LeptonServer) -> None:
    """Nothing keeps two jobs of one name apart there, and nothing has to."""
    platform = quick(lepton_at(server, poll_seconds=0.05))
    server.hinder("POST /jobs", LeptonFault(status=429))
    launched = await launch(platform, request(), new_key(), {})
    assert (await end(platform, launched.handle)).state is JobState.COMPLETE
    assert len(server.cloud.jobs) == 1


async def test_a_refusal_takes_no_secrets_from_a_job_of_that_name(
    server: LeptonServer, platform: LeptonPlatform
) -> None:
    """Two launchers send it at once; the second one is told that the quota is spent, by the job of the first."""
    rendered = platform.render(request("echo <$TOKEN>; sleep 60", secrets=["TOKEN"]), new_key(), 1)

    def rival_was_first(asked: LeptonRequest) -> bool:
        return str(asked) == "POST /jobs" and bool(server.cloud.create(asked.body, 0))

    server.hinder(rival_was_first, LeptonFault(status=400, body=b'{"code": "QuotaExceeded", "message": "quota"}'))
    handle = await platform.submit(rendered, {"TOKEN": "s3cr3t"})
    (job,) = server.cloud.jobs.values()
    assert (handle.native_id, len(server.cloud.secrets)) == (job.id, 1)
    await platform.cancel([handle], 20)


async def test_of_two_jobs_with_one_name_one_runs_and_the_other_is_stopped(
    server: LeptonServer, platform: LeptonPlatform
) -> None:
    rendered = platform.render(request("echo ran; sleep 0.3"), new_key(), 1)
    body = platform.launcher.completed(rendered)
    first = await platform.submit(rendered, {})
    twin = platform.workspace.create(body)
    waiting = platform.workspace.create({**body, "spec": {**body["spec"], "resource_shape": "gpu.8xh100-sxm"}})
    assert twin
    assert waiting
    assert (await end(platform, first)).state is JobState.COMPLETE
    assert runs(server) == 1
    found = (await platform.find([rendered.key]))[rendered.key]
    assert [handle.attempt for handle in found] == [1]
    assert server.cloud.jobs[waiting.id].raw["spec"].get("stopped")


async def test_a_name_is_claimed_on_a_mount_too(server: LeptonServer) -> None:
    platform = on_mount(server)
    rendered = platform.render(request("echo ran; sleep 0.3; exit 3"), new_key(), 1)
    body = platform.launcher.completed(rendered)
    handles = [await platform.submit(rendered, {})]
    platform.workspace.create(body)
    found = await end(platform, handles[0])
    assert (found.state, found.exit_code) == (JobState.ERROR, 3)
    assert runs(server) == 1
    assert (await platform.diagnose(handles[0])).exit_code == 3


async def test_the_job_that_has_the_name_is_followed_whatever_handle_there_is(server: LeptonServer) -> None:
    """The older job waits for room, and the younger one starts and claims the name."""
    platform = on_mount(server)
    server.cloud.gpus = 0
    rendered = platform.render(request("echo ran; exit 4", resources={"gpus": 1}), new_key(), 1)
    older = await platform.submit(rendered, {})
    body = platform.launcher.completed(rendered)
    platform.workspace.create({**body, "spec": {**body["spec"], "resource_shape": "cpu.small"}})
    await until(lambda: _soon(runs(server) == 1), 20)
    server.cloud.gpus = 1
    with server.cloud.lock:
        server.cloud.start_what_fits()
    assert (await end(platform, older)).exit_code == 4
    assert runs(server) == 1


async def _soon(value: bool) -> bool:
    await asyncio.sleep(0.02)
    return value


async def test_without_shared_storage_a_launch_in_doubt_is_told_and_not_repeated(server: LeptonServer) -> None:
    platform = quick(lepton_at(server, poll_seconds=0.05))
    server.hinder("POST /jobs", LeptonFault(lost="request"))
    with pytest.raises(Unreachable, match="not known") as told:
        await launch(platform, request(), new_key(), {})
    assert not told.value.retryable
    assert "lep job list" in told.value.remedy
    assert len(server.asked("POST /jobs")) == 1
    server.hinder("POST /jobs", LeptonFault(lost="reply"))
    launched = await launch(platform, request(), new_key(), {})
    assert (await end(platform, launched.handle)).state is JobState.COMPLETE
    assert len(server.cloud.jobs) == 1


# -- seeing ------------------------------------------------------------------------------------------------------------


async def test_an_unknown_state_ends_nothing(server: LeptonServer, platform: LeptonPlatform) -> None:
    handle = await start(platform, "sleep 60")
    (job,) = server.cloud.jobs.values()
    assert (await platform.observe([handle]))[handle].state is JobState.RUNNING
    for word in ("Hibernating", "", "UNK"):
        job.said = word
        assert (await platform.observe([handle]))[handle].state is JobState.RUNNING
    job.said = None
    assert (await platform.cancel([handle], 20))[handle].state is JobState.CANCELED


async def test_a_server_that_ignores_pages_is_not_asked_for_ever(
    server: LeptonServer, platform: LeptonPlatform
) -> None:
    handle = await start(platform, "sleep 60")
    server.cloud.ignores_pages, server.requests[:] = True, []
    await platform.jobs()
    assert len(server.asked("GET /jobs")) <= 2
    assert (await platform.observe([handle]))[handle].state is JobState.RUNNING


async def test_an_archived_job_keeps_its_end_and_its_collected_log(server: LeptonServer) -> None:
    platform = quick(lepton_at(server, poll_seconds=0.05))
    handle = await start(platform, "echo 'ValueError: too few classes' >&2; exit 3")
    failed = await end(platform, handle)
    (job,) = server.cloud.jobs.values()
    server.cloud.archive(job)
    assert "too few classes" in (await platform.diagnose(handle)).log_excerpt
    later = quick(lepton_at(server, poll_seconds=0.05))
    again = (await later.observe([handle]))[handle]
    assert again.state is failed.state is JobState.ERROR
    assert (await later.find([handle.key]))[handle.key] == [handle]


async def test_a_deleted_job_is_canceled_and_a_forgotten_one_ended_as_its_marker_says(
    server: LeptonServer, platform: LeptonPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted, done = await start(platform, "sleep 60"), await start(platform, "exit 3")
    platform.workspace.change("delete", f"/jobs/{deleted.native_id}")
    assert (await end(platform, deleted)).ended_by is EndedBy.CANCEL
    await until(lambda: _soon(server.cloud.jobs[done.native_id].state == "Failed"), 20)
    del server.cloud.jobs[done.native_id]
    assert (await end(platform, done)).exit_code == 3
    lost = done.model_copy(update={"key": new_key(), "native_id": "gone-1", "results": ""})
    assert await platform.observe([lost]) == {}
    monkeypatch.setattr(observer, "GONE_SECONDS", 0.0)
    assert "does not know" in (await platform.observe([lost]))[lost].reason


async def test_a_job_that_cannot_start_says_why(server: LeptonServer, platform: LeptonPlatform) -> None:
    handle = await start(platform, image="missing/image:1")
    seen = (await platform.observe([handle]))[handle]
    assert (seen.state, seen.reason) == (JobState.PENDING, "Failed: ImagePullBackOff")
    (worker,) = await platform.replicas(handle)
    assert (worker.reason, worker.message) == ("Failed", "ImagePullBackOff")
    assert (await platform.cancel([handle], 20))[handle].state is JobState.CANCELED


async def test_several_workers_run_when_all_of_them_do(server: LeptonServer, platform: LeptonPlatform) -> None:
    server.cloud.worker_seconds = 1.0
    handle = await start(platform, "echo $NODE_RANK of $NNODES; sleep 30", resources={"nodes": 2, "gpus": 0})
    assert (await platform.observe([handle]))[handle].state is JobState.PENDING
    assert len(await platform.replicas(handle)) == 2

    async def running() -> bool:
        return (await platform.observe([handle]))[handle].state is JobState.RUNNING

    await until(running, 20)

    async def said() -> bool:
        log = (await platform.logs(handle)).text
        return "0 of 2\n" in log and "1 of 2\n" in log

    await until(said, 20)
    await platform.cancel([handle], 20)


async def test_a_job_that_lepton_starts_anew_is_one_job(server: LeptonServer, platform: LeptonPlatform) -> None:
    handle = await start(platform, "echo try $TAO_RESTARTS; [ $TAO_RESTARTS = 1 ] || sleep 60")
    (job,) = server.cloud.jobs.values()
    await until(lambda: _soon(b"try 0" in job.workers[0].log.whole), 20)
    await asyncio.to_thread(server.cloud.take_away, job, True)
    assert (await end(platform, handle)).state is JobState.COMPLETE


async def test_lepton_s_analysis_is_the_verdict(server: LeptonServer, platform: LeptonPlatform) -> None:
    handle = await start(platform, "exit 137")
    event = {"node_event_name": "OOM", "message": "Memory cgroup out of memory"}
    server.cloud.analyses[handle.native_id] = {"err_class": "ERR_PROGRAM", "job_failure_by_node_event": [event]}
    await end(platform, handle)
    assert (await platform.diagnose(handle)).category is Category.OUT_OF_MEMORY


async def test_a_live_log_is_read_although_it_is_cut_inside_characters(
    server: LeptonServer, platform: LeptonPlatform
) -> None:
    server.cuts_characters = True
    handle = await start(platform, "echo é漢🙂é漢🙂; sleep 60")
    (worker,) = await platform.replicas(handle)

    async def said() -> bool:
        text = await asyncio.to_thread(platform.workspace.live_text, handle.native_id, worker.name, 0.5)
        return "é漢🙂é漢🙂\n" in text and "�" not in text

    await until(said, 20)
    await platform.cancel([handle], 20)


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "fields", "subject", "words"),
    [
        ({"workspace_id": "ws2"}, {}, "workspace", "no workspace ws2"),
        ({"node_group": "h100-poll"}, {}, "node group", "h100-poll"),
        ({"resource_shape": "gpu.9xh100-sxm"}, {}, "shape", "not offered"),
        ({}, {"resources": {"gpus": 3}}, "shape", "no shape with 3 GPUs"),
        ({"mounts": ["luster:/a:/b"]}, {}, "mounts", "no volume 'luster'"),
        ({"image_pull_secret": "mine"}, {}, "pull secret", "has no mine"),
        ({}, {"inputs": {"/x": "/data/train"}}, "mounts", "no storage that the job mounts"),
    ],
)
async def test_what_the_workspace_lacks_is_found_before_the_launch(
    server: LeptonServer, bucket: Bucket, settings: dict[str, Any], fields: dict[str, Any], subject: str, words: str
) -> None:
    url = server.url.replace("ws1", settings.get("workspace_id", "ws1"))
    platform = in_bucket(server, bucket, workspace_url=url, **settings)
    found = [one for one in await platform.probe(request(**fields)) if one.blocks]
    assert [one.subject for one in found] == [subject]
    assert words in found[0].message
    assert found[0].remedy
    if subject != "workspace":
        with pytest.raises(SubmitFailed) as refused:
            await start(platform, **fields)
        assert refused.value.remedy
    assert server.cloud.jobs == {}
    assert server.cloud.secrets == {}
    assert bucket.keys("") == []


async def test_a_folder_that_may_not_be_mounted_is_found_before_the_launch(
    server: LeptonServer, bucket: Bucket
) -> None:
    server.cloud.permissions = [{"path_prefix": "/team", "allowed_users": ["dev@example.com"]}]
    platform = in_bucket(server, bucket, mounts=[f"lustre:/other:{server.cloud.folder}/inside"])
    (found,) = [one for one in await platform.probe(request()) if one.blocks]
    assert "/team" in found.remedy
    with pytest.raises(SubmitFailed, match="no permission"):
        await start(platform)
    assert server.cloud.jobs == {}


async def test_a_token_that_is_refused_or_missing_is_told_at_once(
    server: LeptonServer, platform: LeptonPlatform
) -> None:
    for token, words in (("expired", "refuses the token"), ("", "no token")):
        platform.workspace.token = token
        for question in (platform.probe(), platform.jobs(), start(platform)):
            with pytest.raises(Unreachable, match=words) as told:
                await question
            assert not told.value.retryable
            assert "LEPTON_AUTH_TOKEN" in told.value.remedy
    assert server.cloud.jobs == {}


async def test_a_refused_job_leaves_nothing(server: LeptonServer, platform: LeptonPlatform) -> None:
    body = b'{"code": "QuotaExceeded", "message": "GPU quota of the node group is exceeded"}'
    server.hinder("POST /jobs", LeptonFault(status=400, body=body))
    rendered = platform.render(request(secrets=["TOKEN"]), new_key(), 1)
    with pytest.raises(SubmitFailed, match="quota") as refused:
        await platform.submit(rendered, {"TOKEN": "secret-value"})
    assert "quota raised" in refused.value.remedy
    assert server.cloud.jobs == {}
    assert server.cloud.secrets == {}


async def test_the_ngc_key_becomes_a_pull_secret_once(server: LeptonServer, platform: LeptonPlatform) -> None:
    platform.take_credentials(
        {"LEPTON_AUTH_TOKEN": server.cloud.token, "NGC_KEY": "nvapi-x", "ACCESS_KEY": "test", "SECRET_KEY": "test"}
    )
    for _ in range(2):
        handle = await start(platform, image="nvcr.io/nvidia/tao:7")
        job = server.cloud.jobs[handle.native_id]
        assert job.raw["spec"]["image_pull_secrets"] == list(server.cloud.pull_secrets)
    (kept,) = server.cloud.pull_secrets.values()
    assert (kept["spec"]["username"], kept["spec"]["password"]) == ("$oauthtoken", "nvapi-x")
    assert "nvapi-x" not in repr(platform.render(request(), new_key(), 1))


async def test_a_secret_that_is_not_supplied_is_the_workspace_s_own(
    server: LeptonServer, platform: LeptonPlatform
) -> None:
    server.cloud.secrets["HF_TOKEN"] = {"name": "HF_TOKEN", "value": "theirs"}
    handle = await start(platform, 'echo "<$HF_TOKEN><$OTHER>"', secrets=["HF_TOKEN", "OTHER"])
    await end(platform, handle)
    assert "<theirs><>\n" in (await platform.logs(handle)).text
    assert "HF_TOKEN" in server.cloud.secrets


async def test_what_opens_the_storage_travels_although_the_job_does_not_name_it(
    server: LeptonServer, bucket: Bucket
) -> None:
    """As launches have it: the job names TOKEN, and its results are in a bucket whose keys were found."""
    endpoint = bucket.env["AWS_ENDPOINT_URL"]
    platform = quick(lepton_at(server, poll_seconds=0.05, s3_bucket_name=bucket.name, s3_endpoint_url=endpoint))
    asked = request('echo "<$TOKEN>"; test "$ACCESS_KEY"', secrets=["TOKEN"])
    found = {"TOKEN": "t", "ACCESS_KEY": "test", "SECRET_KEY": "test", "S3_ENDPOINT_URL": endpoint, "CLOUD_REGION": "x"}
    handle = await platform.submit(platform.render(asked, new_key(), 1), found)
    (job,) = server.cloud.jobs.values()
    kept = {name.partition(".")[2] for name in server.cloud.secrets}
    assert kept == {"TOKEN", "ACCESS_KEY", "SECRET_KEY", "CLOUD_REGION"}
    assert len({one["name"] for one in job.raw["spec"]["envs"]}) == len(job.raw["spec"]["envs"])
    assert (await end(platform, handle)).state is JobState.COMPLETE
    assert "<t>\n" in (await platform.logs(handle)).text
    assert server.cloud.secrets == {}


async def test_secrets_that_were_left_are_swept(server: LeptonServer, platform: LeptonPlatform) -> None:
    rendered = platform.render(request("true", secrets=["TOKEN"]), new_key(), 1)
    handle = await platform.submit(rendered, {"TOKEN": "value"})
    await until(lambda: _soon(server.cloud.jobs[handle.native_id].state == "Completed"), 20)
    assert server.cloud.secrets
    await platform.jobs()
    assert server.cloud.secrets == {}


async def test_a_path_on_a_mount_cannot_be_looked_at_from_here(server: LeptonServer) -> None:
    platform = on_mount(server)
    with pytest.raises(InvalidInput, match="cannot be looked at"):
        await platform.check_path("/mnt/x")
    assert await platform.all_gpus() == 8


async def test_what_a_shape_brings_is_said(platform: LeptonPlatform) -> None:
    found = await platform.probe(request(resources={"cpus": 4, "memory": "8G"}))
    assert [one.subject for one in found if one.level is Level.WARN] == ["cpus", "memory"]


# -- what never starts -------------------------------------------------------------------------------------------------


async def test_a_job_that_cannot_start_on_its_node_is_stopped_and_runs_on_another(
    server: LeptonServer, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(observer.STUCK_SECONDS, "ConfigError", 0.0)
    server.cloud.bad_nodes = {"node-1"}
    key, request = new_key(), JobRequest.build(command="echo done", image="any/image:1")
    first = (await launch(in_bucket(server, bucket), request, key, {})).handle
    over = await end(in_bucket(server, bucket), first)
    assert over.state is JobState.ERROR
    assert "ConfigError: Mount point not found" in over.reason
    # Another process, which has not seen it, knows as well that no person stopped it.
    later = in_bucket(server, bucket)
    assert (await later.observe([first]))[first].same_as(over)
    verdict = await later.diagnose(first)
    assert (verdict.category, verdict.retryable) == (Category.STUCK, True)
    second = (await launch(later, request, key, {})).handle
    assert second.attempt == 2
    assert (await end(later, second)).state is JobState.COMPLETE
    spec = server.cloud.find(second.native_id, "alive_and_archive").raw["spec"]
    assert spec["affinity"]["allowed_nodes_in_node_group"] == ["node-2"]


async def test_a_job_without_room_moves_to_the_next_node_group_and_stays_in_line_in_the_last_one(
    server: LeptonServer, bucket: Bucket
) -> None:
    server.cloud.groups["ng-spare"] = "spare"
    server.cloud.full = {NODE_GROUP, "ng-spare"}
    patient = in_bucket(server, bucket, node_group=NODE_GROUP_NAME, other_node_groups=["spare"])
    hasty = {"node_group": NODE_GROUP_NAME, "other_node_groups": ["spare"], "capacity_minutes": 0.001}
    key, request = new_key(), JobRequest.build(command="echo done", image="any/image:1")
    first = (await launch(patient, request, key, {})).handle
    waiting = (await patient.observe([first]))[first]
    assert (waiting.state, waiting.reason) == (
        JobState.PENDING,
        "NoCapacity: waiting in the queue of its node group; after 30 minutes it is sent to spare",
    )
    over = await end(in_bucket(server, bucket, **hasty), first)
    assert (over.state, over.ended_by) == (JobState.ERROR, EndedBy.NONE)
    later = in_bucket(server, bucket, **hasty)
    verdict = await later.diagnose(first)
    assert (verdict.category, verdict.retryable) == (Category.CAPACITY, True)
    second = (await launch(later, request, key, {})).handle
    spec = server.cloud.find(second.native_id, "alive_and_archive").raw["spec"]
    assert (second.attempt, spec["affinity"]["allowed_dedicated_node_groups"]) == (2, ["ng-spare"])
    for _ in range(3):
        waiting = (await later.observe([second]))[second]
        assert waiting.state is JobState.PENDING
        assert "no other node group to try, so it stays in line" in waiting.reason
    server.cloud.full.clear()
    server.cloud.start_what_fits()
    assert (await end(later, second)).state is JobState.COMPLETE


async def test_other_node_groups_are_looked_for_before_anything_is_sent(server: LeptonServer, bucket: Bucket) -> None:
    platform = in_bucket(server, bucket, node_group=NODE_GROUP_NAME, other_node_groups=["h100-poll"])
    found = [one for one in await platform.probe(request()) if one.blocks]
    assert [one.subject for one in found] == ["node group"]
    assert "did you mean h100-pool" in found[0].remedy


async def test_an_image_that_cannot_be_pulled_is_not_waited_for_for_ever(
    server: LeptonServer, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(observer.STUCK_SECONDS, "Failed", 0.0)
    platform = in_bucket(server, bucket)
    request = JobRequest.build(command="true", image="missing/image:1")
    handle = (await launch(platform, request, new_key(), {})).handle
    assert (await end(platform, handle)).state is JobState.ERROR
    assert (await platform.diagnose(handle)).category is Category.IMAGE
    assert server.cloud.find(handle.native_id, "alive_and_archive").state == "Stopped"


async def test_the_secrets_of_a_launch_that_never_became_a_job_are_removed_later(
    server: LeptonServer, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = quick(lepton_at(server, poll_seconds=0.05))  # without a place where jobs could claim their names
    server.cloud.secrets["mine"] = {"name": "mine", "value": "x"}
    server.hinder("POST /jobs", LeptonFault(lost="request"))
    request = JobRequest.build(command="true", image="any/image:1", secrets=["TOKEN"])
    with pytest.raises(Unreachable):
        await platform.submit(platform.render(request, new_key(), 1), {"TOKEN": "s3cr3t"})
    await platform.jobs()
    assert len(server.cloud.secrets) == 2  # a launch may go on
    monkeypatch.setattr(submit, "ABANDONED_SECONDS", -1.0)
    await platform.jobs()
    assert list(server.cloud.secrets) == ["mine"]


# -- launchers that die ------------------------------------------------------------------------------------------------

LAUNCHER = """
import asyncio, json, sys
from types import SimpleNamespace
from opened_platforms import lepton_at
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
about, key = json.loads(sys.argv[1]), sys.argv[2]
server = SimpleNamespace(url=about["url"], cloud=SimpleNamespace(id=about["id"], token=about["token"]))
request = JobRequest.build(command="echo done", image="any/image:1", secrets=["TOKEN"])
asyncio.run(launch(lepton_at(server, **about["settings"]), request, key, {"TOKEN": "s3cr3t"}))
"""


@pytest.mark.parametrize(
    "requests", [count if count in (1, 6, 9) else pytest.param(count, marks=pytest.mark.long) for count in range(1, 17)]
)
async def test_a_launcher_that_is_killed_leaves_one_job_and_no_secret(
    server: LeptonServer, bucket: Bucket, requests: int
) -> None:
    settings = {"s3_bucket_name": bucket.name, "s3_endpoint_url": bucket.env["AWS_ENDPOINT_URL"], "env": ENV}
    cloud, key = server.cloud, new_key()
    about = {"url": server.url, "id": cloud.id, "token": cloud.token, "settings": settings}
    words = [sys.executable, "-c", LAUNCHER, json.dumps(about), key]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "support")}
    child = await asyncio.to_thread(lambda: subprocess.Popen(words, env=env))

    async def asked() -> bool:
        return len(server.requests) >= requests or child.poll() is not None

    await until(asked, 90)
    child.kill()
    child.wait()
    platform = in_bucket(server, bucket)
    request = JobRequest.build(command="echo done", image="any/image:1", secrets=["TOKEN"])
    handle = (await launch(platform, request, key, {"TOKEN": "s3cr3t"})).handle
    assert (await end(platform, handle)).state is JobState.COMPLETE
    assert [job.name for job in cloud.jobs.values()] == [handle.name]
    assert handle in await platform.jobs()
    assert cloud.secrets == {}
