"""Jobs that the controller has forgotten are known by what they left, by accounting, or to be gone; never to be new."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from slurm_cluster import Cluster
from slurm_faults import LONG, again, end_of, folder_of, open_platform, says, seen, start, until
from slurm_fixture import PREFIX, own

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import EndedBy, JobState
from prefect_tao.platforms.markers import has_ended, read_object
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.driver import SlurmPlatform

pytestmark = pytest.mark.xdist_group("slurm")


@pytest.fixture(scope="module")
def forgetful(cluster: Cluster) -> Iterator[Cluster]:
    """A second cluster without accounting, whose controller forgets a finished job as soon as it can."""
    base = Path(tempfile.mkdtemp(prefix=PREFIX))
    base.chmod(0o755)
    own(base, os.getpid())
    running = Cluster(base, accounting=False, nodes=1, min_job_age=2)
    try:
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
async def lonely(forgetful: Cluster) -> AsyncIterator[SlurmPlatform]:
    opened = open_platform(forgetful)
    yield opened
    await opened.close()


def kill_whole(handle: JobHandle) -> None:
    """Kill a job together with its batch script: nothing is left that could tell."""
    mark = f"SLURM_JOB_NAME={handle.name}\0".encode()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark in Path(f"/proc/{entry}/environ").read_bytes():
                script = b"slurm_script" in Path(f"/proc/{entry}/cmdline").read_bytes()
                if script:
                    os.kill(int(entry), signal.SIGKILL)


async def forgotten(cluster: Cluster, *handles: JobHandle) -> None:
    """Returns when the controller does not know the jobs any more."""

    async def unknown() -> bool:
        return not any(cluster.job_state(handle.native_id) for handle in handles)

    await until(unknown, 60)


async def test_without_accounting_what_a_job_left_tells_its_end_and_nothing_left_means_gone(
    forgetful: Cluster, lonely: SlurmPlatform
) -> None:
    good, bad, killed, cancelled = [await start(lonely, command) for command in ("true", "exit 6", LONG, LONG)]
    await asyncio.gather(says(lonely, killed, "begun"), says(lonely, cancelled, "begun"))
    kill_whole(killed)
    assert (await lonely.cancel([cancelled]))[cancelled].state is JobState.CANCELED
    await forgotten(forgetful, good, bad, killed, cancelled)
    assert not (folder_of(lonely, killed) / layout.EXIT).exists()
    fresh = again(lonely)
    assert (await end_of(fresh, good)).state is JobState.COMPLETE
    assert (await end_of(fresh, bad)).exit_code == 6
    assert (await end_of(fresh, cancelled)).ended_by is EndedBy.CANCEL
    assert (await seen(fresh, killed)).state is JobState.UNREACHABLE
    fresh.gone_seconds = 0.5
    gone = await end_of(fresh, killed)
    assert (gone.state, gone.native_state) == (JobState.ERROR, "gone")
    assert "accounting is off" in gone.evidence
    # None of them is new: whoever launches again finds them.
    found = await fresh.find([handle.key for handle in (good, bad, killed, cancelled)])
    assert [len(attempts) for attempts in found.values()] == [1, 1, 1, 1]
    assert (await seen(again(lonely), killed)).native_state == "gone"
    await fresh.close()


async def test_a_job_whose_folder_was_removed_is_still_known_by_its_results(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    handle = await start(platform, "true")
    await end_of(platform, handle)
    shutil.rmtree(folder_of(platform, handle))
    found = (await again(platform).find([handle.key]))[handle.key]
    assert [(each.attempt, each.native_id) for each in found] == [(1, handle.native_id)]


async def test_files_that_are_torn_hide_no_job(cluster: Cluster, platform: SlurmPlatform) -> None:
    handle = await start(platform, "exit 3")
    await end_of(platform, handle)
    record = Path(platform.place.results_of(handle.key)) / "attempts" / "1.json"
    for text in ('{"key": "x', '{"key": "x", "of": "a later version"}', "[1]", ""):
        for path in (folder_of(platform, handle) / layout.HANDLE, record):
            path.write_text(text)
        fresh = again(platform)
        assert [each.native_id for each in (await fresh.find([handle.key]))[handle.key]] == [handle.native_id]
        assert [each.name for each in await fresh.jobs()] == [handle.name]
        assert (await fresh.diagnose(handle)).cause
        assert (await fresh.cancel([handle]))[handle].state is JobState.ERROR
        await fresh.close()


async def test_what_the_queue_has_forgotten_accounting_tells(cluster: Cluster, platform: SlurmPlatform) -> None:
    lone, by_hand, fine = [await start(platform, command) for command in (LONG, LONG, "true")]
    contained = again(platform, use_sqsh=False)
    boxed = await start(contained, LONG, image="ubuntu:24.04")
    await contained.close()
    await asyncio.gather(*(says(platform, handle, "begun") for handle in (lone, by_hand, boxed)))
    kill_whole(lone)
    kill_whole(boxed)
    cluster.run(f"scancel {by_hand.native_id}", check=True)
    for handle in (lone, boxed, by_hand, fine):
        cluster.wait_state(handle.native_id, "FAILED", "CANCELLED", "COMPLETED")

    async def accounted() -> bool:
        ids = ",".join(handle.native_id for handle in (lone, boxed, by_hand))
        said = cluster.run(f"sacct -n -X -j {ids} -o State").stdout
        return said.count("FAILED") == 2 and "CANCELLED" in said

    await until(accounted)

    async def recorded() -> bool:  # SLURM tells the runner of the container to end, which then writes down that it was
        text = (Path(platform.place.results_of(boxed.key)) / "attempts" / "1.json").read_text()
        return has_ended(read_object(text))

    await until(recorded)
    # Its own marker would only say that somebody took its machine away, and that another attempt may help.
    assert (folder_of(platform, by_hand) / layout.EXIT).exists()
    cluster.shim("squeue", "fail::0")  # as after MinJobAge: a good answer without these jobs
    ends = await again(platform).observe([lone, boxed, by_hand, fine])
    assert {handle: end.state for handle, end in ends.items()} == {
        lone: JobState.ERROR,
        boxed: JobState.CANCELED,
        by_hand: JobState.CANCELED,
        fine: JobState.COMPLETE,
    }
    assert ends[lone].evidence == ends[boxed].evidence == "sacct"
    assert (ends[by_hand].native_state, ends[by_hand].ended_by) == ("CANCELLED", EndedBy.CANCEL)
    # Its runner ended together with the batch script, or was told to end and not why: then the machine was taken away,
    # and another attempt may help.
    assert (ends[lone].exit_code, ends[lone].ended_by) == (128 + signal.SIGKILL, EndedBy.NONE)
    assert (ends[boxed].exit_code, ends[boxed].ended_by) == (128 + signal.SIGKILL, EndedBy.PREEMPT)
    cluster.unshim("squeue")
    # An end that was told once stays, whoever is asked what.
    assert (await seen(again(platform), boxed)).same_as(ends[boxed])
