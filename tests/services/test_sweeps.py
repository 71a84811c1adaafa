"""The flow `sweep` on a real server: a leaderboard, failures by policy, points taken over, cancelling all of it."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect_tools import Api, call, job_states, start, wait_for

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.errors import InvalidInput, JobFailed
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.points import SweepOutcome
from prefect_tao.jobs.state import JobState

pytestmark = pytest.mark.xdist_group("prefect-pages")
MANY = 1000
GIGABYTE = 1024 * 1024  # in the kilobytes that the kernel counts


def counted(folder: Path, then: str = "true") -> str:
    """A command that leaves a mark for each time it runs, named after the value in its spec."""
    return f"number=$(tr -dc 0-9 < {{config_path}}); echo ran >> {folder}/$number; {then}"


def test_a_sweep_ranks_its_points_and_a_second_one_with_its_key_runs_none_of_them_again(
    server: Any, api: Api, home: Path
) -> None:
    given: dict[str, Any] = {
        "model": "tiny",
        "action": "train",
        "over": {"learning_rate": [0.1, 0.001]},
        "overrides": {"num_epochs": 2},
        "run_key": uuid4().hex,
    }
    found = call(server, "sweep", **given)
    assert isinstance(found, SweepOutcome)
    assert found.best is not None
    assert found.best.overrides == {"learning_rate": 0.1}
    run = api.newest_run("sweep")
    assert run["name"] == "sweep: tiny train on process: over learning_rate, num_epochs=2"

    def tagged() -> list[str]:
        tasks = {task["name"]: task for task in api.task_runs(run["id"])}
        points = [task for name, task in tasks.items() if name.startswith("tiny train on process: learning_rate=")]
        return [task["name"] for task in points if {"tiny", "train", "process"} <= set(task["tags"])]

    assert sorted(wait_for(lambda: len(tagged()) == 2 and tagged(), 30))[0].endswith("learning_rate=0.001")
    board = api.page("leaderboard", job_key(given["run_key"], "sweep"))
    for point in found.points:
        assert point.handle
        page = api.page("job", point.handle.key)
        assert f"[page]({page['id']})" in board["data"]
        assert point.label in page["data"]
        assert "data:image/svg" in page["data"], "its curves"
    assert "2 of 2 points complete; best val_loss" in board["description"]
    assert board["data"].count("[log](../../runs/task-run/") == 2
    listed = [sys.executable, "-m", "prefect_tao.cli", "jobs"]
    told = subprocess.run([*listed, "--json"], capture_output=True, check=True).stdout
    assert {row["step"] for row in json.loads(told)} == {"learning_rate=0.1", "learning_rate=0.001"}
    assert "learning_rate=0.1 " in subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    rows = list(csv.DictReader(io.StringIO(found.as_csv())))
    assert [row["learning_rate"] for row in rows] == ["0.1", "0.001"]

    again = call(server, "sweep", **given)
    assert [point.handle for point in again.points] == [point.handle for point in found.points]
    # Who knows only the flow run gives its id, and that of a run that was itself given one.
    for _ in range(2):
        given["run_key"] = api.newest_run("sweep")["id"]
        again = call(server, "sweep", **given)
        assert [point.handle for point in again.points] == [point.handle for point in found.points]
    assert len(list((home / "jobs").iterdir())) == 2


def test_points_that_fail_leave_the_others_alone_and_are_tried_again_with_the_key(
    server: Any, api: Api, home: Path, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    fails = f'test "$number" != 2 -o -e {tmp_path}/mended'
    given: dict[str, Any] = {"command": counted(marks, fails), "over": {"number": [1, 2, 3]}, "run_key": uuid4().hex}
    found = call(server, "sweep", **given)
    assert isinstance(found, SweepOutcome)
    # Prefect refuses to retry a complete run whose result it keeps.
    state = api.newest_run("sweep")["state"]
    assert (state["type"], state["data"]) == ("COMPLETED", None)
    assert state["message"] == "2 of 3 points complete, 1 failed; a retry runs only those"
    assert [point.state for point in found.points] == [StepState.COMPLETE, StepState.ERROR, StepState.COMPLETE]
    assert found.points[1].message
    assert found.points[1].handle is not None
    assert Path(found.points[1].results).is_dir()
    page = api.page("job", found.points[1].handle.key)["data"]
    assert "What to do:" in page  # one that failed has its page
    assert [row["rank"] for row in found.rows()] == ["", "", ""]  # nothing was measured
    (tmp_path / "mended").touch()
    again = call(server, "sweep", **given)
    assert again.count(StepState.COMPLETE) == 3
    assert {mark.name: len(mark.read_text().split()) for mark in marks.iterdir()} == {"1": 1, "2": 2, "3": 1}


def test_with_the_policy_retry_points_that_failed_are_tried_once_more_at_the_end(
    server: Any, home: Path, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    # The second point is good at its second try, the third one never.
    then = f'[ "$number" = 1 ] || {{ [ "$number" = 2 ] && [ $(wc -l < {marks}/2) = 2 ]; }}'
    found = call(server, "sweep", command=counted(marks, then), over={"number": [1, 2, 3]}, on_failure="retry")
    assert [point.state for point in found.points] == [StepState.COMPLETE, StepState.COMPLETE, StepState.ERROR]
    assert {mark.name: len(mark.read_text().split()) for mark in marks.iterdir()} == {"1": 1, "2": 2, "3": 2}


def test_with_the_policy_stop_no_further_point_begins_after_a_failure(
    server: Any, api: Api, home: Path, tmp_path: Path
) -> None:
    key = uuid4().hex
    with pytest.raises(JobFailed, match="1 of 4 points failed; the first was number=1"):
        call(
            server,
            "sweep",
            command=counted(tmp_path, "exit 3"),
            over={"number": [1, 2, 3, 4]},
            max_concurrent=1,
            on_failure="stop",
            run_key=key,
        )
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["1"]
    rows = api.page("leaderboard", job_key(key, "sweep"))["data"]
    assert rows.count("not begun, because another point failed") == 3


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"over": {}}, "no points"),
        ({"over": {"learning_rte": [1]}}, "learning_rte"),
        ({"over": {"hidden": [1]}, "trials": 3}, "trials"),
        ({"over": {"hidden": [1]}, "mode": "bayes"}, "mode: expected"),
        ({"over": {"hidden": [1]}, "train_root": "/no/such/data"}, "/no/such/data"),
    ],
)
def test_a_bad_sweep_is_refused_before_anything_runs(server: Any, home: Path, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        call(server, "sweep", model="tiny", action="train", **wrong)
    assert told in str(refused.value)
    assert not home.exists()


def test_cancelling_a_sweep_ends_all_its_jobs_and_begins_no_other(server: Any, api: Api, home: Path) -> None:
    marks = home.parent / "marks"
    marks.mkdir()
    points = {"number": list(range(120))}
    running = start(server, home, "sweep", command=counted(marks, "sleep 600"), over=points, max_concurrent=100)
    wait_for(lambda: len(list(marks.iterdir())) == 100, 120)
    run = api.newest_run("sweep")["id"]
    api.set_state(run, "CANCELLING")
    wait_for(lambda: api.state(run) == "CANCELLED", 90)
    assert job_states(home) == [JobState.CANCELED] * 100
    assert running.wait(60) == 1
    assert len(list(marks.iterdir())) == 100


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_thousand_points_are_one_flow_run_within_a_gigabyte(
    server: Any, api: Api, home: Path, tmp_path: Path
) -> None:
    given = {"command": counted(tmp_path), "over": {"number": list(range(MANY))}, "max_concurrent": 8}
    swept = start(server, home, "sweep", **given, run_key=uuid4().hex)
    _, status, used = os.wait4(swept.pid, 0)  # what that process alone has used, and no test before it
    assert os.waitstatus_to_exitcode(status) == 0
    assert api.newest_run("sweep")["state"]["type"] == "COMPLETED"
    assert all((tmp_path / str(number)).read_text() == "ran\n" for number in range(MANY))
    assert used.ru_maxrss < GIGABYTE
