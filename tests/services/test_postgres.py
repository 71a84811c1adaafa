"""More than one machine's worth: Prefect on Postgres, two workers, one results folder; a worker dies, the other goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debian
import postgres
import pytest
from deployed import begin, deploy, worker
from prefect_server import PrefectServer
from prefect_tools import Api, job_states, wait_for

from prefect_tao.jobs.state import JobState

pytestmark = pytest.mark.xdist_group("postgres")
POINTS = 4
# Each job notes that it ran; a job that ran twice has two lines.
JOB = "echo {spec} >> {runs}; sleep 4"


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Prefect server on Postgres, with all deployments."""
    folder = tmp_path_factory.mktemp("postgres")
    try:
        with postgres.cluster(folder) as address:
            server = PrefectServer(tmp_path_factory.mktemp("prefect"), PREFECT_API_DATABASE_CONNECTION_URL=address)
            server.start()
            try:
                deploy(server.env)
                yield server
            finally:
                server.stop()
    except debian.Missing as missing:
        pytest.skip(str(missing))


def flow_process(run: str) -> int | None:
    """The process that runs this flow run: its id stands in its environment."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            if b"prefect.flow_engine" in words and run.encode() in (folder / "environ").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    return None


def sweep(api: Api, home: Path) -> tuple[str, Path]:
    """Begin a sweep of slow jobs; its run, and the file in which the jobs note that they ran."""
    runs = home.parent / "runs"
    command = f"sh -c 'echo {{config_path}} >> {runs}; sleep 4'"
    return begin(
        api, "sweep/sweep", command=command, over={"number": list(range(POINTS))}, specs={"number": 0}, max_concurrent=2
    ), runs


def kill_with_its_flow(process: Any, run: str) -> None:
    """A machine that loses power: the worker and the flow's process are gone at once."""
    flow = wait_for(lambda: flow_process(run), 30)
    os.kill(process.pid, signal.SIGKILL)
    os.kill(flow, signal.SIGKILL)
    process.wait()


def assert_done_once(api: Api, run: str, home: Path, runs: Path) -> None:
    wait_for(lambda: api.state(run) in ("COMPLETED", "FAILED"), 120)
    assert api.state(run) == "COMPLETED", api.run(run)["state"]
    assert job_states(home) == [JobState.COMPLETE] * POINTS
    assert len(runs.read_text().splitlines()) == POINTS
    assert api.run(run)["run_count"] == 2


def shared(folder: Path) -> dict[str, str]:
    """What both workers have: one folder for jobs and results, as a file system that two machines mount."""
    return {"PREFECT_TAO_HOME": str(folder), "PREFECT_LOCAL_STORAGE_PATH": str(folder / "prefect")}


def test_when_a_worker_dies_in_a_sweep_a_retry_on_the_other_one_finishes_it(big: Any, home: Path) -> None:
    api = Api(big.api)
    with worker(big.env, home.parent, "first", **shared(home)) as first:
        run, runs = sweep(api, home)
        wait_for(runs.exists, 90)
        with worker(big.env, home.parent, "second", **shared(home)):
            kill_with_its_flow(first, run)
            api.set_state(run, "CRASHED")
            assert_done_once(api, run, home, runs)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_without_a_person_the_missing_heartbeat_brings_it_back(big: Any, home: Path) -> None:
    api = Api(big.api)
    beats = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
    (automation,) = [one for one in api.ask("POST", "/automations/filter", {}) if "heartbeat" in one["name"]]
    quick = {**automation, "trigger": {**automation["trigger"], "within": 90}}
    kept = ("name", "description", "enabled", "trigger", "actions", "actions_on_trigger", "actions_on_resolve", "tags")
    api.ask("PUT", f"/automations/{automation['id']}", {key: quick[key] for key in kept})
    with worker(big.env, home.parent, "first", **shared(home), **beats) as first:
        run, runs = sweep(api, home)
        wait_for(runs.exists, 90)
        with worker(big.env, home.parent, "second", **shared(home), **beats):
            kill_with_its_flow(first, run)
            wait_for(lambda: api.run(run)["run_count"] == 2, 240)
            assert_done_once(api, run, home, runs)
