"""The loopback cluster is a SLURM cluster: jobs, GPUs, accounting, containers, log-in, and bad days on demand."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from slurm_cluster import Cluster
from slurm_fixture import PREFIX, own, sweep
from slurm_processes import birth, is_free, wait_until
from slurm_site import OTHER_ACCOUNT

pytestmark = pytest.mark.xdist_group("slurm")

SCRIPT = Path(__file__).with_name("cluster.py")
WHOLE_CLUSTER = "--nodes=4 --exclusive --gres=gpu:8"


def submit(cluster: Cluster, options: str, command: str) -> str:
    words = f"sbatch --parsable --output=%j.out {options} --wrap '{command}'"
    return cluster.run(words, check=True).stdout.strip()


def output(cluster: Cluster, job: str) -> str:
    return (cluster.home / f"{job}.out").read_text()


def jobs_named(cluster: Cluster, name: str) -> list[str]:
    return cluster.run(f"squeue -h -t all --name={name} -o %A", check=True).stdout.split()


@pytest.fixture
def open_base() -> Iterator[Path]:
    """A folder that other users may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="tao-slurm-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_job_sent_over_ssh_completes_and_is_accounted_for(cluster: Cluster) -> None:
    reply = cluster.ssh("sbatch --parsable --job-name=life --output=life.out --wrap 'hostname; whoami'")
    job = reply.stdout.split()[-1]
    cluster.wait_state(job, "COMPLETED")
    assert (cluster.home / "life.out").read_text().split()[-1] == cluster.user

    def row() -> str:
        return cluster.run(f"sacct -nXP -j {job} -o jobname,state,account").stdout.strip()

    wait_until(lambda: row() == f"life|COMPLETED|{cluster.account}", 15, "the job in sacct")


def test_the_login_node_talks_before_every_command(cluster: Cluster) -> None:
    reply = cluster.ssh("echo the answer")
    assert reply.stdout.splitlines()[-1] == "the answer"
    assert len(reply.stdout.splitlines()) > 1
    assert reply.stderr


def test_two_jobs_on_one_node_get_different_gpus(cluster: Cluster) -> None:
    command = "echo $CUDA_VISIBLE_DEVICES; sleep 1"
    jobs = [submit(cluster, "--nodelist=node1 --gres=gpu:4", command) for _ in range(2)]
    for job in jobs:
        cluster.wait_state(job, "COMPLETED")
    assert {output(cluster, job).strip() for job in jobs} == {"0,1,2,3", "4,5,6,7"}


def test_what_the_cluster_cannot_give_is_refused_at_once(cluster: Cluster) -> None:
    for options, answer in (
        ("--time=4:30:00", "Requested time limit is invalid"),
        ("--partition=nowhere", "invalid partition specified"),
        ("--gres=gpu:99", "Requested node configuration is not available"),
        (f"--account={OTHER_ACCOUNT}", "Invalid account"),
    ):
        reply = cluster.run(f"sbatch {options} --wrap true")
        assert reply.returncode == 1
        assert answer in reply.stderr
    assert cluster.run("sbatch --hold --partition=long --time=5-0 --wrap true && scancel -u $USER").returncode == 0


def test_container_options_are_taken_and_recorded(cluster: Cluster) -> None:
    options = "--container-image=some/image:1 --container-mounts=/tmp:/data:ro,/srv --container-workdir=/data"
    options += " --no-container-mount-home --container-writable --container-env=HOME"
    job = submit(cluster, "--ntasks=2", f"srun {options} env")
    cluster.wait_state(job, "COMPLETED")
    assert "PYXIS_IMAGE=some/image:1" in output(cluster, job)
    records = [record for record in cluster.pyxis_records() if record["job"] == int(job)]
    assert sorted(record["rank"] for record in records) == [0, 1]
    assert records[0]["image"] == "some/image:1"
    assert records[0]["mounts"] == "/tmp:/data:ro,/srv"
    assert records[0]["home"] == "0"


def test_an_image_that_cannot_be_imported_fails_the_step(cluster: Cluster) -> None:
    job = submit(cluster, "", "srun --container-image=some/no-such-image:1 true")
    cluster.wait_state(job, "FAILED")
    assert "failed to import docker image" in output(cluster, job)
    bad = cluster.run("srun --container-image=some/image:1 --container-mounts=data true")
    assert bad.returncode != 0
    assert "invalid format" in bad.stderr


def test_enroot_makes_a_file_of_an_image_it_may_read(cluster: Cluster) -> None:
    before = len(cluster.enroot_calls())
    made = cluster.run("enroot import -o image.sqsh docker://host#some/image:1")
    again = cluster.run("enroot import -o image.sqsh docker://host#some/image:1")
    private = cluster.run("enroot import -o private.sqsh docker://host#some/private-image:1")
    assert made.returncode == 0
    assert (cluster.home / "image.sqsh").stat().st_size > 0
    assert "File already exists" in again.stderr
    assert "Could not process JSON input" in private.stderr
    assert not (cluster.home / "private.sqsh").exists()
    assert len(cluster.enroot_calls()) == before + 3


def test_an_urgent_job_pushes_others_out(clean_cluster: Cluster) -> None:
    again = submit(clean_cluster, f"--partition=polar {WHOLE_CLUSTER}", "sleep 60")
    clean_cluster.wait_state(again, "RUNNING")
    clean_cluster.wait_state(submit(clean_cluster, f"--partition=urgent {WHOLE_CLUSTER}", "true"), "COMPLETED")
    assert "Restarts=1" in clean_cluster.run(f"scontrol show job {again}").stdout
    clean_cluster.run(f"scancel {again}")
    ended = submit(clean_cluster, f"--partition=grizzly {WHOLE_CLUSTER}", "sleep 60")
    clean_cluster.wait_state(ended, "RUNNING")
    clean_cluster.wait_state(submit(clean_cluster, f"--partition=urgent {WHOLE_CLUSTER}", "true"), "COMPLETED")
    assert clean_cluster.job_state(ended) == "PREEMPTED"


def test_a_job_runs_out_of_memory_on_demand(cluster: Cluster) -> None:
    job = submit(cluster, "", "sleep 60")
    cluster.wait_state(job, "RUNNING")
    cluster.out_of_memory(job)
    cluster.wait_state(job, "OUT_OF_MEMORY")


@pytest.mark.parametrize(
    ("mode", "code", "jobs", "told"),
    [
        ("lost-reply", 255, 1, ""),
        ("cut-before", 255, 0, ""),
        ("timeout-after", 1, 1, "Socket timed out on send/recv operation"),
        ("timeout-before", 1, 0, "Socket timed out on send/recv operation"),
        ("fail:sbatch: error: no:7", 7, 0, "sbatch: error: no"),
        ("slow:0.2", 0, 1, ""),
        ("pass", 0, 1, ""),
    ],
)
def test_sbatch_fails_as_it_is_told_to(clean_cluster: Cluster, mode: str, code: int, jobs: int, told: str) -> None:
    name = f"shim-{mode.partition(':')[0]}"
    clean_cluster.shim("sbatch", mode)
    reply = clean_cluster.ssh(f"sbatch --hold --job-name={name} --wrap true")
    assert reply.returncode == code
    assert told in reply.stderr
    assert ("Submitted batch job" in reply.stdout) == (code == 0)
    assert len(jobs_named(clean_cluster, name)) == jobs
    assert clean_cluster.shim_calls("sbatch") == [f"--hold --job-name={name} --wrap true"]


@pytest.mark.parametrize(("mode", "jobs"), [("hang-after", 1), ("hang-before", 0)])
def test_a_reply_that_never_comes(clean_cluster: Cluster, mode: str, jobs: int) -> None:
    clean_cluster.shim("sbatch", mode)
    words = clean_cluster.ssh_words(f"sbatch --hold --job-name={mode} --wrap true")
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1) as session:
        wait_until(lambda: bool(clean_cluster.shim_calls("sbatch")), 20, "sbatch called")
        wait_until(lambda: len(jobs_named(clean_cluster, mode)) == jobs, 20, "as many jobs")
        with pytest.raises(subprocess.TimeoutExpired):
            session.communicate(timeout=0.5)
        session.kill()


def test_a_shim_for_one_call_lets_the_next_one_pass(clean_cluster: Cluster) -> None:
    clean_cluster.shim("squeue", "fail:slurm_load_jobs error:1", times=1)
    assert [clean_cluster.ssh("squeue -h").returncode for _ in range(2)] == [1, 0]
    clean_cluster.shim("squeue", "fail:slurm_load_jobs error:1")
    assert clean_cluster.run("squeue -h").returncode == 0, "the truth is asked for without shims"
    assert clean_cluster.ssh("bash -lc 'squeue -h'").returncode == 1, "a login shell has them too"
    clean_cluster.unshim()
    assert clean_cluster.ssh("squeue -h").returncode == 0


def test_round_trips_are_counted(cluster: Cluster) -> None:
    sessions, connections = cluster.ssh_sessions_opened(), cluster.ssh_connections_opened()
    with paramiko.SSHClient() as client:
        client.load_host_keys(str(cluster.known_hosts))
        client.connect(cluster.host, cluster.ssh_port, cluster.user, key_filename=str(cluster.key_path))
        for _ in range(2):
            assert client.exec_command("true")[1].channel.recv_exit_status() == 0
        client.open_sftp().stat(str(cluster.shared))
    assert cluster.ssh_sessions_opened() == sessions + 3
    assert cluster.ssh_connections_opened() == connections + 1


def test_the_controller_comes_back_with_its_jobs(clean_cluster: Cluster) -> None:
    job = submit(clean_cluster, "--hold", "true")
    clean_cluster.stop_daemon("slurmctld")
    assert not clean_cluster.is_running("slurmctld")
    clean_cluster.start_daemon("slurmctld")
    assert clean_cluster.job_state(job) == "PENDING"


def test_accounting_comes_back(clean_cluster: Cluster) -> None:
    clean_cluster.stop_daemon("slurmdbd")
    assert clean_cluster.run("sacct").returncode == 1
    clean_cluster.start_daemon("slurmdbd")
    assert clean_cluster.run("sacct").returncode == 0


def test_a_node_comes_back(clean_cluster: Cluster) -> None:
    clean_cluster.stop_daemon("slurmd", node="node2")
    assert not clean_cluster.is_running("slurmd", node="node2")
    assert clean_cluster.is_running("slurmd", node="node3")
    clean_cluster.start_daemon("slurmd", node="node2")
    clean_cluster.wait_state(submit(clean_cluster, "--nodelist=node2", "true"), "COMPLETED")


def test_the_login_node_comes_back(clean_cluster: Cluster) -> None:
    clean_cluster.stop_daemon("sshd")
    assert clean_cluster.ssh("true").returncode == 255
    clean_cluster.start_daemon("sshd")
    assert clean_cluster.ssh("true").returncode == 0


def test_a_frozen_login_node_says_nothing_until_it_thaws(clean_cluster: Cluster) -> None:
    with subprocess.Popen(clean_cluster.ssh_words("read line; echo $line"), stdin=-1, stdout=-1, text=True) as session:
        assert session.stdin
        assert session.stdout
        while "JobId" not in session.stdout.readline():  # the noise: from here on the session is there
            pass
        clean_cluster.freeze("sshd")
        session.stdin.write("hello\n")
        session.stdin.flush()
        with pytest.raises(subprocess.TimeoutExpired):
            session.wait(0.5)
        clean_cluster.thaw("sshd")
        assert session.stdout.readline() == "hello\n"


def test_ssh_sessions_can_be_killed(clean_cluster: Cluster) -> None:
    with subprocess.Popen(clean_cluster.ssh_words("sleep 60"), stdout=-1, stderr=-1, text=True) as session:
        assert session.stdout
        session.stdout.readline()
        assert clean_cluster.kill_ssh_sessions() > 0
        assert session.wait(10) == 255
    assert clean_cluster.ssh("true").returncode == 0


def test_stop_ends_every_process_and_nothing_else(open_base: Path) -> None:
    other = Cluster(open_base, accounting=False, nodes=1, gpus=2)
    other.start()
    try:
        # One job that ignores the polite signal, and one that leaves its session.
        stubborn = submit(other, "", 'trap "" TERM; while true; do sleep 1; done')
        daring = submit(other, "", "setsid sleep 600 & sleep 600")
        for job in (stubborn, daring):
            other.wait_state(job, "RUNNING")
        finished = submit(other, "", "true")
        other.wait_state(finished, "COMPLETED")
        assert finished in other.run("sacct -c -n -o jobid").stdout.split()
        pids = other.processes()
        assert len(pids) > len(other.daemons())
    finally:
        other.stop()
    assert [pid for pid in pids if birth(pid) is not None] == []
    assert other.processes() == []
    assert all(is_free(port) for port in other.site.ports)
    assert birth(os.getpid()) is not None


def test_a_cluster_that_lost_its_session_is_swept_away(open_base: Path) -> None:
    base = open_base / f"{PREFIX}lost"
    lost = Cluster(base, accounting=False, nodes=1, gpus=1)
    try:
        lost.start()
        own(base, os.getpid())
        sweep(open_base)
        assert all(lost.daemons().values()), "its session still runs"
        with subprocess.Popen(["true"]) as session:
            pass
        own(base, session.pid)
        sweep(open_base)
        assert lost.processes() == []
        assert not base.exists()
    finally:
        lost.stop()


def test_people_start_and_stop_it_by_a_command(open_base: Path) -> None:
    def call(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, str(SCRIPT), *words, "--base", str(open_base)]
        return subprocess.run(line, capture_output=True, text=True, timeout=120)

    assert call("status").returncode == 1
    try:
        first, second = call("up", "--no-accounting"), call("up")
        assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
        assert "prefect-tao setup slurm" in first.stdout
        assert f"export SLURM_USER={Cluster.load(open_base).user}" in first.stdout
        assert first.stdout == second.stdout
        assert call("status").returncode == 0
    finally:
        downs = [call("down").returncode for _ in range(2)]
    assert downs == [0, 0]
    assert Cluster.load(open_base).processes() == []
    assert call("status").returncode == 1
