"""A cancelled run ends its job, verified; a dead run leaves it. Under a worker, under serve and in a direct call."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import Api, job_states, start, wait_for

from prefect_tao.jobs.state import JobState

# Those who share the one server run one after the other.
pytestmark = pytest.mark.xdist_group("prefect-server")
ROOT = Path(__file__).parents[2]
SERVE = """
from prefect.deployments.runner import EntrypointType
from prefect_tao.flows import run
run.serve(name="served", entrypoint_type=EntrypointType.MODULE_PATH)
"""


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def job_state(home: Path) -> JobState:
    """The state of the one job there is."""
    (state,) = job_states(home)
    return state


def long_job(home: Path) -> tuple[Path, str]:
    marker = home.parent / "started"
    return marker, f"echo started >> {marker}; sleep 100 & wait"


@pytest.fixture
def served(server: Any, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`run.serve(...)` in a process of its own."""
    env = {**server.env, "PREFECT_TAO_HOME": str(home), "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    with open(home.parent / "serve.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE], env=env, stdout=log, stderr=log)
    yield process
    end(process)


@pytest.fixture
def worker(server: Any, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process worker for the deployments of prefect.yaml."""
    env = {**server.env, "PREFECT_TAO_HOME": str(home)}
    prefect = [sys.executable, "-m", "prefect"]
    subprocess.run(
        [*prefect, "work-pool", "create", "--overwrite", "--type", "process", "tao"],
        env=env,
        check=True,
        capture_output=True,
    )
    subprocess.run(
        [*prefect, "--no-prompt", "deploy", "--name", "run"], env=env, check=True, capture_output=True, cwd=ROOT
    )
    with open(home.parent / "worker.log", "wb") as log:
        process = subprocess.Popen(
            [*prefect, "worker", "start", "--pool", "tao"],
            env={**env, "PREFECT_WORKER_QUERY_SECONDS": "2"},
            stdout=log,
            stderr=log,
            cwd=home.parent,
        )
    yield process
    end(process)


def deployed_run(api: Api, name: str, command: str) -> str:
    """Start a run of the deployment and return its id."""
    deployment = wait_for(lambda: api.deployment(f"run/{name}"), 60)
    created = api.ask("POST", f"/deployments/{deployment}/create_flow_run", {"parameters": {"command": command}})
    return str(created["id"])


def test_cancelling_a_direct_call_ends_the_job(server: Any, api: Api, home: Path) -> None:
    marker, command = long_job(home)
    running = start(server, home, "run", command=command)
    wait_for(marker.exists, 60)
    run = api.newest_run("run")["id"]
    api.set_state(run, "CANCELLING")
    wait_for(lambda: api.state(run) == "CANCELLED", 60)
    assert job_state(home) is JobState.CANCELED
    assert running.wait(30) == 1
    assert "JobCanceled" in (home.parent / "call.log").read_text()


def test_cancelling_a_served_run_ends_the_job(
    server: Any, api: Api, home: Path, served: subprocess.Popen[bytes]
) -> None:
    marker, command = long_job(home)
    run = deployed_run(api, "served", command)
    wait_for(marker.exists, 90)
    api.set_state(run, "CANCELLING")
    wait_for(lambda: api.state(run) == "CANCELLED", 60)
    assert job_state(home) is JobState.CANCELED


def test_under_a_worker_a_crash_leaves_the_job_a_retry_attaches_and_a_cancel_ends_it(
    server: Any, api: Api, home: Path, worker: subprocess.Popen[bytes]
) -> None:
    marker, command = long_job(home)
    run = deployed_run(api, "run", command)
    wait_for(marker.exists, 90)

    flow_process = wait_for(lambda: flow_process_of(run), 10)
    os.kill(flow_process, signal.SIGKILL)
    wait_for(lambda: api.state(run) == "CRASHED", 60)
    assert job_state(home) is JobState.RUNNING

    retry(api, run)
    time.sleep(5)
    assert marker.read_text() == "started\n"
    assert job_state(home) is JobState.RUNNING

    api.set_state(run, "CANCELLING")
    wait_for(lambda: api.state(run) == "CANCELLED", 60)
    wait_for(lambda: job_state(home) is JobState.CANCELED, 60)
    assert marker.read_text() == "started\n"


def retry(api: Api, run: str) -> None:
    """Retry the run until a worker has it: the one that lost it may report the crash a second time, after the retry."""
    seen: list[str] = []

    def taken() -> bool:
        seen.append(api.state(run))
        if seen[-1] == "CRASHED":
            api.set_state(run, "SCHEDULED")
        return seen[-1] == "RUNNING" and flow_process_of(run) is not None

    try:
        wait_for(taken, 90)
    except AssertionError:
        raise AssertionError(f"no worker took the retried run; its states: {list(dict.fromkeys(seen))}") from None


def flow_process_of(run: str) -> int | None:
    """The process that runs the flow, by the variable that Prefect's worker sets."""
    wanted = f"PREFECT__FLOW_RUN_ID={run}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:
            continue
    return None


def test_the_hook_on_a_users_own_flow_ends_the_jobs_it_launched(server: Any, api: Api, home: Path) -> None:
    from prefect import flow, get_client
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from prefect_tao.flows import cancel_jobs, run

    @flow(on_cancellation=[cancel_jobs])
    async def mine() -> None:
        await run("sleep 100", long_running_enabled=False)

    async def launch_then_cancel() -> None:
        await mine()
        async with get_client() as client:
            flow_run = await client.read_flow_run(api.newest_run("mine")["id"])
        await cancel_jobs(flow=mine, flow_run=flow_run, state=flow_run.state)  # as Prefect's worker calls it

    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        asyncio.run(launch_then_cancel())
    assert job_state(home) is JobState.CANCELED
