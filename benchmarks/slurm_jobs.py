"""200 small jobs on a real SLURM cluster: a bare sbatch loop there, ours as Prefect tasks over ssh, and peers."""

import asyncio
import json
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from secrets import token_hex
from typing import Any

from prefect import flow, get_client, task

from benchmarks.measure import PEER as SDK_NAME
from benchmarks.measure import ROOT, Row, peer_python, times
from prefect_tao.blocks import TaoSlurm
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.slurm.driver import SlurmPlatform
from prefect_tao.platforms.slurm.settings import SlurmSettings
from prefect_tao.settings import PREFECT_DEFAULTS
from prefect_tao.tasks.actions import run_action

sys.path.insert(0, str(ROOT / "tests" / "support"))

from debian import Missing
from slurm_cluster import Cluster

JOBS = int(os.environ.get("BENCH_SLURM_JOBS", "200"))
PEER_JOBS = 20
FEW, MANY, LOOKS = 10, 1000, 3
TOOLS = ("squeue", "sacct", "scontrol", "sbatch", "scancel", "sinfo")
# As user code would be run with each: the last is what a job of ours does before it comes to the user's command.
BARE = {"true": "true", "step": "srun -n1 /bin/sh -c true"}
SUBMITIT = """
import sys, time, submitit
def work(): return 1
executor = submitit.AutoExecutor(folder="submitit", cluster="slurm")
executor.update_parameters(slurm_partition="polar", slurm_account="tao", cpus_per_task=1, timeout_min=30)
began = time.time()
jobs = [executor.submit(work) for _ in range(int(sys.argv[1]))]
assert [job.result() for job in jobs] == [1] * len(jobs)
print(time.time() - began)
"""
TORCHX = """
import sys, time
from torchx.runner import get_runner
from torchx.specs import AppDef, Resource, Role
role = Role(name="r", image="", entrypoint="true", num_replicas=1, resource=Resource(cpu=1, gpu=0, memMB=100))
runner, began = get_runner("bench"), time.time()
handles = [runner.run(AppDef("app", roles=[role]), "slurm", {"partition": "polar"}) for _ in range(int(sys.argv[1]))]
for handle in handles:
    assert runner.wait(handle, 0.5).state.name == "SUCCEEDED"
print(time.time() - began)
"""
PEERS = {"submitit": SUBMITIT, "torchx": TORCHX}
# The first job is not counted: it also tells whether jobs of the SDK can run here at all.
SDK = """
import sys, time
from tao_sdk.platforms.slurm import SlurmSDK
sdk = SlurmSDK()
def run(count):
    jobs = [sdk.create_job(image="ubuntu:24.04", command="true", gpu_count=0).id for _ in range(count)]
    for job in jobs:
        while (status := sdk.get_job_status(job).status) not in ("Complete", "Error", "Canceled"):
            time.sleep(0.2)
        if status != "Complete":
            sys.exit("its jobs fail here: it leaves it to SLURM to make their log folder, and this version does not")
run(1)
began = time.time()
run(int(sys.argv[1]))
print(time.time() - began)
"""


def measure() -> list[Row]:
    """All on one cluster, which is started for it and stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="tao-bench-slurm-") as folder:
        os.chmod(folder, 0o755)
        cluster = Cluster(Path(folder) / "base")
        try:
            cluster.start()
        except Missing as missing:
            return [Row("skipped", str(missing))]
        try:
            return [*_launch_rows(cluster), *_rest_rows(cluster), *_peer_rows(cluster)]
        finally:
            cluster.stop()


# -- submit to known ---------------------------------------------------------------------------------------------------


def _bare(cluster: Cluster, count: int, work: str) -> float:
    """A loop of sbatch on the login node itself, and a look every 0.2 s until none is left."""
    script = (
        f"printf '#!/bin/bash\\n{work}\\n' > bare.sh; for i in $(seq {count}); do "
        "sbatch --account=tao --partition=polar --cpus-per-task=1 --job-name=bare --output=/dev/null bare.sh;"
        ' done >/dev/null; while [ -n "$(squeue -h --name=bare -o %A | head -n 1)" ]; do sleep 0.2; done'
    )
    began = time.perf_counter()
    cluster.run(script, check=True, timeout=900)
    return time.perf_counter() - began


def _ours(cluster: Cluster) -> dict[str, float]:
    """The tasks run in a process of their own, against Prefect's embedded server."""
    given = {
        "user": cluster.user,
        "hostnames": [cluster.host],
        "partition": cluster.partition,
        "account": cluster.account,
        "ssh_key_path": str(cluster.key_path),
        "ssh_port": cluster.ssh_port,
        "known_hosts": str(cluster.known_hosts),
        "results_root": str(cluster.shared / "bench"),
        "cpus": 1,
        "poll_seconds": 0.5,
    }
    with tempfile.TemporaryDirectory() as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        own = {"PREFECT_HOME": home, "PREFECT_TAO_HOME": f"{home}/tao", "PREFECT_LOGGING_LEVEL": "CRITICAL"}
        words = [sys.executable, "-m", "benchmarks.slurm_jobs", json.dumps(given), str(cluster.site.sshd_log)]
        told = subprocess.run(
            words, env={**kept, **own, **PREFECT_DEFAULTS}, check=True, stdout=subprocess.PIPE, cwd=ROOT
        ).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def _launch_rows(cluster: Cluster) -> list[Row]:
    _bare(cluster, 5, BARE["true"])
    bare = {name: [_bare(cluster, JOBS, work)] for name, work in BARE.items()}
    ours = _ours(cluster)
    for name, work in BARE.items():
        bare[name].append(_bare(cluster, JOBS, work))
    plain, step = (statistics.mean(bare[name]) for name in BARE)
    extra = 1000 * (ours["jobs_cpu"] - ours["nothing_cpu"]) / JOBS
    return [
        Row(f"{JOBS} jobs `true`, bare sbatch loop on the login node", f"{plain:.1f} s", "1x"),
        Row(f"{JOBS} jobs `srun true`, likewise: a step, as every container has", f"{step:.1f} s", times(step, plain)),
        Row(
            f"prefect-tao, {JOBS} Prefect tasks over ssh, submit to all verdicts known",
            f"{ours['jobs']:.1f} s",
            f"{times(ours['jobs'], plain)} of bare, {times(ours['jobs'], step)} of bare with a step",
            "at most 1.6x bare",
        ),
        Row(f"of that, Prefect's own: {JOBS} tasks that do nothing", f"{ours['nothing']:.1f} s"),
        Row("ssh connections, and sessions on them", f"{ours['logins']:.0f}, {ours['sessions']:.0f}", "", "at most 10"),
        Row("client CPU per job, above a Prefect task that does nothing", f"{extra:.1f} ms", "", "at most 10 ms"),
    ]


# -- at rest -----------------------------------------------------------------------------------------------------------


def _rest_rows(cluster: Cluster) -> list[Row]:
    few, many = (asyncio.run(_at_rest(cluster, count)) for count in (FEW, MANY))
    return [
        Row(f"one look at {count} waiting jobs", f"{sessions:g} ssh session, {commands:g} SLURM command, {ms:.0f} ms",
            "" if count == FEW else f"{times(sessions + commands, sum(few[:2]))} calls", "the same for both")
        for count, (sessions, commands, ms) in ((FEW, few), (MANY, many))
    ]  # fmt: skip


async def _at_rest(cluster: Cluster, count: int) -> tuple[float, float, float]:
    """Sessions, SLURM commands and milliseconds per look."""
    platform = SlurmPlatform(
        "slurm/rest",
        SlurmSettings(
            user=cluster.user,
            hostnames=[cluster.host],
            partition=cluster.partition,
            account=cluster.account,
            ssh_key_path=str(cluster.key_path),
            ssh_port=cluster.ssh_port,
            known_hosts=str(cluster.known_hosts),
            results_root=str(cluster.shared / f"rest-{count}"),
            cpus=1,
            extra_flags=["--begin=now+2hours"],
        ),
    )
    request = JobRequest.build(command="true")
    handles = await platform.submit_many((platform.render(request, token_hex(8), 1), {}) for _ in range(count))
    for tool in TOOLS:
        cluster.shim(tool, "pass")
    before, began = cluster.ssh_sessions_opened(), time.perf_counter()
    for _ in range(LOOKS):
        assert len(await platform.observe(handles)) == count
    seconds = time.perf_counter() - began
    sessions = cluster.ssh_sessions_opened() - before
    commands = sum(len(cluster.shim_calls(tool)) for tool in TOOLS)
    await platform.close()
    cluster.reset()
    return sessions / LOOKS, commands / LOOKS, 1000 * seconds / LOOKS


# -- peers -------------------------------------------------------------------------------------------------------------


def _peer_rows(cluster: Cluster) -> list[Row]:
    bare = _bare(cluster, PEER_JOBS, BARE["true"])
    rows = [Row(f"{PEER_JOBS} jobs, bare sbatch loop", f"{bare:.1f} s", "1x")]
    for name, text in PEERS.items():
        rows.append(_peer_row(cluster, name, text, bare))
    return [*rows, _sdk_row(cluster, bare)]


def _sdk_row(cluster: Cluster, bare: float) -> Row:
    """The SDK calls ssh and scp by name and knows no port, so both get one on the way; nor may a login greet it."""
    what = f"{SDK_NAME}, {PEER_JOBS} jobs, over ssh"
    (cluster.home / ".bashrc").write_text("")
    with tempfile.TemporaryDirectory() as folder:
        for tool, option in {"ssh": "-p", "scp": "-P"}.items():
            words = f'#!/bin/sh\nexec {shutil.which(tool)} {option} {cluster.ssh_port} "$@"\n'
            (Path(folder) / tool).write_text(words)
            (Path(folder) / tool).chmod(0o755)
        settings = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": folder,
            "TAO_SDK_STATE_DIR": folder,
            "SLURM_USER": cluster.user,
            "SLURM_HOSTNAME": cluster.host,
            "SSH_KEY_PATH": str(cluster.key_path),
            "SLURM_PARTITION": cluster.partition,
            "SLURM_ACCOUNT": cluster.account,
            "SLURM_BASE_RESULTS_DIR": str(cluster.shared / "sdk"),
            "SLURM_CPUS_PER_TASK": "1",
            "SLURM_USE_SQSH": "false",
        }
        try:
            command = [str(peer_python()), "-c", SDK, str(PEER_JOBS)]
            reply = subprocess.run(command, env=settings, check=True, capture_output=True, text=True, timeout=600)
            seconds = float(reply.stdout.split()[-1])
        except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", "") or str(error)
            return Row(what, f"skipped: {told.strip().splitlines()[-1][:150]}")
    return Row(what, f"{seconds:.1f} s", times(seconds, bare))


def _peer_row(cluster: Cluster, name: str, text: str, bare: float) -> Row:
    what = f"{name}, {PEER_JOBS} jobs, on the login node itself (it has no ssh)"
    try:
        python = _environment(name)
        script = cluster.home / f"{name}_bench.py"
        script.write_text(text)
        reply = cluster.run(f"{shlex.quote(str(python))} {name}_bench.py {PEER_JOBS}", check=True, timeout=300)
        seconds = float(reply.stdout.split()[-1])
    except (OSError, RuntimeError, ValueError, IndexError, subprocess.SubprocessError) as error:
        return Row(what, f"skipped: {str(error).strip().splitlines()[-1][:150]}")
    return Row(what, f"{seconds:.1f} s", times(seconds, bare))


def _environment(peer: str) -> Path:
    """The interpreter of an environment with the peer in it, which the cluster's user may read; made once."""
    folder = Path(tempfile.gettempdir()) / "prefect-tao-bench" / peer
    python = folder / "bin" / "python"
    if not python.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--python", "/usr/bin/python3", str(folder)], check=True)
        packages = [peer, "setuptools<81"] if peer == "torchx" else [peer]
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *packages], check=True)
    return python


# -- the process of our own tasks --------------------------------------------------------------------------------------


# With the same options as an action.
@task(persist_result=True, result_serializer="json", cache_key_fn=lambda _, parameters: f"{parameters['key']}")
async def nothing(key: str) -> str:
    return key


@flow
async def nothings(count: int) -> tuple[float, float]:
    return await _timed([nothing(token_hex(8)) for _ in range(count)])


@flow
async def jobs(count: int) -> tuple[float, float]:
    request = JobRequest.build(command="true")
    keys = [token_hex(8) for _ in range(count)]
    return await _timed([run_action(request, "slurm/bench", key, f"job {key}", page_seconds=0) for key in keys])


async def _timed(tasks: list[Coroutine[Any, Any, Any]]) -> tuple[float, float]:
    """Wall and CPU time of all tasks; within the flow, whose own start waits for a server that is still busy."""
    began, usage = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.gather(*tasks)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime
    return time.perf_counter() - began, cpu


async def _recorded(name: str, count: int) -> None:
    """Wait until the server knows that all `count` tasks of these flows are over, so that it rests."""
    over = {"type": {"any_": ["COMPLETED"]}}
    body = {"flows": {"name": {"any_": [name]}}, "task_runs": {"state": over}}
    async with get_client() as client:
        while (await client.request("POST", "/task_runs/count", json=body)).json() < count:  # noqa: ASYNC110
            await asyncio.sleep(0.5)


async def _tasks(given: dict[str, Any], sshd_log: Path) -> dict[str, float]:
    def count(words: str) -> int:
        return sshd_log.read_text(errors="replace").count(words)

    await TaoSlurm(**given).save("bench", overwrite=True)
    await nothings(2)
    await jobs(2)
    nothing_wall, nothing_cpu = await nothings(JOBS)
    await _recorded(nothings.name, 2 + JOBS)  # the server writes them down long after the tasks are over
    sessions = count("Starting session: ")
    jobs_wall, jobs_cpu = await jobs(JOBS)
    return {
        "nothing": nothing_wall,
        "nothing_cpu": nothing_cpu,
        "jobs": jobs_wall,
        "jobs_cpu": jobs_cpu,
        "sessions": count("Starting session: ") - sessions,
        "logins": count("Accepted publickey for "),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_tasks(json.loads(sys.argv[1]), Path(sys.argv[2])))) + "\n")
