"""Jobs on this machine survive their launcher, and whatever is killed, deleted, restarted or full is told as it is."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opened_platforms import process_at
from process_tools import (
    COUNTED,
    LONG,
    changed,
    end_of,
    job,
    kill,
    new_key,
    runner,
    runs,
    says,
    seen,
    start,
    swept,
    until,
    waits_for,
)

from prefect_tao.jobs.errors import CancelUnconfirmed, Elsewhere, SubmitFailed, Unreachable
from prefect_tao.jobs.following import follow
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.verdict import Category
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms.process import client, job_folder
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.platforms.process.observe import ABANDONED_SECONDS
from prefect_tao.platforms.process.submit import STARTER, JobStarter

LAUNCHER = """
import asyncio, sys, time
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform
root, key, command = sys.argv[1:]
launched = asyncio.run(launch(open_platform("process", {"root": root}), JobRequest.build(command=command), key, {}))
print(launched.handle.model_dump_json(), flush=True)
time.sleep(300)
"""


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[ProcessPlatform]:
    with swept(tmp_path):
        yield process_at(tmp_path / "root")


def again(platform: ProcessPlatform) -> ProcessPlatform:
    """Another object for the same platform, as another process would make it."""
    return process_at(platform.root, results_root=platform.results_root)


def folder_of(platform: ProcessPlatform, handle: JobHandle) -> Path:
    return platform.root / "jobs" / handle.name


def members(platform: ProcessPlatform, handle: JobHandle) -> list[client.Ident]:
    return client.members(str(folder_of(platform, handle)), runner(handle))


def rewrite_claim(platform: ProcessPlatform, handle: JobHandle, ident: client.Ident) -> None:
    """Let claim and record name another process."""
    claim = folder_of(platform, handle) / job_folder.CLAIM
    claim.write_text(json.dumps({**json.loads(claim.read_text()), "ident": str(ident)}))
    record = Path(handle.results) / "attempts" / "1.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "native_id": str(ident)}))


# -- killed ------------------------------------------------------------------------------------------------------------


async def test_a_job_outlives_its_launcher_and_any_process_attaches_to_it(
    platform: ProcessPlatform, tmp_path: Path
) -> None:
    command = f"{COUNTED}; {waits_for(tmp_path / 'go')}; echo done"
    words = [sys.executable, "-c", LAUNCHER, str(platform.root), new_key(), command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        handle = JobHandle.model_validate_json(launcher.stdout.readline())
        launcher.kill()

    async def running() -> bool:
        return (await seen(platform, handle)).state is JobState.RUNNING

    await until(running)
    assert (await platform.find([handle.key]))[handle.key] == [handle]
    (tmp_path / "go").touch()
    assert (await end_of(again(platform), handle)).state is JobState.COMPLETE
    assert runs(handle) == 1
    assert "done\n" in (await platform.logs(handle)).text


async def test_a_command_that_outlives_its_runner_is_still_running(platform: ProcessPlatform, tmp_path: Path) -> None:
    handle = await start(platform, f"{waits_for(tmp_path / 'go')}; echo done")
    await says(platform, handle, "begun")
    kill(runner(handle))
    for one in (platform, again(platform)):
        now = await seen(one, handle)
        assert now.state is JobState.RUNNING
        assert "runner is gone" in now.reason
    (tmp_path / "go").touch()
    end = await end_of(platform, handle)
    assert end.state is JobState.ERROR
    assert "without an exit marker" in end.reason
    assert "done\n" in (await platform.logs(handle)).text


async def test_a_command_without_a_runner_can_be_cancelled(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    kill(runner(handle))
    assert (await platform.cancel([handle], timeout=5))[handle].state is JobState.CANCELED
    assert members(platform, handle) == []
    assert (await platform.diagnose(handle)).category is Category.CANCELED


async def test_a_job_of_which_everything_was_killed_is_an_error(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    kill(*members(platform, handle))
    end = await end_of(platform, handle)
    assert (end.state, end.ended_by, end.native_state) == (JobState.ERROR, EndedBy.NONE, "killed")
    verdict = await platform.diagnose(handle)
    assert verdict.category is Category.UNKNOWN
    assert not verdict.retryable


async def test_a_terminated_runner_takes_its_command_with_it_and_may_run_again(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    os.kill(runner(handle).pid, 15)
    end = await end_of(platform, handle)
    assert (end.state, end.ended_by) == (JobState.ERROR, EndedBy.PREEMPT)
    assert (await platform.diagnose(handle)).retryable
    assert members(platform, handle) == []


@pytest.mark.parametrize("command", ["exec env -i sleep 300", "env -i sh -c 'sleep 300; :'"])
async def test_a_command_without_our_environment_is_still_the_job(platform: ProcessPlatform, command: str) -> None:
    handle = await start(platform, f"{COUNTED}; {command}")

    async def bare() -> list[client.Ident]:
        folder = str(folder_of(platform, handle))
        carriers = client.carriers(folder).get(folder, [])
        return [one for one in members(platform, handle) if one not in carriers] if runs(handle) else []

    survivors = await until(bare)
    kill(*(one for one in members(platform, handle) if one not in survivors))
    now = await seen(platform, handle)
    assert (now.state, now.native_state) == (JobState.RUNNING, "runner lost")
    assert (await launch(again(platform), job("exit 0"), handle.key, {})).handle == handle
    assert runs(handle) == 1
    assert (await platform.cancel([handle], timeout=5))[handle].state is JobState.CANCELED
    assert not any(client.life(one) for one in survivors)


async def test_cancel_ends_what_left_the_group_and_its_environment(platform: ProcessPlatform) -> None:
    handle = await start(platform, "set -m; env -i sleep 300 & echo begun; wait")
    await says(platform, handle, "begun")
    before = members(platform, handle)
    assert (await platform.cancel([handle], timeout=5))[handle].state is JobState.CANCELED
    assert not any(client.life(one) for one in before)


async def test_what_may_not_be_killed_is_not_said_to_be_over(
    platform: ProcessPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await start(platform, "exec env -i sleep 300")
    with monkeypatch.context() as as_another_user:
        as_another_user.setattr(client, "send", lambda ident, number: False)
        with pytest.raises(CancelUnconfirmed):
            await platform.cancel([handle], timeout=0.5)
    assert (await platform.cancel([handle], timeout=5))[handle].state is JobState.CANCELED


async def test_a_session_that_bears_the_number_of_a_job_that_is_over_is_left_alone(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    kill(*members(platform, handle))
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as stranger:
        mine = client.identify(stranger.pid)
        assert mine
        rewrite_claim(platform, handle, changed(mine, ticks=mine.ticks - 1))
        assert (await seen(platform, handle)).state is JobState.ERROR
        rewrite_claim(platform, handle, mine)
        assert (await platform.cancel([handle], timeout=5))[handle].state is JobState.ERROR
        assert stranger.poll() is None
        stranger.kill()


# -- deleted -----------------------------------------------------------------------------------------------------------


async def test_a_job_whose_folder_is_deleted_goes_on_and_ends_right(platform: ProcessPlatform, tmp_path: Path) -> None:
    handle = await start(platform, f"{waits_for(tmp_path / 'go')}; exit 4")
    await says(platform, handle, "begun")
    shutil.rmtree(folder_of(platform, handle))
    there = again(platform)
    (found,) = (await there.find([handle.key]))[handle.key]
    assert found == handle
    assert found.native_id == handle.native_id
    for known in (handle, found):
        now = await seen(there, known)
        assert now.state is JobState.RUNNING
        assert "deleted" in now.reason
    (tmp_path / "go").touch()
    end = await end_of(there, found)
    assert (end.state, end.exit_code) == (JobState.ERROR, 4)


async def test_a_job_of_which_every_file_is_deleted_is_found_by_its_processes(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    shutil.rmtree(platform.root)
    there = again(platform)
    (found,) = (await there.find([handle.key]))[handle.key]
    assert found.native_id == handle.native_id
    assert (await seen(there, found)).state is JobState.RUNNING
    before = members(platform, handle)
    adopted = await launch(there, job(LONG), handle.key, {})
    assert (adopted.adopted, adopted.handle) == (True, handle)
    assert members(platform, handle) == before
    end = (await there.cancel([found], timeout=5))[found]
    assert (end.state, end.ended_by) == (JobState.CANCELED, EndedBy.CANCEL)
    assert members(platform, handle) == []


async def test_a_job_whose_results_are_deleted_goes_on_and_keeps_its_end(
    platform: ProcessPlatform, tmp_path: Path
) -> None:
    handle = await start(platform, waits_for(tmp_path / "go"))
    await says(platform, handle, "begun")
    shutil.rmtree(handle.results)
    assert (await seen(platform, handle)).state is JobState.RUNNING
    (tmp_path / "go").touch()
    end = await end_of(platform, handle)
    assert (end.state, end.exit_code) == (JobState.COMPLETE, 0)
    shutil.rmtree(handle.results)
    for one in (platform, again(platform)):
        assert (await seen(one, handle)).same_as(end)


# -- restarted, or taken for another -----------------------------------------------------------------------------------


async def test_a_restart_of_the_machine_is_a_node_failure_that_may_be_tried_again(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    kill(*members(platform, handle))
    rewrite_claim(platform, handle, changed(runner(handle), boot="0ther000"))
    end = await end_of(platform, handle)
    assert end.state is JobState.ERROR
    assert "restarted" in end.reason
    verdict = await platform.diagnose(handle)
    assert (verdict.category, verdict.retryable) == (Category.NODE_FAILURE, True)
    assert (await launch(platform, job("exit 0"), handle.key, {})).handle.attempt == 2


async def test_a_process_that_got_the_number_of_the_runner_is_not_the_job(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    kill(*members(platform, handle))
    with subprocess.Popen(["sleep", "300"]) as stranger:
        mine = client.identify(stranger.pid)
        assert mine
        rewrite_claim(platform, handle, changed(mine, ticks=mine.ticks - 1))
        assert (await seen(platform, handle)).state is JobState.ERROR
        await platform.cancel([handle], timeout=5)
        assert stranger.poll() is None
        stranger.kill()


# -- seen from another machine or container ---------------------------------------------------------------------------

ELSEWHERE = """
import asyncio, sys
from prefect_tao.jobs.errors import CancelUnconfirmed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform

async def main(root, text):
    platform, handle = open_platform("process", {"root": root}), JobHandle.model_validate_json(text)
    print("seen", len(await platform.observe([handle])))
    print("adopted", (await launch(platform, JobRequest.build(command="exit 0"), handle.key, {})).adopted)
    for question in (platform.cancel([handle], timeout=5), platform.diagnose(handle)):
        try:
            await question
        except (CancelUnconfirmed, Unreachable) as error:
            print(type(error).__name__, error.cause)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_look_from_another_pid_namespace_says_nothing_and_harms_nothing(platform: ProcessPlatform) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no pid namespace can be made here, run as root where unshare may: {tried.stderr.strip()}")
    handle = await start(platform, f"{COUNTED}; {LONG}")
    await says(platform, handle, "begun")
    words = [*unshare, sys.executable, "-c", ELSEWHERE, str(platform.root), handle.model_dump_json()]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert told[:2] == ["seen 0", "adopted True"]
    assert told[2].startswith("CancelUnconfirmed")
    assert f"{handle.name} on {os.uname().nodename}" in told[2]
    assert told[3].startswith("Unreachable")
    assert not (folder_of(platform, handle) / job_folder.END).exists()
    assert (await seen(platform, handle)).state is JobState.RUNNING
    assert runs(handle) == 1


async def test_a_job_of_another_machine_is_left_out_until_it_has_left_its_end(platform: ProcessPlatform) -> None:
    handle = await start(platform, "echo begun; sleep 4; exit 3")
    await says(platform, handle, "begun")
    here = runner(handle)
    rewrite_claim(platform, handle, changed(here, boot="0ther000", place="far.example-4026531836"))
    mine = await start(platform, LONG)
    assert list(await platform.observe([handle, mine])) == [mine]
    with pytest.raises(CancelUnconfirmed, match=handle.name):
        await platform.cancel([handle, mine], timeout=5)
    assert (await seen(platform, mine)).state is JobState.CANCELED
    with pytest.raises(Elsewhere, match=r"machine far\.example"):
        await launch(platform, job("exit 0"), handle.key, {})
    assert handle not in await platform.jobs()
    assert client.life(here)
    assert not (folder_of(platform, handle) / job_folder.STOP).exists()

    async def answer() -> dict[JobHandle, Observation]:
        return await platform.observe([handle])

    end = (await until(answer))[handle]
    assert (end.state, end.exit_code) == (JobState.ERROR, 3)


# -- after a power cut -------------------------------------------------------------------------------------------------


async def is_lost_and_tried_again(platform: ProcessPlatform, handle: JobHandle) -> None:
    """The job counts as lost with its machine: it can be listed, cancelled and launched anew."""
    assert handle in await platform.jobs()
    assert await platform.submit(platform.render(job(LONG), handle.key, 1), {}) == handle
    end = (await platform.cancel([handle], timeout=5))[handle]
    assert (end.state, end.native_state) == (JobState.ERROR, "NODE_FAIL")
    verdict = await platform.diagnose(handle)
    assert (verdict.category, verdict.retryable) == (Category.NODE_FAILURE, True)
    assert (await launch(platform, job("exit 0"), handle.key, {})).handle.attempt == 2


@pytest.mark.parametrize("lost", [job_folder.CLAIM, job_folder.JOB])
async def test_a_job_whose_start_was_lost_in_a_power_cut_may_be_tried_again(
    platform: ProcessPlatform, lost: str
) -> None:
    key = stage_only(platform, LONG)
    (handle,) = (await platform.find([key]))[key]
    (folder_of(platform, handle) / lost).write_bytes(b"")
    await is_lost_and_tried_again(platform, handle)


async def test_a_job_that_lives_does_not_need_its_files_to_be_whole(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    for name in (job_folder.CLAIM, job_folder.JOB):
        (folder_of(platform, handle) / name).write_bytes(b"")
        assert (await seen(platform, handle)).state is JobState.RUNNING
    (Path(handle.results) / "attempts" / "1.json").write_bytes(b"")
    assert (await seen(platform, handle.model_copy(update={"native_id": ""}))).state is JobState.RUNNING
    assert (await platform.cancel([handle], timeout=5))[handle].state is JobState.CANCELED
    assert members(platform, handle) == []


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a disk to fill is a tmpfs, and to mount one needs root: run as root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here, run where mounting is allowed: {mounted.stderr.strip()}")
    with swept(disk):
        yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


async def test_a_full_disk_is_told_as_such_and_hides_no_end(tiny_disk: Path) -> None:
    platform = process_at(tiny_disk)
    go = tiny_disk.parent / "go"
    patient, lucky = await start(platform, LONG), await start(platform, waits_for(go))
    await says(platform, patient, "begun")
    filler = await start(platform, "yes 'a line of the log' | head -c 4000000")
    end = await end_of(platform, filler)
    assert (end.state, end.exit_code) == (JobState.ERROR, 1)
    verdict = await platform.diagnose(filler)
    assert verdict.category is Category.STORAGE
    assert "No space left" in verdict.cause
    go.touch()
    assert (await end_of(platform, lucky)).state is JobState.COMPLETE
    with pytest.raises(SubmitFailed, match="cannot be written"):
        await start(platform, "exit 0")
    assert (await platform.cancel([patient], timeout=5))[patient].state is JobState.CANCELED
    assert members(platform, patient) == []
    assert (await seen(again(platform), filler)).same_as(end)


# -- a launcher that died half-way -------------------------------------------------------------------------------------


def stage_only(platform: ProcessPlatform, command: str, **fields: Any) -> str:
    """What a launcher leaves that dies after it staged the job and before it started it; returns the key."""
    rendered = platform.render(job(command, **fields), new_key(), 1)
    job_folder.stage(platform.root / "jobs" / f"tao-{rendered.key}-1", rendered.files)
    return rendered.key


async def test_a_staged_job_is_completed_exactly_once_by_the_next_launch(platform: ProcessPlatform) -> None:
    key = stage_only(platform, COUNTED)
    (handle,) = (await platform.find([key]))[key]
    now = await seen(platform, handle)
    assert now.state is JobState.PENDING
    assert "launch again" in now.reason
    launched = await asyncio.gather(*(launch(again(platform), job(COUNTED), key, {}) for _ in range(4)))
    assert {one.handle for one in launched} == {handle}
    assert len({one.handle.native_id for one in launched} - {""}) == 1
    assert (await end_of(platform, handle)).state is JobState.COMPLETE
    assert runs(launched[0].handle) == 1


async def test_a_staged_job_is_started_by_who_watches_it(platform: ProcessPlatform) -> None:
    key = stage_only(platform, COUNTED)
    (handle,) = (await platform.find([key]))[key]
    outcome = await asyncio.wait_for(follow(Watcher(again(platform)), job(COUNTED), handle, {}), 30)
    assert (outcome.state, runs(handle)) == (JobState.COMPLETE, 1)


async def test_a_staged_job_is_not_started_by_who_lacks_its_secrets(platform: ProcessPlatform) -> None:
    key = stage_only(platform, 'echo "$TOKEN" | rev', secrets=["TOKEN"])
    request = job('echo "$TOKEN" | rev', secrets=["TOKEN"])
    launched = await launch(again(platform), request, key, {})
    assert (launched.adopted, (await seen(platform, launched.handle)).state) == (True, JobState.PENDING)
    watching = asyncio.create_task(follow(Watcher(again(platform)), request, launched.handle, {}))
    started = await launch(again(platform), request, key, SECRET)
    assert (await asyncio.wait_for(watching, 30)).state is JobState.COMPLETE
    assert SECRET["TOKEN"][::-1] in (await platform.logs(started.handle)).text


async def test_a_staged_job_that_was_cancelled_never_starts(platform: ProcessPlatform) -> None:
    key = stage_only(platform, COUNTED)
    (handle,) = (await platform.find([key]))[key]
    assert (await platform.cancel([handle], timeout=5))[handle].state is JobState.CANCELED
    assert await platform.submit(platform.render(job(COUNTED), key, 1), {}) == handle
    assert (await seen(platform, handle)).state is JobState.CANCELED
    assert runs(handle) == 0


# -- a process that cannot be started ---------------------------------------------------------------------------------

SECRET = {"TOKEN": "secret-for-later"}


def secrets_left(platform: ProcessPlatform) -> list[Path]:
    return list(platform.root.glob(f"jobs/*/{job_folder.SECRETS}*"))


async def test_a_machine_without_room_for_a_process_says_so_and_the_next_launch_starts_the_job(
    platform: ProcessPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    key = new_key()
    with monkeypatch.context() as full:
        full.setattr(subprocess, "Popen", no_room)
        with pytest.raises(SubmitFailed, match=r"process cannot be started.*temporarily unavailable"):
            await launch(platform, job(COUNTED), key, SECRET)
    assert secrets_left(platform) == []
    handle = (await launch(platform, job(COUNTED), key, SECRET)).handle
    assert (await end_of(platform, handle)).state is JobState.COMPLETE
    assert runs(handle) == 1


async def test_a_process_that_dies_before_its_claim_leaves_no_secrets(
    platform: ProcessPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_tao.platforms.process.submit.STARTER", "/no/such/starter.py")
    with pytest.raises(SubmitFailed, match="before it could start"):
        await platform.submit(platform.render(job(LONG), new_key(), 1), SECRET)
    assert secrets_left(platform) == []


async def test_a_disk_that_falls_silent_after_the_start_is_doubt_and_no_refusal(
    platform: ProcessPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    rendered = platform.render(job('echo "$TOKEN" | rev'), new_key(), 1)
    with monkeypatch.context() as broken:
        broken.setattr(JobStarter, "_await_any_claim", staticmethod(silent))
        with pytest.raises(Unreachable, match="whether the job started"):
            await platform.submit(rendered, SECRET)

    async def claimed() -> bool:
        return (platform.root / "jobs" / f"tao-{rendered.key}-1" / job_folder.CLAIM).exists()

    await until(claimed)
    handle = await platform.submit(rendered, SECRET)
    assert (await end_of(platform, handle)).state is JobState.COMPLETE
    assert SECRET["TOKEN"][::-1] in (await platform.logs(handle)).text
    assert secrets_left(platform) == []


async def test_secrets_that_a_dead_launcher_brought_are_swept_and_the_job_can_still_be_launched(
    platform: ProcessPlatform,
) -> None:
    key = stage_only(platform, 'echo "$TOKEN" | rev')
    (handle,) = (await platform.find([key]))[key]
    brought = folder_of(platform, handle) / f"{job_folder.SECRETS}dead.json"
    for sweep in (platform.jobs, lambda: start(again(platform), "true")):
        brought.write_text(json.dumps(SECRET))
        await sweep()
        assert brought.exists(), "its launcher may be about to start it"
        long_ago = time.time() - 2 * ABANDONED_SECONDS
        os.utime(brought, (long_ago, long_ago))
        await sweep()
        assert not brought.exists()
    launched = await launch(again(platform), job('echo "$TOKEN" | rev'), key, SECRET)
    assert (await end_of(platform, launched.handle)).state is JobState.COMPLETE
    assert SECRET["TOKEN"][::-1] in (await platform.logs(launched.handle)).text


async def test_the_secrets_of_a_job_that_was_killed_while_it_waited_are_swept(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    left = folder_of(platform, handle) / f"{job_folder.SECRETS}waiting.json"
    left.write_text(json.dumps(SECRET))
    assert handle in await platform.jobs()
    assert left.exists(), "the job goes on"
    kill(*members(platform, handle))
    await platform.jobs()
    assert not left.exists()


async def test_a_process_that_comes_too_late_removes_the_secrets_it_brought(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    brought = folder_of(platform, handle) / f"{job_folder.SECRETS}late.json"
    brought.write_text(json.dumps(SECRET))
    words = [sys.executable, "-I", "-S", str(STARTER), str(folder_of(platform, handle))]
    subprocess.run(words, env={**os.environ, "TAO_SECRETS_FILE": str(brought)}, check=True)
    assert not brought.exists()


# -- GPUs --------------------------------------------------------------------------------------------------------------

SHOW = "echo devices=$CUDA_VISIBLE_DEVICES.;"


@pytest.fixture
def two_gpus(platform: ProcessPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessPlatform:
    monkeypatch.setenv("PREFECT_TAO_GPUS", "0,1")
    monkeypatch.setenv("PREFECT_TAO_GPU_LOCKS", str(tmp_path / "locks"))
    return platform


async def devices(platform: ProcessPlatform, handle: JobHandle) -> str:
    log = await says(platform, handle, "devices=")
    return log.partition("devices=")[2].partition(".")[0]


async def test_two_jobs_never_share_a_gpu_and_a_third_waits_for_one(two_gpus: ProcessPlatform) -> None:
    one_gpu = {"gpus": 1}
    first, second = [await start(two_gpus, f"{SHOW} {LONG}", resources=one_gpu) for _ in range(2)]
    assert {await devices(two_gpus, first), await devices(two_gpus, second)} == {"0", "1"}
    third = await start(two_gpus, SHOW, resources=one_gpu)
    without = await start(two_gpus, SHOW)
    assert await devices(two_gpus, without) == ""
    now = await seen(two_gpus, third)
    assert (now.state, now.reason) == (JobState.PENDING, "waiting for a free GPU")
    freed = await devices(two_gpus, second)
    await two_gpus.cancel([second], timeout=5)
    assert await devices(two_gpus, third) == freed
    assert (await end_of(two_gpus, third)).state is JobState.COMPLETE


async def test_jobs_that_need_all_gpus_take_turns(two_gpus: ProcessPlatform) -> None:
    handles = [await start(two_gpus, f"{SHOW} sleep 0.1", resources={"gpus": 2}) for _ in range(3)]
    ends = await asyncio.gather(*(end_of(two_gpus, handle) for handle in handles))
    assert [end.state for end in ends] == [JobState.COMPLETE] * 3
    assert [await devices(two_gpus, handle) for handle in handles] == ["0,1"] * 3
    times = sorted((end.started_at, end.ended_at) for end in ends if end.started_at and end.ended_at)
    assert all(before[1] <= after[0] for before, after in pairwise(times))


async def test_a_gpu_is_free_when_the_last_process_on_it_is_gone_and_not_before(two_gpus: ProcessPlatform) -> None:
    both = {"gpus": 2}
    handle = await start(two_gpus, f"{SHOW} {LONG}", resources=both)
    await devices(two_gpus, handle)
    kill(runner(handle))
    waiting = await start(two_gpus, SHOW, resources=both)
    await asyncio.sleep(1.0)
    assert (await seen(two_gpus, waiting)).state is JobState.PENDING
    kill(*members(two_gpus, handle))
    assert (await end_of(two_gpus, waiting)).state is JobState.COMPLETE


async def test_a_job_that_waits_for_a_gpu_needs_nobody_to_wait_with_it(two_gpus: ProcessPlatform) -> None:
    first = await start(two_gpus, f"{SHOW} {LONG}", resources={"gpus": 2})
    await devices(two_gpus, first)
    words = [sys.executable, "-c", LAUNCHER.replace("command=command", "command=command, resources={'gpus': 1}")]
    words += [str(two_gpus.root), new_key(), SHOW]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout
        handle = JobHandle.model_validate_json(launcher.stdout.readline())
        launcher.kill()
    assert (await seen(two_gpus, handle)).state is JobState.PENDING
    await two_gpus.cancel([first], timeout=5)

    async def complete() -> bool:
        return (await seen(two_gpus, handle)).state is JobState.COMPLETE

    assert await until(complete)
