"""The flow `chain` on a real server: hand-off, what stops what, what is drawn, and retries at the step that failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect_tools import Api, call, wait_for

from prefect_tao.jobs.chain_outcome import ChainOutcome, StepState
from prefect_tao.jobs.errors import InvalidInput, JobFailed
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.platform import Rendered
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.preflight.gates import GATES

pytestmark = pytest.mark.xdist_group("prefect-pages")


def task_runs(api: Api, run: str, *wanted: str) -> dict[str, dict[str, Any]]:
    """The task runs by name, once the server knows of all that are wanted and how all of them ended."""

    def ended() -> dict[str, dict[str, Any]]:
        found = {task["name"]: task for task in api.task_runs(run)}
        over = all(task["state"]["type"] in ("COMPLETED", "FAILED") for task in found.values())
        return found if over and found.keys() >= set(wanted) else {}

    found: dict[str, dict[str, Any]] = wait_for(ended, 30)
    return found


def test_a_chain_hands_on_what_it_makes_and_shows_who_waited_for_whom(server: Any, api: Api, home: Path) -> None:
    steps = [
        {"action": "train"},
        {"action": "evaluate"},
        {"action": "export"},
        {"name": "list", "command": "ls {steps.train.checkpoint} && ls {steps.export.results} > $TAO_RESULTS_DIR/seen"},
    ]
    key = uuid4().hex
    found = call(server, "chain", model="tiny", steps=steps, overrides={"num_epochs": 2}, run_key=key)
    assert isinstance(found, ChainOutcome)
    assert [step.state for step in found.steps] == [StepState.COMPLETE] * 4
    assert found["evaluate"].outcome is not None
    assert "test_accuracy" in found["evaluate"].outcome.metrics
    assert found["list"].outcome is not None
    assert (Path(found["list"].outcome.results) / "results_dir" / "seen").read_text().split()
    run = api.newest_run("chain")
    assert run["name"] == "tiny: train > evaluate > export > list (num_epochs=2)"
    train, evaluate = "tiny train on process", "tiny evaluate on process"
    tasks = task_runs(api, run["id"], train, evaluate, "list on process", "check: list", "gate: datasets")
    trained, evaluated = tasks[train], tasks[evaluate]
    assert {"tiny", "train", "process"} <= set(trained["tags"])
    ids = {one["id"] for inputs in evaluated["task_inputs"].values() for one in inputs if "id" in one}
    assert ids  # the evaluation is drawn after its gates
    names = [f"gate: {name}" for name in GATES] + [f"check: {step}" for step in ("evaluate", "export", "list")]
    jobs = [train, evaluate, "tiny export on process", "list on process"]
    assert sorted(task["name"] for task in api.task_runs(run["id"])) == sorted(names + jobs)
    page = api.page("chain", job_key(key, "chain"))["data"]
    assert "![the steps and what they wait for](data:image/svg+xml" in page
    assert page.count("| Complete |") == 4
    assert page.count(f"[log](../../runs/task-run/{trained['id']})") == 1
    about = api.page("job", found["train"].outcome.handle.key)
    assert f"| Complete | [page]({about['id']}), [log]" in page


def test_a_failed_step_stops_those_that_wait_for_it_and_a_retry_begins_there(
    server: Any, api: Api, home: Path, tmp_path: Path
) -> None:
    ran, mended, key = tmp_path / "ran", tmp_path / "mended", uuid4().hex
    steps = [
        {"name": "first", "command": f"echo first >> {ran}"},
        {"name": "breaks", "command": f"echo breaks >> {ran}; ls {mended}", "after": "first"},
        {"name": "waits", "command": f"echo waits >> {ran}", "after": "breaks"},
        {"name": "aside", "command": f"echo aside >> {ran}", "after": "first"},
    ]
    with pytest.raises(JobFailed, match=r"2 of 4 steps did not end well: breaks: .*; not begun: waits"):
        call(server, "chain", steps=steps, run_key=key)
    assert sorted(ran.read_text().split()) == ["aside", "breaks", "first"]
    assert api.newest_run("chain")["state"]["type"] == "FAILED"
    page = api.page("chain", job_key(key, "chain"))["data"]
    assert "### breaks: Error" in page
    assert "not begun, because breaks did not end well" in page

    mended.touch()
    found = call(server, "chain", steps=steps, run_key=key)
    assert not found.bad
    assert sorted(ran.read_text().split()) == ["aside", "breaks", "breaks", "first", "waits"]
    assert found["breaks"].outcome.handle.attempt == 2


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a circle": (
        {"steps": [{"name": "a", "command": "x", "after": "b"}, {"name": "b", "command": "y", "after": "a"}]},
        "",
    ),
    "an unknown action": ({"steps": [{"model": "tiny", "action": "fly"}]}, "fly"),
    "a parameter of another version": ({"steps": [{"command": "true"}], "pipeline": 1}, "pipeline"),
    "neither steps nor recipe": ({}, "either steps or a recipe"),
    "an input that is not there": (
        {"steps": [{"command": "true"}, {"name": "b", "command": "ls", "inputs": {"/x": "/no/such/file"}}]},
        "b: input /x: /no/such/file",
    ),
    "two wrong steps at once": (
        {"steps": [{"name": "a", "command": "x", "gpus": 99}, {"name": "b", "command": "y", "secrets": ["NO_SUCH"]}]},
        "NO_SUCH is missing",
    ),
    "a deleted block beside another fault": (
        {
            "steps": [
                {"model": "tiny", "action": "train", "target": "process/gone"},
                {"model": "tiny", "action": "evaluate"},
                {"name": "b", "command": "y", "secrets": ["NO_SUCH"]},
            ]
        },
        "train: there is no saved block for the target process/gone",
    ),
    "results that stay elsewhere": (
        {"steps": [{"model": "tiny", "action": "train"}, {"model": "tiny", "action": "evaluate", "target": "lepton"}]},
        "takes files from train, whose results stay on process",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_with_any_step_is_told_before_the_first_is_launched(server: Any, home: Path, case: str) -> None:
    given, told = BAD[case]
    with pytest.raises(InvalidInput) as refused:
        call(server, "chain", **given)
    assert told in str(refused.value)
    if "NO_SUCH" in str(given):
        assert "b: NO_SUCH is missing" in str(refused.value)  # beside what else is wrong
    assert not home.exists()


def test_a_block_of_another_version_is_told_with_its_fields(server: Any, api: Api, home: Path) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from prefect_tao.blocks import TaoProcess

    with temporary_settings({PREFECT_API_URL: server.api}):
        block = TaoProcess(max_jobs=3).save(f"old-{uuid4().hex[:8]}")
    name = api.ask("GET", f"/block_documents/{block}")["name"]
    api.ask("PATCH", f"/block_documents/{block}", {"data": {"max_jobs": "many"}, "merge_existing_data": False})
    with pytest.raises(InvalidInput, match=r"does not fit this version: max_jobs: .*\n +what to do: save it again"):
        call(server, "chain", steps=[{"command": "true"}], target=f"process/{name}")


def test_an_error_that_nobody_expected_stops_one_step_or_point_and_no_other(
    server: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ProcessPlatform.submit

    async def broken(self: ProcessPlatform, rendered: Rendered, secrets: Any) -> Any:
        if "odd" in rendered.request.command or rendered.request.specs == {"number": 2}:
            raise KeyError("a fault of the driver")
        return await whole(self, rendered, secrets)

    monkeypatch.setattr(ProcessPlatform, "submit", broken)
    steps = [{"name": "odd", "command": "echo odd"}, {"name": "even", "command": "sleep 1"}]
    with pytest.raises(JobFailed, match=r"1 of 2 steps did not end well: odd: KeyError: 'a fault of the driver'"):
        call(server, "chain", steps=steps)
    found = call(server, "sweep", command="cat {config_path}", over={"number": [1, 2, 3]})
    assert [point.state for point in found.points] == [StepState.COMPLETE, StepState.ERROR, StepState.COMPLETE]
    assert found.points[1].message == "KeyError: 'a fault of the driver'"


def test_what_a_step_should_have_made_is_looked_at_again_just_before_it_is_used(server: Any, home: Path) -> None:
    steps = [
        {"name": "train", "command": "true"},
        {"model": "tiny", "action": "evaluate"},
    ]
    with pytest.raises(JobFailed, match=r"none of the 0 result files of the earlier steps is a \.pth"):
        call(server, "chain", steps=steps)


def test_the_command_ends_with_0_1_and_2_and_speaks_json(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from prefect_tao.cli import main

    def cli(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["prefect-tao", *words])
        settings = {PREFECT_API_URL: server.api, PREFECT_HOME: server.home}
        with temporary_settings(settings), pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    (tmp_path / "chain.yaml").write_text("steps:\n- {name: one, command: 'true'}\n- {name: two, command: exit 3}\n")
    chain = ("chain", str(tmp_path / "chain.yaml"), "--run-key", "again", "--run-dir", str(tmp_path / "runs"))
    code, _, told = cli(*chain)
    assert code == 1
    (folder,) = (tmp_path / "runs" / "chain").iterdir()
    files = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert files["metadata"]["parameters"]["run_key"] == "again"
    assert (files["active_jobs"], len(files["status"]["jobs"])) == ([], 2)
    steps = {name: step["state"] for name, step in files["status"]["steps"].items()}
    assert steps == {"one": "Complete", "two": "Error"}
    assert [one["step"] for one in files["failure_analysis"]["failures"]] == ["two"]
    assert len((folder / "status_events.jsonl").read_text().splitlines()) >= 2
    assert "two: " in told
    assert "chain " in told
    assert "--run-key again" in told  # how to go on
    (tmp_path / "chain.json").write_text(json.dumps({"steps": [{"name": "one", "command": "true"}]}))
    code, out, told = cli("chain", str(tmp_path / "chain.json"), "--json")
    assert code == 0, told
    assert json.loads(out)["steps"][0]["state"] == "Complete"
    assert "one  Complete" in told
