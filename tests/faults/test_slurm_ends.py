"""How SLURM ends jobs: requeued, preempted, on a dead node, out of memory, at the wall, cancelled in any state."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster
from slurm_faults import (
    COUNTED,
    LONG,
    again,
    end_of,
    folder_of,
    holds,
    job,
    known_ids,
    new_key,
    open_platform,
    queued,
    reaches,
    runs,
    says,
    seen,
    start,
    until,
)

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.following import follow
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.state import EndedBy, JobState
from prefect_tao.jobs.verdict import Category
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.driver import SlurmPlatform

pytestmark = pytest.mark.xdist_group("slurm")
SECRET = "secret-of-the-requeued-job"
# The first run waits for what will happen to it; the second one tells what it has and ends well.
TWICE = f'{COUNTED}; [ "$TAO_RESTARTS" = 0 ] && {{ echo begun; sleep 300; }}; printf "%s" "$TOKEN" | sha256sum'
# Goes on from its checkpoint, one epoch in 0.4 s, and says how far it is.
TRAINING = """
cd "$TAO_RESULTS_DIR"; n=0; [ -z "$TAO_RESUME_CHECKPOINT" ] || n=$(head -n 1 "$TAO_RESUME_CHECKPOINT")
while [ "$n" -lt {epochs} ]; do
    sleep {pace}; n=$((n + 1)); {{ echo "$n"; seq 100; }} > part; mv part "model_epoch_$n.pth"
    echo "{{\\"epoch\\": $n, \\"max_epoch\\": {epochs}, \\"kpi\\": {{\\"loss\\": 0.$((100 - n))}}}}" >> status.json
done
"""


EVENTS = ("requeued", "node_failed", "preempted", "timed_out")
# A container runs in a step of its own, anything else in the batch script: each has its own way to hear of its end.
FORMS: dict[str, dict[str, Any]] = {"in a container": {"image": "ubuntu:24.04"}, "without one": {}}
Slow = dict[tuple[str, str], tuple[SlurmPlatform, JobHandle]]


@pytest.fixture(scope="module")
def slow(cluster: Cluster) -> Iterator[Slow]:
    """Jobs whose ends take SLURM a while; they are brought about side by side, each kind on a node of its own."""
    nodes = {event: f"node{number}" for number, event in enumerate(EVENTS, 1)}
    platforms = {
        event: open_platform(cluster, use_sqsh=False, extra_flags=[f"--nodelist={node}"])
        for event, node in nodes.items()
    }

    async def begin(event: str, form: str) -> JobHandle:
        command = f"{COUNTED}; {LONG}" if event == "timed_out" else TWICE
        return await start(platforms[event], command, secrets={"TOKEN": SECRET}, **FORMS[form])

    async def begin_all() -> dict[tuple[str, str], JobHandle]:
        handles = {(event, form): await begin(event, form) for event in EVENTS for form in FORMS}
        for (event, _), handle in handles.items():
            await says(platforms[event], handle, "begun")
        for platform in platforms.values():
            await platform.close()
        return handles

    handles = asyncio.run(begin_all())
    for form in FORMS:
        cluster.run(f"scontrol requeue {handles['requeued', form].native_id}", check=True)
    cluster.admin(f"scontrol update nodename={nodes['node_failed']} state=down reason=test")
    urgent = f"sbatch -p urgent --nodelist={nodes['preempted']} --exclusive --output=/dev/null --wrap 'sleep 1'"
    cluster.run(urgent, check=True)
    for form in FORMS:
        cluster.time_out(handles["timed_out", form].native_id)
        failed = handles["node_failed", form]
        assert failed.native_id in known_ids(cluster, failed.name)
    cluster.admin(f"scontrol update nodename={nodes['node_failed']} state=resume")
    yield {(event, form): (again(platforms[event]), handle) for (event, form), handle in handles.items()}
    cluster.reset()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", ["requeued", "node_failed", "preempted"])
async def test_a_job_that_slurm_starts_again_keeps_its_id_and_its_secrets_and_ends_well(
    cluster: Cluster, slow: Slow, which: str, form: str
) -> None:
    first, handle = slow[which, form]
    platform = again(first)
    end = await end_of(platform, handle)
    assert (end.state, end.restarts, end.exit_code) == (JobState.COMPLETE, 1, 0)
    assert known_ids(cluster, handle.name) == [handle.native_id]
    assert runs(platform, handle.key) == 2  # the same job, run twice by SLURM itself
    assert hashlib.sha256(SECRET.encode()).hexdigest() in (await platform.logs(handle)).text
    assert not (folder_of(platform, handle) / layout.SECRETS).exists()
    await platform.close()


@pytest.mark.parametrize("form", FORMS)
async def test_a_job_at_slurms_wall_has_hit_its_time_limit(slow: Slow, form: str) -> None:
    first, handle = slow["timed_out", form]
    platform = again(first)
    end = await end_of(platform, handle)
    # SLURM warns first, and the command may have ended before SLURM ends it.
    assert (end.state, end.ended_by) == (JobState.ERROR, EndedBy.TIME_LIMIT)
    assert end.native_state in ("TIMEOUT", "FAILED")
    assert (await platform.diagnose(handle)).category is Category.TIME_LIMIT
    assert not (folder_of(platform, handle) / layout.SECRETS).exists()
    await platform.close()


def test_no_secret_is_left_when_all_of_them_are_over(slow: Slow) -> None:
    for platform, _ in slow.values():
        assert holds(Path(platform.place.base), SECRET) == []


# -- ends that come at once --------------------------------------------------------------------------------------------


async def test_a_requeued_job_waits_and_its_old_marker_does_not_count(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    cluster.run(f"scontrol requeue {handle.native_id}", check=True)

    async def waits() -> bool:
        return cluster.job_state(handle.native_id) == "PENDING"

    await until(waits)
    assert (folder_of(platform, handle) / layout.EXIT).exists()
    now = await seen(platform, handle)
    assert (now.state, now.restarts) == (JobState.PENDING, 1)
    assert (await platform.cancel([handle]))[handle].state is JobState.CANCELED
    assert (await seen(again(platform), handle)).ended_by is EndedBy.CANCEL


async def test_a_job_that_used_too_much_memory_says_so(cluster: Cluster, platform: SlurmPlatform) -> None:
    handle = await start(platform, LONG)
    await says(platform, handle, "begun")
    cluster.out_of_memory(handle.native_id)
    end = await end_of(platform, handle)
    assert (end.state, end.native_state) == (JobState.ERROR, "OUT_OF_MEMORY")
    verdict = await platform.diagnose(handle)
    assert verdict.category is Category.OUT_OF_MEMORY
    assert not verdict.retryable


async def test_after_a_node_has_failed_the_next_attempt_goes_elsewhere(
    clean_cluster: Cluster, platform: SlurmPlatform
) -> None:
    once = again(platform, use_requeue=False)
    handle = await start(once, LONG)
    await says(once, handle, "begun")
    (node,) = [replica.name for replica in await once.replicas(handle)]
    clean_cluster.admin(f"scontrol update nodename={node} state=down reason=test")
    end = await end_of(once, handle)
    assert (end.state, end.native_state) == (JobState.ERROR, "NODE_FAIL")
    verdict = await once.diagnose(handle)
    assert verdict.category is Category.NODE_FAILURE
    assert verdict.retryable
    assert [event.node for event in verdict.node_events] == [node]
    clean_cluster.admin(f"scontrol update nodename={node} state=resume")
    second = await start(once, LONG, key=handle.key, attempt=2)
    await says(once, second, "begun")
    assert [replica.name for replica in await once.replicas(second)] != [node]
    await once.close()


async def test_a_job_that_is_pushed_out_for_good_was_preempted(cluster: Cluster, platform: SlurmPlatform) -> None:
    cheap = again(platform, partition="grizzly", use_requeue=False, extra_flags=["--nodelist=node4"])
    handle = await start(cheap, LONG)
    await says(cheap, handle, "begun")
    cluster.run("sbatch -p urgent --nodelist=node4 --exclusive --output=/dev/null --wrap true", check=True)
    end = await end_of(cheap, handle)
    assert (end.state, end.ended_by, end.native_state) == (JobState.CANCELED, EndedBy.PREEMPT, "PREEMPTED")
    verdict = await cheap.diagnose(handle)
    assert verdict.category is Category.PREEMPTED
    assert verdict.retryable
    await cheap.close()


# -- cancel ------------------------------------------------------------------------------------------------------------


async def test_cancel_ends_jobs_that_wait_are_held_run_or_are_being_ended(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    later = again(platform, extra_flags=["--begin=now+1hour"])
    pending, held = await start(later, LONG), await start(later, LONG)
    running, ending, finished = [await start(platform, command) for command in (LONG, LONG, "true")]
    contained = again(platform, use_sqsh=False)
    boxed, boxed_ending = [await start(contained, LONG, image="ubuntu:24.04") for _ in range(2)]
    cluster.run(f"scontrol hold {held.native_id}", check=True)
    begun = [says(platform, handle, "begun") for handle in (running, ending, boxed, boxed_ending)]
    await asyncio.gather(*begun, end_of(platform, finished))
    assert "held" in (await reaches(platform, held, JobState.PENDING)).reason
    cluster.run(f"scancel {ending.native_id} {boxed_ending.native_id}", check=True)
    handles = [pending, held, running, ending, boxed, boxed_ending, finished]
    over = await platform.cancel(handles)
    assert [over[handle].state for handle in handles] == [JobState.CANCELED] * 6 + [JobState.COMPLETE]
    assert queued(cluster) == []
    again_over = await again(platform).cancel(handles)
    assert {handle: found.state for handle, found in again_over.items()} == {
        handle: found.state for handle, found in over.items()
    }
    await later.close()
    await contained.close()


@pytest.mark.parametrize("when", ["waiting", "running"])
@pytest.mark.parametrize("look", ["jobs", "launch"])
async def test_the_secrets_of_a_job_that_somebody_else_cancels_go_with_the_next_look_at_the_cluster(
    cluster: Cluster, platform: SlurmPlatform, when: str, look: str
) -> None:
    first = again(platform, extra_flags=["--begin=now+1hour"] if when == "waiting" else ())
    handle = await start(first, LONG, secrets={"TOKEN": SECRET})
    if when == "running":
        await says(first, handle, "begun")
    await first.close()
    cluster.run(f"scancel {handle.native_id}", check=True)
    cluster.wait_state(handle.native_id, "CANCELLED")
    os.utime(Path(platform.place.base) / layout.SWEPT, (1, 1))  # some time later
    await (platform.jobs() if look == "jobs" else start(platform, "true"))
    assert holds(Path(platform.place.base), SECRET) == []


async def test_the_secrets_of_a_job_that_was_never_submitted_go_when_its_launcher_must_be_gone(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    killed, key = again(platform), new_key()
    cluster.shim("sbatch", "cut-before", times=1)
    with pytest.raises(Unreachable):
        await killed.submit(killed.render(job("true", secrets=["TOKEN"]), key, 1), {"TOKEN": SECRET})
    await killed.close()
    await platform.jobs()
    assert holds(Path(platform.place.base), SECRET)  # its launcher may try again
    os.utime(f"{platform.place.job(key, 1)}/{layout.HANDLE}", (1, 1))
    await platform.jobs()
    assert holds(Path(platform.place.base), SECRET) == []
    launched = await launch(platform, job("test -n $TOKEN", secrets=["TOKEN"]), key, {"TOKEN": SECRET})
    assert (launched.handle.attempt, (await end_of(platform, launched.handle)).state) == (1, JobState.COMPLETE)


async def test_a_job_that_slurm_never_starts_again_removes_its_secrets_itself(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    once = again(platform, use_requeue=False)
    handle = await start(once, LONG, secrets={"TOKEN": SECRET})
    await says(once, handle, "begun")
    await once.close()
    cluster.run(f"scancel {handle.native_id}", check=True)
    cluster.wait_state(handle.native_id, "CANCELLED")

    async def gone() -> bool:
        return holds(Path(platform.place.base), SECRET) == []

    await until(gone, 10)


# -- going on ----------------------------------------------------------------------------------------------------------


async def test_a_training_that_needs_three_time_limits_goes_on_by_itself(platform: SlurmPlatform) -> None:
    request = job(TRAINING.format(epochs=7, pace=0.5), resources={"time_limit": 1.9}, action="train")
    handle = await platform.submit(platform.render(request, new_key(), 1), {})
    outcome = await follow(Watcher(platform), request, handle, {})
    assert outcome.state is JobState.COMPLETE, outcome
    assert outcome.handle.attempt >= 3
    assert outcome.progress
    assert (outcome.progress.epoch, outcome.progress.max_epoch) == (7, 7)


@pytest.mark.long
async def test_a_training_that_slurm_ends_at_its_wall_goes_on_by_itself(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    request = job(TRAINING.format(epochs=60, pace=2), resources={"time_limit": "4h"}, action="train")
    handle = await platform.submit(platform.render(request, new_key(), 1), {})
    following = asyncio.create_task(follow(Watcher(platform), request, handle, {}))
    for attempt in (1, 2):
        (current,) = [each for each in await _attempts(platform, handle.key, attempt) if each.attempt == attempt]
        cluster.wait_state(current.native_id, "RUNNING")
        await asyncio.sleep(10)
        cluster.time_out(current.native_id)
        cluster.wait_state(current.native_id, "TIMEOUT", seconds=60)
    outcome = await following
    assert outcome.state is JobState.COMPLETE, outcome
    assert outcome.handle.attempt == 3
    assert outcome.progress
    assert outcome.progress.epoch == 60


async def _attempts(platform: SlurmPlatform, key: str, count: int) -> list[JobHandle]:
    async def found() -> list[JobHandle]:
        known = (await platform.find([key]))[key]
        return known if len(known) >= count else []

    return await until(found, 60)
