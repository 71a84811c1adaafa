"""A cancelled run ends its job, verified; a dead run leaves it. Under serve and in a direct call."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import Api, call, interrupt, job_states, start, wait_for

from prefect_tao.jobs import verdict as verdicts
from prefect_tao.jobs.errors import JobCanceled, JobFailed
from prefect_tao.jobs.events import Event, StateChanged
from prefect_tao.jobs.listening import Listener
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.verdict import POLICIES, Category
from prefect_tao.tasks.reporting import listeners

# Those who share the one server run one after the other.
pytestmark = pytest.mark.xdist_group("prefect-server")
SERVE = """
from prefect.deployments.runner import EntrypointType
from prefect_tao.flows import run
run.serve(name="served", entrypoint_type=EntrypointType.MODULE_PATH)
"""


def job_state(home: Path) -> JobState:
    """The state of the one job there is."""
    (state,) = job_states(home)
    return state


def long_job(home: Path) -> tuple[Path, str]:
    marker = home.parent / "started"
    return marker, f"echo started >> {marker}; sleep 100 & wait"


def cancel_run(server: Any, home: Path, run: str) -> subprocess.CompletedProcess[str]:
    env = {**server.env, "PREFECT_TAO_HOME": str(home)}
    words = [sys.executable, "-m", "prefect_tao.cli", "cancel", "--run", run, "--json"]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=90)


def dead_run(api: Api, name: str, labels: dict[str, bool] | None = None, **parameters: Any) -> str:
    """A run as one whose process was killed leaves it."""
    flow = api.ask("POST", "/flows/", {"name": name})["id"]
    body = {"flow_id": flow, "parameters": parameters, "labels": labels or {}, "state": {"type": "RUNNING"}}
    return str(api.ask("POST", "/flow_runs/", body)["id"])


@pytest.fixture
def served(server: Any, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`run.serve(...)` in a process of its own."""
    env = {**server.env, "PREFECT_TAO_HOME": str(home), "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    with open(home.parent / "serve.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE], env=env, stdout=log, stderr=log)
    yield process
    interrupt(process)


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
    logs = api.logs(run)
    assert not [line for line in logs if "Crash" in line], logs
    (name,) = (path.name for path in (home / "jobs").iterdir())
    key = name.removeprefix("tao-").removesuffix("-1")
    wait_for(lambda: "| state | **Canceled**" in api.page("job", key)["data"], 30)
    tasks = {task["name"]: task["state"] for task in api.task_runs(run)}
    assert tasks["echo on process"]["message"] == f"echo on process: {name} was cancelled and is over"
    assert tasks["echo on process"]["type"] == "CANCELLED"


def test_after_kill_of_a_direct_call_one_command_ends_its_job_and_the_run(server: Any, api: Api, home: Path) -> None:
    marker, command = long_job(home)
    running = start(server, home, "run", command=command)
    wait_for(marker.exists, 60)
    run = api.newest_run("run")["id"]
    running.kill()
    running.wait()
    assert job_state(home) is JobState.RUNNING
    done = cancel_run(server, home, run)
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
        # The call within it has no jobs of its own, and is not said to have ended any.
        refused = await asyncio.to_thread(cancel_run, server, home, api.newest_run("run")["id"])
        assert refused.returncode == 2
        assert f"was called by the run {flow_run.id}" in refused.stderr
        await cancel_jobs(flow=mine, flow_run=flow_run, state=flow_run.state)  # as Prefect's worker calls it

    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        asyncio.run(launch_then_cancel())
    assert job_state(home) is JobState.CANCELED


def test_cancelling_a_dead_run_that_watched_a_job_ends_that_job(server: Any, api: Api, home: Path) -> None:
    handle = call(server, "run", command="sleep 100", long_running_enabled=False)
    watching = dead_run(api, "watch", job=handle.name, target="process")
    done = cancel_run(server, home, watching)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"name": handle.name, "state": "Canceled"}
    assert job_state(home) is JobState.CANCELED
    assert api.state(watching) == "CANCELLED"


def test_a_target_that_is_gone_keeps_no_job_of_another_one_alive(server: Any, api: Api, home: Path) -> None:
    call(server, "run", command="sleep 100", long_running_enabled=False, run_key="two-places")
    labels = {"tao.target.process": True, "tao.target.process/aaa-gone": True}
    run = dead_run(api, "chain", labels, run_key="two-places")
    done = cancel_run(server, home, run)
    assert done.returncode == 2
    assert "there is no saved block for the target process/aaa-gone" in done.stderr
    assert job_state(home) is JobState.CANCELED
    assert api.state(run) == "CANCELLING"  # it is not over: nobody knows of the jobs there


def test_the_flow_that_watches_stays_to_the_end_of_the_job(server: Any, home: Path) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from prefect_tao.flows import watch

    handle = call(server, "run", command="sleep 2", long_running_enabled=False)
    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        outcome = asyncio.run(watch(handle.name))
    assert outcome.state is JobState.COMPLETE
    assert outcome.handle == handle
    assert job_state(home) is JobState.COMPLETE


def test_a_job_that_was_over_before_is_told_about_and_not_tried_again(server: Any, home: Path) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from prefect_tao.flows import watch

    # It was preempted, which a run that stays with its job answers with another attempt.
    handle = call(server, "run", command="kill -TERM $PPID; sleep 30", long_running_enabled=False)
    wait_for(lambda: job_states(home) not in ([JobState.PENDING], [JobState.RUNNING]), 30)
    with (
        temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}),
        pytest.raises((JobFailed, JobCanceled)),
    ):
        asyncio.run(watch(handle.name))
    assert len(job_states(home)) == 1


def test_further_attempts_of_a_job_that_was_there_do_what_that_one_was_asked_to(
    server: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = {**POLICIES, Category.PREEMPTED: replace(POLICIES[Category.PREEMPTED], backoff_seconds=0.1)}
    monkeypatch.setattr(verdicts, "POLICIES", hasty)
    ran, go = tmp_path / "ran", tmp_path / "go"
    until = f"while [ ! -e {go} ]; do sleep 0.1; done"
    first = f"echo first >> {ran}; [ $TAO_ATTEMPT = 2 ] || {{ {until}; kill -TERM $PPID; sleep 30; }}"
    call(server, "run", command=first, long_running_enabled=False, run_key="kept")

    class Ear(Listener):
        async def hear(self, event: Event) -> None:
            if isinstance(event, StateChanged):  # not before the second run has found the job: it would be over then
                go.touch()

    token = listeners.set((Ear(),))
    try:  # whoever comes later asks for something else, and attaches to what is there
        outcome = call(server, "run", command=f"echo other >> {ran}", run_key="kept")
    finally:
        listeners.reset(token)
    assert (outcome.state, outcome.handle.attempt) == (JobState.COMPLETE, 2)
    assert ran.read_text().split() == ["first", "first"]
