"""kill -9 of a flow, of a worker, of both and of a direct call: automations bring the runs back, or end their jobs.

On Postgres, because Prefect drops an event for good when its SQLite database stays locked for a moment.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deployed import begin, flow_process, switched_on, worker
from prefect_tools import Api, job_states, start, wait_for

from prefect_tao.jobs.state import JobState

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("postgres"), pytest.mark.timeout(300)]
DEAD = "tao: a run without heartbeat has crashed"
ATTACH = "tao: attach again after a crash"
ORPHANS = "tao: end the jobs of a cancelled run that nobody listens for"
# Prefect allows heartbeats every 30 s at most; some of the time between two is for a machine that is busy. What is
# shipped would wait for nine minutes; all else is as it is shipped.
DEAD_SECONDS = 42
ALONE = "far"  # a queue of its own for the worker that is killed


class Wrecks:
    """Four runs with a job each, and what was killed of them with SIGKILL while the jobs were running."""

    def __init__(self, server: Any, home: Path, folder: Path) -> None:
        self.api, self.folder, self.home = Api(server.api), folder, home
        self.direct = start(server, home, "run", command=self._job("direct"))
        self.runs = {
            "flow": begin(self.api, "run/run", command=self._job("flow")),
            "worker": begin(self.api, "run/run", ALONE, command=self._job("worker")),
            "both": begin(self.api, "run/run", ALONE, command=self._job("both")),
        }

    def _job(self, name: str) -> str:
        marks = self.folder / name
        return f"echo ran >> {marks}; for turn in $(seq 600); do test -e {marks}-go && exit 0; sleep 0.5; done"

    def await_jobs(self) -> None:
        """Until all four jobs run."""
        wait_for(lambda: all((self.folder / name).exists() for name in ("direct", *self.runs)), 180)
        direct = self.api.run_with(self._job("direct"))
        assert direct is not None
        self.runs["direct"] = direct["id"]

    def kill(self, worker: Any) -> None:
        """The flow of one run, the worker of another, both of the third, and the process of the direct call."""
        flows = [wait_for(lambda name=name: flow_process(self.runs[name]), 30) for name in ("flow", "both")]
        for pid in (worker.pid, *flows, self.direct.pid):
            os.kill(pid, signal.SIGKILL)
        worker.wait()
        self.direct.wait()

    def states(self, name: str) -> list[JobState]:
        return job_states(self.home, self.runs[name])

    def went_on(self, name: str) -> bool:
        """Whether the run was begun again and watches its job."""
        run = self.api.run(self.runs[name])
        return run["run_count"] > 1 and run["state"]["type"] == "RUNNING" and flow_process(run["id"]) is not None

    def cancel(self, name: str) -> None:
        self.api.set_state(self.runs[name], "CANCELLING")

    def assert_canceled(self, name: str) -> None:
        wait_for(lambda: self.api.state(self.runs[name]) == "CANCELLED", 120)
        assert self.states(name) == [JobState.CANCELED]
        assert (self.folder / name).read_text() == "ran\n"


@pytest.fixture(scope="module")
def wrecks(big: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wrecks]:
    """The wrecks, with the automations at work that look after them, and a worker that stands by."""
    api, folder = Api(big.api), tmp_path_factory.mktemp("wrecks")
    home = folder / "home"
    with ExitStack() as held:
        held.enter_context(switched_on(api, DEAD, within=DEAD_SECONDS))
        held.enter_context(switched_on(api, ATTACH))
        held.enter_context(switched_on(api, ORPHANS))
        held.enter_context(worker(big.env, folder, "standing", PREFECT_TAO_HOME=str(home)))
        doomed = held.enter_context(worker(big.env, folder, "doomed", ALONE, PREFECT_TAO_HOME=str(home)))
        made = Wrecks(big, home, folder)
        made.await_jobs()
        made.kill(doomed)
        made.cancel("worker")
        made.cancel("direct")
        yield made
        for run in made.runs.values():
            with suppress(TypeError, ProcessLookupError):  # there is none any more
                os.kill(flow_process(run), signal.SIGKILL)


def test_after_kill_of_a_worker_a_cancellation_still_ends_the_job(wrecks: Wrecks) -> None:
    wrecks.assert_canceled("worker")


def test_after_kill_of_a_direct_run_a_cancellation_is_finished_by_a_worker(wrecks: Wrecks) -> None:
    wrecks.assert_canceled("direct")
    assert wrecks.api.run(wrecks.runs["direct"])["state"]["message"] == "its jobs are over"
    states = wrecks.api.states(wrecks.runs["direct"])
    told = next(state for state in states if state["type"] == "CANCELLING")
    took = datetime.fromisoformat(states[-1]["timestamp"]) - datetime.fromisoformat(told["timestamp"])
    assert took < timedelta(minutes=1)


def test_after_kill_of_a_flow_its_run_attaches_to_its_job_again_and_can_be_cancelled(wrecks: Wrecks) -> None:
    wait_for(lambda: wrecks.went_on("flow"), 120)
    assert wrecks.states("flow") == [JobState.RUNNING]
    wrecks.cancel("flow")
    wrecks.assert_canceled("flow")


def test_after_kill_of_worker_and_flow_the_missing_heartbeat_brings_the_run_to_another_worker(
    big: Any, wrecks: Wrecks
) -> None:
    run = wrecks.runs["both"]
    wait_for(lambda: any("no heartbeat" in (state["message"] or "") for state in wrecks.api.states(run)), 150)
    assert wrecks.states("both") == [JobState.RUNNING]
    with worker(big.env, wrecks.folder, "comes", ALONE, PREFECT_TAO_HOME=str(wrecks.home)):
        wait_for(lambda: wrecks.went_on("both"), 120)
        (wrecks.folder / "both-go").touch()
        wait_for(lambda: wrecks.api.state(run) == "COMPLETED", 120)
    assert wrecks.states("both") == [JobState.COMPLETE]
    assert (wrecks.folder / "both").read_text() == "ran\n"
