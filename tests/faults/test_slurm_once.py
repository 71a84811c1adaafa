"""One job per name on SLURM, whatever breaks between the launcher, the login node and the controller."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest
from opened_platforms import slurm_at
from slurm_cluster import Cluster
from slurm_faults import (
    COUNTED,
    LONG,
    Launcher,
    again,
    end_of,
    folder_of,
    job,
    known_ids,
    left_over,
    new_key,
    queued,
    reaches,
    runs,
    seen,
    settings,
    start,
    until,
)

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.driver import SlurmPlatform

pytestmark = pytest.mark.xdist_group("slurm")
QUICK = 5
FULL = 50


def seeds() -> list[object]:
    return [seed if seed < QUICK else pytest.param(seed, marks=pytest.mark.long) for seed in range(FULL)]


async def ran_once(cluster: Cluster, platform: SlurmPlatform, handle: JobHandle) -> None:
    """The job ends well, its command has run once, and nothing waits or lies around under its name."""
    assert (await end_of(platform, handle)).state is JobState.COMPLETE

    async def alone() -> bool:
        await seen(again(platform), handle)  # whoever looks takes surplus jobs out of the queue
        return handle.name not in queued(cluster)

    await until(alone)
    assert runs(platform, handle.key) == 1
    assert [found.attempt for found in (await platform.find([handle.key]))[handle.key]] == [1]
    assert left_over(platform) == []


# -- lost replies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost-reply", "cut-before", "timeout-after", "timeout-before"])
async def test_a_submission_that_nobody_heard_of_makes_one_job(
    cluster: Cluster, platform: SlurmPlatform, fault: str
) -> None:
    cluster.shim("sbatch", fault, times=1)
    launched = await launch(platform, job(COUNTED), new_key(), {"TOKEN": "t"})
    await ran_once(cluster, platform, launched.handle)
    assert len(known_ids(cluster, launched.handle.name)) == 1
    was_made = fault in ("lost-reply", "timeout-after")
    assert len(cluster.shim_calls("sbatch")) == (1 if was_made else 2)


async def test_a_refusal_of_a_job_that_has_run_is_none(cluster: Cluster, platform: SlurmPlatform) -> None:
    cluster.shim("sbatch", "fail-late:4:sbatch: error: something odd has happened:1", times=1)
    launched = await launch(platform, job(COUNTED), new_key(), {"TOKEN": "t"})
    await ran_once(cluster, platform, launched.handle)
    assert len(known_ids(cluster, launched.handle.name)) == 1


async def test_a_launch_is_not_refused_for_what_a_killed_launcher_has_left_under_its_name(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    killed, key = again(platform), new_key()
    cluster.shim("sbatch", "cut-before", times=1)
    endless = job(COUNTED, secrets=["TOKEN"], resources={"time_limit": 5 * 3600.0})  # more than the partition allows
    with pytest.raises(Unreachable):
        await killed.submit(killed.render(endless, key, 1), {"TOKEN": "t"})
    await killed.close()
    platform.denial_seconds = 1.0
    good = job(f"test $TOKEN = t && {COUNTED}", secrets=["TOKEN"])
    launched = await launch(platform, good, key, {"TOKEN": "t"})
    assert (launched.handle.digest, launched.findings) == (good.digest, ())
    await ran_once(cluster, platform, launched.handle)
    with pytest.raises(SubmitFailed):
        await launch(platform, endless, new_key(), {"TOKEN": "t"})


async def test_a_controller_that_is_away_during_the_launch_gets_the_job_once_it_is_back(
    clean_cluster: Cluster, platform: SlurmPlatform
) -> None:
    await platform.site()  # known from a launch before; else the launch waits for it, and tries nothing
    clean_cluster.stop_daemon("slurmctld")
    launching = asyncio.create_task(launch(platform, job(COUNTED), new_key(), {}))

    async def tried() -> bool:
        return any(Path(platform.place.jobs).glob(f"tao-*/{layout.TRY}"))

    await until(tried)
    clean_cluster.start_daemon("slurmctld")
    await ran_once(clean_cluster, platform, (await launching).handle)


async def test_a_job_that_shows_up_late_beside_its_repetition_runs_nothing(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    handle = await start(platform, COUNTED)
    assert (await end_of(platform, handle)).state is JobState.COMPLETE
    folder = folder_of(platform, handle)
    late = cluster.run(f"cd {folder.parent} && sbatch --parsable {handle.name}/{layout.SCRIPT}", check=True).stdout
    cluster.wait_state(late.strip(), "COMPLETED")
    assert (folder / layout.CLAIM).readlink() == Path(handle.native_id)
    assert runs(platform, handle.key) == 1
    assert (await seen(again(platform), handle)).state is JobState.COMPLETE


async def test_a_repetition_that_waits_is_taken_out_of_the_queue(cluster: Cluster, platform: SlurmPlatform) -> None:
    handle = await start(platform, LONG)
    await reaches(platform, handle, JobState.RUNNING)
    folder = folder_of(platform, handle)
    script = f"{handle.name}/{layout.SCRIPT}"
    late = cluster.run(f"cd {folder.parent} && sbatch --parsable --hold {script}", check=True).stdout.strip()
    assert (await seen(platform, handle)).state is JobState.RUNNING
    assert cluster.wait_state(late, "CANCELLED")
    assert (await seen(platform, handle)).state is JobState.RUNNING


async def test_two_who_know_different_ids_of_one_name_keep_the_same_job(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    handle = await start(again(platform, extra_flags=["--begin=now+1hour"]), LONG)
    script = f"{folder_of(platform, handle).parent}/{handle.name}/{layout.SCRIPT}"
    late = cluster.run(f"sbatch --parsable {script}", check=True).stdout.strip()
    for id in (late, handle.native_id):
        other = handle.model_copy(update={"native_id": id})
        assert (await seen(again(platform), other)).state is JobState.PENDING
    assert cluster.job_state(handle.native_id) == "PENDING"
    assert cluster.wait_state(late, "CANCELLED")


async def test_the_repetition_that_starts_first_has_the_name_and_is_not_cancelled(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    handle = await start(again(platform, extra_flags=["--begin=now+1hour"]), f"{COUNTED}; sleep 1")
    folder = folder_of(platform, handle)
    words = f"sbatch --parsable --begin=now {handle.name}/{layout.SCRIPT}"
    quicker = cluster.run(f"cd {folder.parent} && {words}", check=True).stdout.strip()
    cluster.wait_state(quicker, "RUNNING", "COMPLETED")
    await reaches(platform, handle, JobState.RUNNING, JobState.COMPLETE)  # once it has claimed the name
    await ran_once(cluster, platform, handle)
    assert (folder / layout.CLAIM).readlink() == Path(quicker)
    assert cluster.job_state(handle.native_id) == "CANCELLED"


async def test_what_a_killed_launcher_has_staged_is_removed_by_a_later_one(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    jobs = platform.place.jobs
    old, new = f"{jobs}/{layout.INCOMING}old", f"{jobs}/{layout.INCOMING}new"
    cluster.run(f"mkdir -p {old} {new} && touch {old}/batch.tgz && touch -d '2 hours ago' {old}", check=True)
    await start(platform, "true")
    assert left_over(platform) == [Path(new).name]  # whoever made this one may still be at work


async def test_a_changed_request_for_a_job_that_waits_is_told(platform: SlurmPlatform) -> None:
    later, key = again(platform, extra_flags=["--begin=now+1hour"]), new_key()
    first = await launch(later, job(LONG), key, {})
    assert first.findings == ()
    second = await launch(again(platform), job("true"), key, {})
    assert second.handle.native_id == first.handle.native_id
    assert second.handle.digest == first.handle.digest
    assert [finding.subject for finding in second.findings] == ["request"]
    await later.close()


# -- names that others use ---------------------------------------------------------------------------------------------


async def test_a_job_of_somebody_else_under_our_name_is_neither_taken_for_ours_nor_touched(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    key = new_key()
    foreign = cluster.run(
        f"sbatch --parsable --job-name=tao-{key}-1 --output=/dev/null --wrap 'sleep 300'", check=True
    ).stdout.strip()
    assert (await platform.find([key]))[key] == []
    handle = (await launch(platform, job(COUNTED), key, {})).handle
    assert handle.native_id != foreign
    assert (await end_of(platform, handle)).state is JobState.COMPLETE
    assert runs(platform, key) == 1
    await again(platform).cancel([handle])
    assert cluster.job_state(foreign) in ("PENDING", "RUNNING")
    assert (await seen(again(platform), handle)).state is JobState.COMPLETE


async def test_a_waiting_job_of_somebody_else_under_our_name_is_not_cancelled_as_surplus(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    handle = await start(platform, LONG)
    await reaches(platform, handle, JobState.RUNNING)
    foreign = cluster.run(
        f"sbatch --parsable --hold --job-name={handle.name} --output=/dev/null --wrap true", check=True
    ).stdout.strip()
    assert (await seen(platform, handle)).state is JobState.RUNNING
    assert (await platform.cancel([handle]))[handle].state is JobState.CANCELED
    assert cluster.job_state(foreign) == "PENDING"


async def test_a_folder_of_somebody_else_under_our_name_is_left_alone(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    key = new_key()
    folder = Path(platform.place.job(key, 1))
    cluster.run(f"mkdir -p {folder} && echo mine > {folder}/notes", check=True)
    with pytest.raises(SubmitFailed) as refused:
        await start(platform, COUNTED, key)
    assert str(folder) in refused.value.cause
    assert refused.value.remedy
    assert [path.name for path in folder.iterdir()] == ["notes"]
    assert left_over(platform) == []
    assert queued(cluster) == []


# -- cut connections, killed launchers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds())
async def test_a_connection_cut_at_any_moment_of_a_submission_leaves_one_job(
    cluster: Cluster, platform: SlurmPlatform, seed: int
) -> None:
    await platform.login.connect()
    launching = asyncio.create_task(launch(platform, job(COUNTED), new_key(), {"TOKEN": "t"}))
    await asyncio.sleep(random.Random(seed).uniform(0.02, 0.2))
    await asyncio.to_thread(cluster.kill_ssh_sessions)
    await ran_once(cluster, platform, (await launching).handle)


@pytest.mark.parametrize("seed", seeds())
async def test_a_launcher_killed_at_any_moment_leaves_one_job(cluster: Cluster, seed: int) -> None:
    given, key = settings(cluster), new_key()
    doomed = Launcher(given, key, COUNTED)
    doomed.go()
    time.sleep(random.Random(seed).uniform(0.0, 0.3))
    doomed.kill()
    last = Launcher(given, key, COUNTED)
    last.go()
    assert await asyncio.to_thread(last.end) == JobState.COMPLETE
    platform = slurm_at("slurm/loopback", **given)
    assert runs(platform, key) == 1
    assert [handle.attempt for handle in (await platform.find([key]))[key]] == [1]
    assert queued(cluster) == []


@pytest.mark.parametrize("launchers", [2, pytest.param(8, marks=pytest.mark.long)])
async def test_launchers_with_one_key_at_once_make_one_job(cluster: Cluster, launchers: int) -> None:
    given, key = settings(cluster), new_key()
    running = [Launcher(given, key, f"{COUNTED}; sleep 0.3") for _ in range(launchers)]
    for one in running:
        one.go()
    assert {await asyncio.to_thread(one.end) for one in running} == {JobState.COMPLETE}
    platform = slurm_at("slurm/loopback", **given)
    assert runs(platform, key) == 1
    assert queued(cluster) == []
    assert left_over(platform) == []
