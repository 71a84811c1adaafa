"""Prefect on Postgres, two workers, one results folder: when one worker dies, the other goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from deployed import begin, flow_process, worker
from prefect_tools import Api, job_states, wait_for

from prefect_tao.jobs.state import JobState

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("postgres"), pytest.mark.timeout(300)]
POINTS, AT_ONCE = 4, 2


def sweep(api: Api, home: Path) -> tuple[str, Path]:
    """Begin a sweep of jobs that wait to be let go; its run, and the file in which they note that they ran."""
    runs, let_go = home.parent / "runs", home.parent / "let_go"
    command = f"echo {{config_path}} >> {runs}; until [ -e {let_go} ]; do sleep 0.2; done"
    points = {"over": {"number": list(range(POINTS))}, "specs": {"number": 0}, "max_concurrent": AT_ONCE}
    return begin(api, "sweep/sweep", command=command, **points), runs


def kill_mid_sweep(process: Any, run: str, runs: Path) -> None:
    """A machine that loses power: the worker and the flow's process are gone at once; its jobs are half-way."""
    flow = wait_for(lambda: flow_process(run), 30)
    os.kill(process.pid, signal.SIGKILL)
    os.kill(flow, signal.SIGKILL)
    process.wait()
    (runs.parent / "let_go").touch()


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
        wait_for(lambda: runs.exists() and len(runs.read_text().splitlines()) == AT_ONCE, 120)
        with worker(big.env, home.parent, "second", **shared(home)):
            kill_mid_sweep(first, run, runs)
            for state in ("CRASHED", "SCHEDULED"):  # as the automations would, or a person who presses Retry
                api.set_state(run, state)
            assert_done_once(api, run, home, runs)
