"""A cancelled run ends its job, verified; a dead run leaves it. Under serve and in a direct call."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import Api, job_states, start, wait_for

from prefect_tao.jobs.state import JobState

# Those who share the one server run one after the other.
pytestmark = pytest.mark.xdist_group("prefect-server")
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


def test_after_kill_of_a_direct_call_one_command_ends_its_job_and_the_run(server: Any, api: Api, home: Path) -> None:
    marker, command = long_job(home)
    running = start(server, home, "run", command=command)
    wait_for(marker.exists, 60)
    run = api.newest_run("run")["id"]
    running.kill()
    running.wait()
    assert job_state(home) is JobState.RUNNING
    env = {**server.env, "PREFECT_TAO_HOME": str(home)}
    words = [sys.executable, "-m", "prefect_tao.cli", "cancel", "--run", run, "--json"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert job_state(home) is JobState.CANCELED
    assert json.loads(done.stdout)["state"] == "Canceled"
    assert api.state(run) == "CANCELLED"


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
