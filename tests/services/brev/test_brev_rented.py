"""A job on an instance of its own: rented under its name, priced, given back in every case, and known afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import boto3  # type: ignore[import-untyped]
import debian
import pytest
from brev_cloud import BrevCloud, brev_cloud
from docker_engine import PYTHON, Engine
from opened_platforms import KEYS, brev_at
from runner_tools import Bucket
from s3_server import S3Server

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, Unreachable
from prefect_tao.jobs.following import follow
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.verdict import Category
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms.brev import leftovers as left
from prefect_tao.platforms.brev import render
from prefect_tao.platforms.brev.driver import BrevPlatform
from prefect_tao.storage.result_files import Results
from prefect_tao.testing.contract import until

pytestmark = pytest.mark.xdist_group("docker")
PACKAGES = str(Path(boto3.__file__).parents[1])
LONG = "echo begun; sleep 300"


@pytest.fixture
def cloud(engine: Engine, another_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrevCloud]:
    """Two instances can run at once, each before an engine of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="tao-brev-") as folder,
        brev_cloud(Path(folder), [engine, another_engine]) as running,
    ):
        monkeypatch.setenv("PATH", f"{folder}/bin:{debian.PATH}")
        monkeypatch.setenv("HOME", f"{folder}/home")
        yield running


@pytest.fixture
def bucket(s3_server: S3Server) -> Bucket:
    return Bucket(s3_server.endpoint)


def settings_for(bucket: Bucket) -> dict[str, Any]:
    return {
        "network": "host",
        "s3_bucket_name": bucket.name,
        "s3_endpoint_url": bucket.env["AWS_ENDPOINT_URL"],
        "mounts": [f"{PACKAGES}:{PACKAGES}:ro"],
        "env": {"PYTHONPATH": PACKAGES},
        "instance_types": ["g5.xlarge"],
    }


@pytest.fixture
async def platform(cloud: BrevCloud, bucket: Bucket) -> AsyncIterator[BrevPlatform]:
    opened = brev_at(**settings_for(bucket))
    yield opened
    await opened.close()


def request(command: str, **fields: Any) -> JobRequest:
    return JobRequest.build(command=command, image=PYTHON, secrets=list(KEYS), **fields)


async def rents(cloud: BrevCloud, count: int) -> None:
    """Returns when so many instances cost money."""

    async def there() -> bool:
        return len(cloud.paid) >= count

    await until(there, 30)


async def seen(platform: BrevPlatform, handle: JobHandle, *states: JobState) -> Observation:
    async with asyncio.timeout(60):
        while True:
            found = (await platform.observe([handle])).get(handle)
            if found and found.state in states:
                return found
            await asyncio.sleep(0.2)


async def test_a_step_rents_one_instance_tells_its_cost_and_leaves_none(
    platform: BrevPlatform, cloud: BrevCloud, bucket: Bucket
) -> None:
    asked = request("echo hello; sleep 2; echo model > $TAO_RESULTS_DIR/model.pth")
    launched = await launch(platform, asked, token_hex(8), KEYS)
    (name,) = cloud.paid
    assert name == platform.instance_of(launched.handle)
    running = await seen(platform, launched.handle, JobState.RUNNING)
    assert "g5.xlarge at $1.20 an hour, up to $0.10 so far" in running.reason
    rows = await platform.list_instances()
    assert [(row["name"], row["price_per_hour"], row["job"]) for row in rows] == [(name, 1.2, launched.handle.name)]
    outcome = await follow(Watcher(platform), asked, launched.handle, KEYS)
    assert outcome.state is JobState.COMPLETE
    assert any(path.endswith("model.pth") for path in outcome.files)
    assert cloud.instances == []
    # Afterwards it is known as if it were still there, also to another process.
    later = brev_at(**settings_for(bucket))
    (found,) = (await later.find([launched.handle.key]))[launched.handle.key]
    assert (found, found.site, found.native_id) == (launched.handle, launched.handle.site, launched.handle.native_id)
    assert (await later.observe([found]))[found].state is JobState.COMPLETE
    assert "hello\n" in (await later.logs(found)).text
    again = await launch(later, asked, launched.handle.key, KEYS)
    assert (again.adopted, cloud.made) == (True, 1)
    assert await later.submit(later.render(asked, found.key, 1), KEYS) == found
    assert (cloud.made, cloud.paid) == (1, [])
    assert not [call for call in cloud.calls if call["argv"][0] in ("exec", "copy", "login")]


async def test_a_job_that_fails_is_given_back_and_its_verdict_is_kept(platform: BrevPlatform, cloud: BrevCloud) -> None:
    asked = request("echo 'ValueError: num_classes is 3' >&2; exit 3")
    handle = (await launch(platform, asked, token_hex(8), KEYS)).handle
    outcome = await follow(Watcher(platform), asked, handle, KEYS)
    assert (outcome.state, cloud.instances) == (JobState.ERROR, [])
    verdict = await platform.diagnose(handle)
    assert (verdict.category, verdict.exit_code) == (Category.PROGRAM, 3)
    assert "num_classes is 3" in verdict.cause


async def test_cancelling_gives_back_what_runs_and_what_only_boots(platform: BrevPlatform, cloud: BrevCloud) -> None:
    running = (await launch(platform, request(LONG), token_hex(8), KEYS)).handle
    await seen(platform, running, JobState.RUNNING)
    cloud.boot = 1000
    launching = asyncio.create_task(launch(platform, request(LONG), token_hex(8), KEYS))
    await rents(cloud, 2)
    jobs = await platform.jobs()
    assert len(jobs) == 2
    (booting,) = [handle for handle in jobs if handle != running]
    found = await seen(platform, booting, JobState.PENDING)
    assert "deploying" in found.reason
    ends = await brev_at(**platform.options.model_dump()).cancel(jobs, timeout=30)
    assert {end.state for end in ends.values()} == {JobState.CANCELED}
    assert (await launching).handle == booting
    assert cloud.instances == []
    assert (await platform.observe([booting]))[booting].state is JobState.CANCELED


async def test_a_refused_image_and_a_cancelled_launch_leave_no_instance(
    platform: BrevPlatform, cloud: BrevCloud
) -> None:
    asked = JobRequest.build(command="true", image="tao-test:none", secrets=list(KEYS))
    with pytest.raises(SubmitFailed):
        await platform.submit(platform.render(asked, token_hex(8), 1), KEYS)
    assert cloud.instances == []
    cloud.boot = 1.0
    launching = asyncio.create_task(platform.submit(platform.render(request(LONG), token_hex(8), 1), KEYS))
    await rents(cloud, 1)
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert cloud.paid == []


async def test_an_instance_that_is_taken_away_ends_the_attempt_and_the_next_one_rents_anew(
    platform: BrevPlatform, cloud: BrevCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_tao.platforms.brev.driver.GONE_SECONDS", 0.0)
    handle = (await launch(platform, request(LONG), token_hex(8), KEYS)).handle
    await seen(platform, handle, JobState.RUNNING)
    subprocess.run(["brev", "delete", platform.instance_of(handle)], stdin=subprocess.DEVNULL, check=True)
    end = await seen(platform, handle, JobState.ERROR)
    assert "the instance is gone" in end.reason
    assert (await platform.diagnose(handle)).category is Category.NODE_FAILURE
    again = (await launch(platform, request("true"), handle.key, KEYS)).handle
    assert (again.attempt, cloud.made) == (2, 2)
    await platform.cancel([again], timeout=30)
    assert cloud.paid == []


async def test_the_price_stands_in_the_probe_and_a_launch_cannot_pass_the_limit(
    cloud: BrevCloud, bucket: Bucket
) -> None:
    findings = await brev_at(**settings_for(bucket)).probe(request("true"))
    (price,) = [one.message for one in findings if one.subject == "price"]
    assert price == "price: $1.20 an hour (g5.xlarge); the instance is deleted after the job"
    limited = brev_at(**{**settings_for(bucket), "max_price_per_hour": 1.0})
    assert any(one.blocks and "allows $1 an hour" in one.message for one in await limited.probe(request("true")))
    with pytest.raises(InvalidInput, match=r"allows \$1 an hour"):
        await limited.submit(limited.render(request("true"), token_hex(8), 1), KEYS)
    assert (cloud.made, cloud.paid) == (0, [])


def test_without_a_place_for_results_nothing_is_opened() -> None:
    with pytest.raises(InvalidInput, match="results would end with the instance") as caught:
        brev_at()
    assert all(word in caught.value.remedy for word in ("S3_BUCKET_NAME", "TAO_RESULTS_ROOT", "instance of yours"))
    with pytest.raises(InvalidInput, match="results is not an absolute path"):
        brev_at(results_root="results")


async def test_a_folder_here_that_cannot_be_written_is_found_before_anything_is_rented(
    cloud: BrevCloud, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    findings = await brev_at(results_root=str(tmp_path / "file")).probe(request("true"))
    assert [(one.subject, one.blocks) for one in findings if one.blocks] == [("results", True)]
    assert cloud.made == 0


# -- without a bucket --------------------------------------------------------------------------------------------------


@pytest.fixture
async def carried(cloud: BrevCloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BrevPlatform]:
    """Results lie on the instance's own disk, and are copied to this machine."""
    monkeypatch.setattr(render, "ON_INSTANCE", str(tmp_path / "disk of the instance"))
    opened = brev_at(network="none", results_root=str(tmp_path / "here"), instance_types=["g5.xlarge"])
    yield opened
    await opened.close()


MAKE = """cd "$TAO_RESULTS_DIR"; mkdir 'a b'; echo 1 > 'a b/ü.txt'; head -c 3000000 /dev/zero > model.pth; echo made"""


async def test_without_a_bucket_results_are_copied_here_before_the_instance_is_deleted(
    carried: BrevPlatform, cloud: BrevCloud, tmp_path: Path
) -> None:
    asked = request(MAKE)
    handle = (await launch(carried, asked, token_hex(8), KEYS)).handle
    assert handle.results == str(tmp_path / "here" / handle.key)
    outcome = await follow(Watcher(carried), asked, handle, KEYS)
    assert (outcome.state, cloud.instances) == (JobState.COMPLETE, [])
    assert f"{handle.results}/results_dir/model.pth" in outcome.files
    made = tmp_path / "disk of the instance" / handle.key / "results_dir"
    kept = Path(handle.results, "results_dir")
    for name in ("model.pth", "a b/ü.txt"):
        assert (kept / name).read_bytes() == (made / name).read_bytes()
    shutil.rmtree(tmp_path / "disk of the instance")
    # Afterwards it is known as if it were still there, also to another process.
    later = brev_at(**carried.options.model_dump())
    (found,) = (await later.find([handle.key]))[handle.key]
    assert (await later.observe([found]))[found].state is JobState.COMPLETE
    assert "made\n" in (await later.logs(found)).text
    assert {file.name for file in await Results(later, found).files()} == {
        "results_dir/model.pth",
        "results_dir/a b/ü.txt",
    }
    assert (await launch(later, asked, handle.key, KEYS)).adopted
    assert (cloud.made, cloud.paid) == (1, [])


async def test_results_that_could_not_be_copied_keep_their_instance_until_the_sweep_has_them(
    carried: BrevPlatform, cloud: BrevCloud, caplog: pytest.LogCaptureFixture
) -> None:
    asked = request(MAKE)
    handle = (await launch(carried, asked, token_hex(8), KEYS)).handle
    obstacle = Path(handle.results, "results_dir")
    obstacle.write_text("no folder")
    outcome = await follow(Watcher(carried), asked, handle, KEYS)
    assert outcome.state is JobState.COMPLETE
    assert cloud.paid == [carried.instance_of(handle)]
    assert "are not all here yet, so" in caplog.text
    assert "is kept and costs $1.20 an hour" in caplog.text
    assert "prefect-tao brev sweep" in caplog.text
    later = brev_at(**carried.options.model_dump())
    (one,) = await left.leftovers(later)
    with pytest.raises(Unreachable, match="is kept and costs"):
        await left.give_back(later, one)
    assert cloud.paid == [carried.instance_of(handle)]
    obstacle.unlink()
    await left.give_back(later, one)
    assert (cloud.paid, (obstacle / "model.pth").stat().st_size) == ([], 3000000)


async def test_only_own_instances_are_deleted_by_name(platform: BrevPlatform, cloud: BrevCloud) -> None:
    cloud.add("somebody-s")
    with pytest.raises(InvalidInput, match="was not made for a job of me"):
        await platform.delete_instance("somebody-s")
    handle = (await launch(platform, request(LONG), token_hex(8), KEYS)).handle
    made = cloud.find(platform.instance_of(handle))
    assert made
    assert await platform.delete_instance(made.id)
    assert cloud.paid == ["somebody-s"]
    assert await platform.delete_instance(made.id)


# -- launchers that die ------------------------------------------------------------------------------------------------

LAUNCHER = """
import asyncio, json, sys
from opened_platforms import KEYS, brev_at
from prefect_tao.jobs.following import follow
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.watcher import Watcher
settings, key = json.loads(sys.argv[1]), sys.argv[2]
async def main():
    platform = brev_at(**settings)
    request = JobRequest.build(command="echo begun; sleep 1", image="tao-test:python", secrets=list(KEYS))
    launched = await launch(platform, request, key, KEYS)
    await follow(Watcher(platform), request, launched.handle, KEYS)
asyncio.run(main())
"""


async def killed_then_swept(cloud: BrevCloud, bucket: Bucket, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher is killed after it has rented; what costs money is listed as a job, and the sweep gives it back."""
    key = token_hex(8)
    words = [sys.executable, "-c", LAUNCHER, json.dumps(settings_for(bucket)), key]
    support = str(Path(__file__).parents[2] / "support")
    child = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": support}, start_new_session=True)
    made = cloud.made
    await until(lambda: asyncio.to_thread(lambda: cloud.made > made), 60)
    try:
        await asyncio.to_thread(child.wait, seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    platform = brev_at(**settings_for(bucket))
    assert [platform.instance_of(handle) for handle in await platform.jobs()] == cloud.paid
    monkeypatch.setattr(left, "PULL_SECONDS", -3600.0)  # no launch goes on: it was killed
    async with asyncio.timeout(60):
        while cloud.paid:
            for one in await left.leftovers(platform):
                if one.may_go:
                    await left.give_back(platform, one)
            await asyncio.sleep(0.3)
    await platform.close()


@pytest.mark.parametrize("seconds", [0.0, 3.0])
async def test_what_a_killed_launcher_rented_is_listed_and_swept(
    cloud: BrevCloud, bucket: Bucket, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    await killed_then_swept(cloud, bucket, seconds, monkeypatch)
    assert cloud.paid == []


@pytest.mark.long
async def test_wherever_a_launcher_is_killed_nothing_stays_rented(
    cloud: BrevCloud, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await killed_then_swept(cloud, bucket, 0.4 * number, monkeypatch)
        assert cloud.paid == []


async def test_the_sweep_leaves_alone_what_runs_what_is_being_launched_and_what_is_not_ours(
    platform: BrevPlatform, cloud: BrevCloud, bucket: Bucket
) -> None:
    cloud.add("tao-00000000-0123456789abcdef-1")
    cloud.faults["boot"] = deque()
    handle = (await launch(platform, request(LONG), token_hex(8), KEYS)).handle
    await seen(platform, handle, JobState.RUNNING)
    (one,) = await left.leftovers(platform)
    assert (one.handle, one.may_go, one.why) == (handle, False, "its job is Running")
    await platform.cancel([handle], timeout=30)
    assert await left.leftovers(platform) == []
    assert cloud.paid == ["tao-00000000-0123456789abcdef-1"]
