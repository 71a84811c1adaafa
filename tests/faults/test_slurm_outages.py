"""While SLURM, its accounting or the login node is away, jobs are out of sight and never in error; then they go on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_cluster import Cluster
from slurm_faults import LONG, again, end_of, folder_of, reaches, says, seen, start, until

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.events import Event, StateChanged
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.listening import Listener
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.driver import SlurmPlatform
from prefect_tao.platforms.ssh import trunk

pytestmark = pytest.mark.xdist_group("slurm")
# Ends when the test says so.
WAITING = 'echo begun; while [ ! -e "$TAO_RESULTS_DIR/go" ]; do sleep 0.1; done'


class Told(Listener):
    """Remembers the states that it heard of."""

    def __init__(self) -> None:
        self.states: list[JobState] = []

    async def hear(self, event: Event) -> None:
        if isinstance(event, StateChanged):
            self.states.append(event.seen.state)

    async def heard(self, state: JobState) -> None:
        """Wait until it has heard of that state."""

        async def was() -> bool:
            return state in self.states

        await until(was)


def let_end(platform: SlurmPlatform, *handles: JobHandle) -> None:
    for handle in handles:
        (Path(platform.place.results_of(handle.key)) / "results_dir" / "go").touch()


@pytest.mark.parametrize(
    "fault",
    [
        "fail:slurm_load_jobs error: Unable to contact slurm controller (connect failure):1",
        "fail:slurm_load_jobs error: Socket timed out on send/recv operation:1",
        "fail::0",
    ],
)
async def test_a_queue_that_fails_is_silence_and_the_watch_goes_on(
    cluster: Cluster, platform: SlurmPlatform, fault: str
) -> None:
    handle = await start(platform, WAITING)
    await says(platform, handle, "begun")
    told = Told()
    waiting = asyncio.create_task(Watcher(platform).wait(handle, told))

    await told.heard(JobState.RUNNING)
    cluster.shim("squeue", fault)
    await told.heard(JobState.UNREACHABLE)
    assert not waiting.done()
    cluster.unshim("squeue")
    let_end(platform, handle)
    assert (await waiting).state is JobState.COMPLETE
    assert JobState.ERROR not in told.states


def test_a_launch_while_the_controller_is_away_is_unknown_and_not_bad_input(cluster: Cluster) -> None:
    for program in ("scontrol", "sbatch"):
        cluster.shim(program, f"fail:{program}: error: Unable to contact slurm controller (connect failure):1")
    words = [sys.executable, "-m", "prefect_tao.cli", "run", "--target", "slurm", "--image", "x/y", "--gpus", "0"]
    try:
        done = subprocess.run(
            [*words, "--", "true"], env={**os.environ, **cluster.env}, capture_output=True, text=True, timeout=120
        )
    finally:
        for program in ("scontrol", "sbatch"):
            cluster.unshim(program)
    assert "SLURM does not answer" in done.stderr
    assert done.returncode == 1, done.stderr


async def test_a_clean_end_is_known_while_the_queue_is_silent_and_a_failure_is_not(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    clean, failed = await start(platform, "true"), await start(platform, "exit 3")
    for handle in (clean, failed):
        cluster.wait_state(handle.native_id, "COMPLETED", "FAILED")
    cluster.shim("squeue", "fail:slurm_load_jobs error: Unable to contact slurm controller:1")
    assert (await seen(platform, clean)).state is JobState.COMPLETE
    assert (await seen(platform, failed)).state is JobState.UNREACHABLE
    both = await again(platform).observe([clean, failed])
    assert {handle: found.state for handle, found in both.items()} == {clean: JobState.COMPLETE}
    cluster.unshim("squeue")
    assert (await end_of(platform, failed)).exit_code == 3


async def test_a_queue_that_denies_and_accounting_that_fails_leave_the_job_out(
    cluster: Cluster, platform: SlurmPlatform
) -> None:
    platform.gone_seconds = 0.0
    handle = await start(platform, WAITING)
    await says(platform, handle, "begun")
    cluster.shim("squeue", "fail::0")  # an empty answer that looks like a good one
    cluster.shim("sacct", "fail:sacct: error: Problem talking to the database: Connection refused:1")
    for _ in range(3):
        assert (await seen(platform, handle)).state is JobState.UNREACHABLE
    cluster.unshim()
    assert (await seen(platform, handle)).state is JobState.RUNNING
    let_end(platform, handle)
    assert (await end_of(platform, handle)).state is JobState.COMPLETE


async def test_jobs_go_on_while_the_controller_is_away(clean_cluster: Cluster, platform: SlurmPlatform) -> None:
    good, bad = await start(platform, WAITING), await start(platform, f"{WAITING}; exit 5")
    await asyncio.gather(says(platform, good, "begun"), says(platform, bad, "begun"))
    clean_cluster.stop_daemon("slurmctld")
    with pytest.raises(Unreachable) as silent:
        await platform.observe([good, bad])
    assert "squeue" in silent.value.cause
    clean_cluster.start_daemon("slurmctld")
    assert (await seen(platform, good)).state is JobState.RUNNING
    let_end(platform, good, bad)
    assert (await end_of(platform, good)).state is JobState.COMPLETE
    assert (await end_of(platform, bad)).exit_code == 5


# A controller that missed a job's end takes a minute to believe it.
@pytest.mark.long
async def test_jobs_that_end_while_the_controller_is_away_have_their_right_end_afterwards(
    clean_cluster: Cluster, platform: SlurmPlatform
) -> None:
    good, bad = await start(platform, WAITING), await start(platform, f"{WAITING}; exit 5")
    await asyncio.gather(says(platform, good, "begun"), says(platform, bad, "begun"))
    clean_cluster.stop_daemon("slurmctld")
    let_end(platform, good, bad)

    async def left_marker() -> bool:
        return all((folder_of(platform, handle) / layout.EXIT).exists() for handle in (good, bad))

    await until(left_marker)
    found = await again(platform).observe([good, bad])
    assert bad not in found
    assert found[good].state is JobState.COMPLETE
    clean_cluster.start_daemon("slurmctld")
    assert (await end_of(platform, bad, seconds=150)).exit_code == 5
    assert (await end_of(platform, good)).state is JobState.COMPLETE


async def test_jobs_run_and_end_while_the_accounting_is_away(clean_cluster: Cluster, platform: SlurmPlatform) -> None:
    clean_cluster.stop_daemon("slurmdbd")
    good, bad, long = [await start(platform, command) for command in ("true", "exit 5", LONG)]
    assert (await end_of(platform, good)).state is JobState.COMPLETE
    assert (await end_of(platform, bad)).exit_code == 5
    assert (await reaches(platform, long, JobState.RUNNING)).state is JobState.RUNNING
    assert (await platform.cancel([long]))[long].state is JobState.CANCELED


def go_down(cluster: Cluster) -> None:
    cluster.stop_daemon("sshd")
    cluster.kill_ssh_sessions()


def come_up(cluster: Cluster) -> None:
    cluster.start_daemon("sshd")


def freeze(cluster: Cluster) -> None:
    cluster.freeze("sshd")


def thaw(cluster: Cluster) -> None:
    cluster.thaw("sshd")


@pytest.mark.parametrize(("leave", "come_back"), [(go_down, come_up), (freeze, thaw)], ids=["down", "frozen"])
async def test_a_login_node_that_does_not_answer_hides_jobs_and_nothing_more(
    clean_cluster: Cluster,
    platform: SlurmPlatform,
    monkeypatch: pytest.MonkeyPatch,
    leave: Callable[[Cluster], None],
    come_back: Callable[[Cluster], None],
) -> None:
    monkeypatch.setattr(trunk, "OPEN_SECONDS", 1.0)
    monkeypatch.setattr(trunk, "CONNECT_SECONDS", 1.0)
    handle = await start(platform, WAITING)
    await says(platform, handle, "begun")
    told = Told()
    waiting = asyncio.create_task(Watcher(platform).wait(handle, told))

    await told.heard(JobState.RUNNING)
    leave(clean_cluster)
    await told.heard(JobState.UNREACHABLE)
    let_end(platform, handle)
    assert not waiting.done()
    come_back(clean_cluster)
    assert (await waiting).state is JobState.COMPLETE
    assert JobState.ERROR not in told.states


async def test_a_second_login_node_is_asked_when_the_first_is_away(cluster: Cluster, platform: SlurmPlatform) -> None:
    handle = await start(platform, "true")
    # Nobody listens there; the name of the second one is known under its own key.
    known = Path(cluster.known_hosts).read_text().replace("127.0.0.1", "localhost")
    both = Path(platform.place.base) / "known_hosts"
    both.write_text(known + Path(cluster.known_hosts).read_text())
    other = again(platform, hostnames=["127.0.0.2", "localhost"], known_hosts=str(both))
    assert (await end_of(other, handle)).state is JobState.COMPLETE
    assert other.login.host == "localhost"
    await other.close()
