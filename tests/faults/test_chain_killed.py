"""kill -9 of the process that runs a chain or a sweep: jobs go on, a new run attaches, and nothing runs twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect_tools import Api, call, job_states, start, wait_for

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.state import JobState

pytestmark = pytest.mark.xdist_group("prefect-server")
QUICK, FULL = 1, 10


def kill(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def counts(marks: Path) -> dict[str, int]:
    """How often each thing ran."""
    return {mark.name: len(mark.read_text().split()) for mark in marks.iterdir()}


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    folder = tmp_path / "marks"
    folder.mkdir()
    return folder


def test_a_killed_chain_goes_on_where_its_jobs_are(server: Any, home: Path, marks: Path) -> None:
    steps = [
        {"name": "first", "command": f"echo ran >> {marks}/first"},
        {"name": "second", "command": f"echo ran >> {marks}/second; sleep 4; echo done > $TAO_RESULTS_DIR/done"},
        {"name": "third", "command": f"cat {{steps.second.results}}/done && echo ran >> {marks}/third"},
    ]
    steps[1]["after"] = "first"
    given: dict[str, Any] = {"steps": steps, "run_key": uuid4().hex}
    doomed = start(server, home, "chain", **given)
    wait_for((marks / "second").exists, 90)
    kill(doomed)
    assert JobState.RUNNING in job_states(home)
    found = call(server, "chain", **given)
    assert not found.bad
    assert counts(marks) == {"first": 1, "second": 1, "third": 1}
    assert len(job_states(home)) == 3


@pytest.mark.parametrize(
    "seed", [seed if seed < QUICK else pytest.param(seed, marks=pytest.mark.long) for seed in range(FULL)]
)
def test_a_killed_sweep_goes_on_and_no_point_runs_twice(server: Any, home: Path, marks: Path, seed: int) -> None:
    command = f"number=$(tr -dc 0-9 < {{config_path}}); echo ran >> {marks}/$number; sleep 1"
    given: dict[str, Any] = {
        "command": command,
        "over": {"number": list(range(24))},
        "max_concurrent": 6,
        "run_key": uuid4().hex,
    }
    doomed = start(server, home, "sweep", **given)
    wait_for(lambda: len(counts(marks)) >= 6, 90)
    time.sleep(random.Random(seed).uniform(0.0, 2.0))
    kill(doomed)
    found = call(server, "sweep", **given)
    assert found.count(StepState.COMPLETE) == 24
    assert counts(marks) == {str(number): 1 for number in range(24)}


def test_cancelling_a_chain_ends_all_its_jobs_and_begins_no_step(
    server: Any, api: Api, home: Path, marks: Path
) -> None:
    steps: list[dict[str, Any]] = [
        {"name": name, "command": f"echo ran >> {marks}/{name}; sleep 600"} for name in ("left", "right")
    ]
    steps.append({"name": "last", "command": f"echo ran >> {marks}/last", "after": ["left", "right"]})
    running = start(server, home, "chain", steps=steps)
    wait_for(lambda: len(counts(marks)) == 2, 90)
    run = api.newest_run("chain")["id"]
    api.set_state(run, "CANCELLING")
    wait_for(lambda: api.state(run) == "CANCELLED", 60)
    assert job_states(home) == [JobState.CANCELED] * 2
    assert running.wait(60) == 1
    assert set(counts(marks)) == {"left", "right"}
