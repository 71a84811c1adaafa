"""The flow `automl` on a real server: complete searches, failures that are no scores, budgets, stops and restarts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect_tools import Api, call, job_states, start, wait_for

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.errors import InvalidInput, JobFailed
from prefect_tao.jobs.search_board import SearchFolder
from prefect_tao.jobs.search_outcome import SearchOutcome
from prefect_tao.jobs.state import JobState

pytestmark = pytest.mark.xdist_group("prefect-pages")
TINY: dict[str, Any] = {"model": "tiny", "action": "train", "overrides": {"num_epochs": 2}}


def command(folder: Path, then: str) -> dict[str, Any]:
    """A command over one number x that leaves a mark for each time it runs, and its metric in a file."""
    script = (
        "import json, os, pathlib, sys, time; "
        "x = json.load(open(sys.argv[1]))['x']; "
        "number = json.loads(os.environ['PREFECT_TAO_TRIAL'])['number']; "
        f"mark = pathlib.Path({str(folder)!r}); mark.mkdir(exist_ok=True); "
        "open(mark / str(number), 'a').write('ran\\n'); "
        "results = pathlib.Path(os.environ['TAO_RESULTS_DIR']); results.mkdir(parents=True, exist_ok=True); "
        f"{then}"
    )
    return {
        "command": f"{sys.executable} -c {json.dumps(script)} {{config_path}}",
        "config_format": "json",
        "specs": {"x": 0.9},
        "custom_param_ranges": {"x": {"valid_min": 0.0, "valid_max": 1.0}},
        "metric": "loss",
        "direction": "minimize",
        "metric_file": "metrics.json",
    }


LOSS = "(results / 'metrics.json').write_text(json.dumps({'loss': (x - 0.3) ** 2}))"


def test_a_search_over_the_tiny_trainer_runs_to_its_end_with_page_winner_and_evaluation(
    server: Any, api: Api, home: Path
) -> None:
    key = uuid4().hex
    found = call(server, "automl", **TINY, max_trials=6, max_concurrent=3, run_key=key)
    assert isinstance(found, SearchOutcome)
    assert [point.number for point in found.points] == list(range(6))
    assert found.points[0].overrides == {"train.optim.lr": 0.1, "train.batch_size": 16, "train.hidden": 24}
    best = found.best
    assert best is not None
    assert best.metrics["val_loss"] == min(point.metrics["val_loss"] for point in found.points)
    assert found.spec["train"]["optim"]["lr"] == best.overrides["train.optim.lr"]
    assert "num_epochs" not in found.spec["train"]
    assert set(found.final) == {"test_accuracy", "test_loss"}
    assert found.winner is not None
    assert found.winner.checkpoints
    kept = [path for path in home.rglob("*.ckpt") if found.winner.handle.key not in path.parts]
    assert kept == []  # those of trials that lost are removed
    page = api.page("leaderboard", SearchFolder(key).key)
    assert "6 of 6" in page["description"] or "6 complete" in page["data"]
    for words in ("optimisation history", "learning curves", "the metric over each parameter", "### Best"):
        assert words in page["data"]
    assert f"| evaluation of the winner | {found.evaluations['evaluation of the winner']} |" in page["data"]
    assert "first trials" in api.page("search", SearchFolder(key).key)["data"]
    # What other commands see of it.
    env = {**server.env, "PREFECT_TAO_HOME": str(home)}
    elsewhere = {**env, "PREFECT_TAO_HOME": str(home.parent / "another-machine")}
    asked = [(["best", "--json"], env), (["export", key, "--json"], env), (["status", key, "--json"], elsewhere)]
    for words, where in asked:
        line = [sys.executable, "-m", "prefect_tao.cli", "automl", *words]
        told = subprocess.run(line, env=where, capture_output=True)
        assert told.returncode == 0, told.stderr
        assert json.loads(told.stdout)
    assert json.loads(told.stdout)["best_number"] == best.number


def test_a_trial_that_fails_or_reports_nothing_is_never_a_score(server: Any, home: Path, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    then = (
        "sys.exit(3) if number == 1 else sys.exit('No space left on device') if number == 3 else None; "
        f"x = float('nan') if number == 0 else x; number == 2 or {LOSS}"
    )
    found = call(server, "automl", **command(marks, then), max_trials=6, max_concurrent=1)
    states = [point.state for point in found.points]
    assert states[1:4] == [StepState.ERROR, StepState.COMPLETE, StepState.ERROR]
    assert [found.score(point) for point in found.points[:4]] == [None] * 4
    assert found.points[0].message == "its metric is not a number"  # and the search goes on
    assert found.points[2].message == "it did not report loss"
    assert found.points[4].overrides == found.points[3].overrides  # which the machines failed, and not its values
    assert found.best is not None
    assert found.best.number >= 4
    assert sorted(mark.name for mark in marks.iterdir()) == list("0123456")


def test_a_trial_that_stays_behind_is_ended_while_it_runs(server: Any, home: Path, tmp_path: Path) -> None:
    told = "{'epoch': e, 'max_epoch': 400, 'kpi': {'loss': (number if number < 6 else 100) + 1 / e}}"
    then = (
        "status = open(results / 'status.json', 'a'); "
        f"[(print(json.dumps({told}), file=status, flush=True), time.sleep(0.2 * (number > 5))) "
        "for e in range(1, 5 if number < 6 else 400)]"
    )
    given = {**command(tmp_path / "marks", then), "metric_file": None, "automl_settings": {"automl_early_stop": True}}
    found = call(server, "automl", **given, algorithm="random", max_trials=8, max_concurrent=3)
    behind = found.points[6:]
    assert all(3 <= max(point.curve) < 399 and found.score(point) >= 100 for point in behind)
    assert found.best is not None
    assert found.best.number == 0
    assert sorted(job_states(home)) == [JobState.CANCELED] * 2 + [JobState.COMPLETE] * 6


def test_a_metric_that_never_appears_ends_the_search_after_the_first_trial(
    server: Any, home: Path, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    with pytest.raises(JobFailed, match="reported no metric at all, and not loss"):
        call(
            server, "automl", **command(marks, "time.sleep(0.2 if number == 0 else 30)"), max_trials=9, max_concurrent=2
        )
    assert len(list(marks.iterdir())) <= 2


def test_bad_input_is_refused_before_anything_is_launched(server: Any, api: Api, home: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no algorithm 'bayesain'"):
        call(server, "automl", **TINY, algorithm="bayesain")
    with pytest.raises(InvalidInput, match="stays with its trials"):
        call(server, "run", model="dino", action="train", max_trials=3, long_running_enabled=False)
    assert not (home / "jobs").exists()


def test_the_time_that_a_search_may_take_ends_it_and_keeps_the_best(server: Any, home: Path, tmp_path: Path) -> None:
    then = f"time.sleep(0 if number == 0 else 60); {LOSS}"
    found = call(server, "automl", **command(tmp_path / "marks", then), max_trials=9, max_concurrent=2, max_hours=0.002)
    assert found.stopped == "the 0.002 hours are over"
    assert found.best is not None
    assert found.best.number == 0


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"max_cost": 0.02, "gpu_hour_price": 10.0}, "the budget of 0.02 is used"),
        pytest.param({"max_gpu_hours": 0.002}, "the 0.002 GPU hours are used", marks=pytest.mark.long),
    ],
)
def test_gpu_hours_and_money_that_are_used_up_end_the_search_and_keep_the_best(
    server: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, float], words: str
) -> None:
    monkeypatch.setenv("PREFECT_TAO_GPUS", "0")
    given = {**command(tmp_path / "marks", f"{LOSS}; time.sleep(0.5)"), "gpus": 1, "max_trials": 100}
    found = call(server, "automl", **given, max_concurrent=1, **budget)
    assert found.stopped == words
    assert found.best is not None
    assert found.count(StepState.COMPLETE) < 100
    assert found.gpu_hours >= 0.0019


def test_a_search_that_is_killed_goes_on_without_a_trial_lost_or_run_twice(
    server: Any, api: Api, home: Path, tmp_path: Path
) -> None:
    marks, key = tmp_path / "marks", uuid4().hex
    then = (
        "[time.sleep(0.05) for _ in iter(lambda: len(list(mark.iterdir())) < 2, False)]; "  # two run side by side
        f"time.sleep(1.5 * (number > 1)); sys.exit(number == 2) if number == 2 else {LOSS}"
    )
    given = {**command(marks, then), "max_trials": 6, "max_concurrent": 2, "run_key": key}
    running = start(server, home, "automl", **given)
    wait_for(lambda: marks.is_dir() and len(list(marks.iterdir())) >= 3, 90)
    running.send_signal(signal.SIGKILL)
    running.wait()
    wait_for(lambda: JobState.RUNNING not in job_states(home))
    # Another worker has no storage of it, and rebuilds the study from the records of the jobs. Of jobs that are over,
    # platforms may keep nothing but the labels.
    database = SearchFolder(key).database
    outdated = database.read_bytes()
    database.unlink()
    forget(home, "request")
    found = call(server, "automl", **given)
    assert [point.number for point in found.points] == list(range(6))
    assert [point.number for point in found.points if point.state is not StepState.COMPLETE] == [2]
    assert all((x := point.overrides["x"]) and found.score(point) in (None, (x - 0.3) ** 2) for point in found.points)
    assert {mark.name: mark.read_text() for mark in marks.iterdir()} == {str(number): "ran\n" for number in range(6)}
    # The first worker is asked again: its storage knows less than there is by now.
    database.write_bytes(outdated)
    again = call(server, "automl", **given)
    assert [one.overrides for one in again.points] == [one.overrides for one in found.points]
    assert {mark.read_text() for mark in marks.iterdir()} == {"ran\n"}
    database.unlink()
    forget(home, "labels")
    with pytest.raises(InvalidInput, match="not known any more what it has tried"):
        call(server, "automl", **given)


def forget(home: Path, what: str) -> None:
    """Take a part out of the records of all jobs."""
    for record in (home / "jobs").glob("*/job.json"):
        told = json.loads(record.read_text())
        del told[what]
        record.write_text(json.dumps(told))


def test_a_person_stops_a_search_and_keeps_the_best(server: Any, api: Api, home: Path, tmp_path: Path) -> None:
    marks, key = tmp_path / "marks", uuid4().hex
    given = {**command(marks, f"time.sleep(0 if number < 2 else 120); {LOSS}"), "run_key": key, "max_concurrent": 2}
    running = start(server, home, "automl", **given)
    board = SearchFolder(key)
    wait_for(lambda: (found := board.read()) and found.best and found.count(StepState.RUNNING) == 2, 90)
    env = {**server.env, "PREFECT_TAO_HOME": str(home), "PREFECT_API_URL": server.api}
    words = [sys.executable, "-m", "prefect_tao.cli", "automl", "stop", key]
    assert subprocess.run(words, env=env, capture_output=True).returncode == 0
    assert running.wait(60) == 0
    found = board.read()
    assert found is not None
    assert found.stopped == "a person stopped it"
    assert found.best is not None
    assert api.newest_run("automl")["state"]["type"] == "COMPLETED"


def test_a_promoted_trial_goes_on_from_its_own_checkpoint(server: Any, home: Path) -> None:
    given = {
        **TINY,
        "algorithm": "asha",
        "max_epochs": 3,
        "max_trials": 4,
        "max_concurrent": 2,
        "final_evaluation": False,
        "score_epoch": "last",
    }
    found = call(server, "automl", **given, keep_checkpoints="all", run_key=uuid4().hex)
    assert all(found.score(point) == point.curve[max(point.curve)] for point in found.points)
    promoted = [point for point in found.points if point.parent is not None]
    assert promoted
    for point in promoted:
        assert point.handle is not None
        parent = next(other for other in found.points if other.number == point.parent)
        assert sorted(point.curve) == list(range((parent.epochs or 0) + 1, (point.epochs or 0) + 1))
        assert point.overrides == parent.overrides
    assert found.best is not None
    assert found.best.epochs == 3


def test_the_checkpoint_that_a_search_begins_with_is_evaluated_first(server: Any, home: Path) -> None:
    start = call(server, "run", model="tiny", action="train", overrides={"num_epochs": 1}).checkpoints[-1]
    begun = {"num_epochs": 2, "train.resume_training_checkpoint_path": start}
    found = call(server, "automl", **{**TINY, "overrides": begun}, parameters=["learning_rate"], max_trials=1)
    assert set(found.baseline) == {"test_accuracy", "test_loss"}
    assert list(found.points[0].curve) == [2]  # the first epoch is in the checkpoint
    assert Path(start).exists()


def test_a_chain_hands_the_winner_of_a_search_to_evaluate_and_export(server: Any, api: Api, home: Path) -> None:
    key = uuid4().hex
    steps = [
        {"name": "search", "kind": "automl", "action": "train", "max_trials": 2, "evaluate_trials": True},
        {"action": "evaluate"},
        {"action": "export"},
    ]
    found = call(server, "chain", model="tiny", steps=steps, overrides={"num_epochs": 2}, run_key=key)
    assert [step.state for step in found.steps] == [StepState.COMPLETE] * 3
    winner = found["search"].outcome
    assert winner is not None
    assert found["evaluate"].outcome.metrics["test_accuracy"] > 0
    search = SearchFolder(key, "search").read()
    assert search is not None
    assert search.best is not None
    assert search.metric == "test_accuracy"
    assert search.final["test_accuracy"] == search.score(search.best) == max(map(search.score, search.points))
    text = next((home / "jobs").glob(f"{found['evaluate'].outcome.handle.name}/spec.*")).read_text()
    assert winner.handle.key in text
