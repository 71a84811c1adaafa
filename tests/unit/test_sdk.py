"""The core API for people who write Python, and the TAO SDK's own code samples run on it."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from opened_platforms import process_at
from process_tools import COUNTED, LONG, job, new_key, waits_for
from typer.testing import CliRunner

import prefect_tao
from prefect_tao import InvalidInput, Job, Sdk, aconnect, connect
from prefect_tao.cli import app
from prefect_tao.jobs.state import JobState
from prefect_tao.launch.verbs import Verbs
from prefect_tao.platforms.process import job_folder
from prefect_tao.runner import build_entrypoint
from prefect_tao.storage.objects import NotThere

ENDS = ("Complete", "Error", "Canceled")
# As the SDK's documentation has them, with another import line and a shorter pause.
POLLING = """
import time
status_interval_minutes = status_interval_minutes or 5
while True:
    status = sdk.get_job_status(job.id)
    if status.status in ("Complete", "Error", "Canceled"):
        break
    print(f"  {status.status}")
    time.sleep(status_interval_minutes * 60)

if status.status == "Error":
    print(sdk.get_job_logs(job.id, tail=100))
    print(sdk.get_failure_analysis(job.id))
"""
MONITORING = """
status = sdk.get_job_status(job.id)
print(status.status)   # Pending, Running, Complete, Error, Canceled
print(status.message)  # platform-specific detail

logs = sdk.get_job_logs(job.id, tail=200)
print(logs)

for r in sdk.get_job_replicas(job.id):
    issue = r["status"].get("readiness_issue")
    if issue:
        print(issue["reason"], issue["message"])

analysis = sdk.get_failure_analysis(job.id)
if analysis:
    print(analysis["err_class"])   # ERR_PROGRAM, ERR_INFRA, etc.
    print(analysis["suggestion"])  # human-readable fix
    for event in analysis.get("job_failure_by_node_event", []):
        print(event["node_event_name"], event["message"])
"""
DATASETS = """
assert sdk.check_path(dataset_uri + "/")
files = sdk.list_path(dataset_uri + "/train/")

base = dataset_uri.rstrip("/")
specs["dataset"]["train_csv"] = f"{base}/train.csv"
"""


def ended(sdk: Sdk, job: Job) -> str:
    deadline = time.monotonic() + 30
    while (status := sdk.get_job_status(job.id)).status not in ENDS:
        assert time.monotonic() < deadline, status
        time.sleep(0.02)
    return status.status


def test_the_samples_of_the_sdk_run_with_another_import_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "train").mkdir(parents=True)
    (data / "train" / "0.png").touch()
    sdk, specs = connect("process"), {"dataset": {}}
    names: dict[str, Any] = {"sdk": sdk, "dataset_uri": str(data), "specs": specs, "status_interval_minutes": 0.0005}
    exec(DATASETS, names)
    assert names["files"] == [str(data / "train" / "0.png")]
    entrypoint = build_entrypoint(
        command="echo ValueError: num_classes is 3; cat {config_path}; exit 3", specs=specs, outputs={"results_dir": {}}
    )
    names["job"] = sdk.create_job(image=None, command=entrypoint["command"], gpu_count=0, env_vars={"A": "b"})
    exec(POLLING, names)
    exec(MONITORING, names)
    shown = capsys.readouterr().out
    assert "num_classes is 3" in shown
    assert f"{data}/train.csv" in shown
    assert "ERR_PROGRAM" in shown
    assert names["analysis"]["suggestion"]


def test_a_key_makes_a_repeated_call_attach_and_no_key_a_new_job() -> None:
    with connect() as sdk:
        first = sdk.create_job(command=COUNTED, key="once")
        assert ended(sdk, first) == "Complete"
        again = connect("process").create_job(command=COUNTED, key="once")
        assert (again.id, again.attached, first.attached) == (first.id, True, False)
        assert again.status == "Complete"
        assert len(sdk.list_path(f"{first.results_dir}/results_dir")) == 1
        assert sdk.create_job(command=COUNTED).id != first.id


def test_a_job_is_ended_and_listed_by_its_state() -> None:
    sdk = connect()
    job = sdk.create_job(command=LONG)
    while sdk.get_job_status(job).status != "Running":
        time.sleep(0.02)
    assert [one.id for one in sdk.list_jobs("Running")] == [job.id]
    assert sdk.cancel_job(job.id) is True
    assert sdk.get_job_status(job.id).status == "Canceled"
    assert sdk.cancel_job(job.id) is True
    assert not sdk.list_jobs("Running")
    assert [(one.id, one.status) for one in sdk.list_jobs()] == [(job.id, JobState.CANCELED)]


async def test_it_works_where_an_event_loop_runs_and_each_call_has_an_async_twin(tmp_path: Path) -> None:
    """As in a notebook: the plain calls block, and the twins do not."""
    sdk = connect("process")
    job = sdk.create_job(command=waits_for(tmp_path / "go"))
    same = await aconnect("process")
    waiting = asyncio.create_task(same.aget_job_status(job.id))
    assert (await waiting).status in ("Pending", "Running")
    (tmp_path / "go").touch()
    assert await asyncio.to_thread(ended, same, job) == "Complete"
    assert await same.aget_job_logs(job.id) == sdk.get_job_logs(job.id) == "begun\n"
    plain = {name for name, _ in inspect.getmembers(Sdk, inspect.isfunction) if name[0] != "_"} - {"close"}
    calls = {name for name in plain if f"a{name}" in plain}
    assert calls | {f"a{name}" for name in calls} == plain
    assert {name for name in calls if "Example:" not in (getattr(Sdk, name).__doc__ or "")} == set()
    for name in calls:
        twin = inspect.signature(getattr(Sdk, f"a{name}"))
        assert twin.parameters == inspect.signature(getattr(Sdk, name)).parameters, name


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no command": ({}, "model"),
    "an empty one": ({"command": " "}, "the command is empty"),
    "a missing input": ({"command": "true", "inputs": {"/x": "/no/such"}}, "/no/such: does not exist on process"),
    "GPUs that are not there": ({"command": "true", "gpu_count": 3}, "3 were asked for"),
    "a misspelt parameter": ({"command": "true", "gpu_cuont": 1}, "did you mean gpu_count?"),
    "what belongs to a block": ({"command": "true", "partition": "gpu"}, "belongs to the target"),
    "where it is twice": ({"command": "true", "target": "docker"}, "where you connect"),
    "a key by its other name": ({"command": "true", "run_key": "k"}, "give it as key"),
    "a wrong type": ({"command": "true", "num_nodes": "two"}, "nodes"),
    "an empty key": ({"command": "true", "key": ""}, "'' is no key of a job"),
    "a key that is no text": ({"command": "true", "key": 5}, "5 is no key of a job"),
    "outputs that are no list": (
        {"command": "true", "outputs": "out"},
        r"^outputs: expected a map or a list \(got 'out'\)",
    ),
    "a secret's value": ({"command": "true", "env_vars": {"HF_TOKEN": "x"}}, "give its name under secrets"),
    "a spec twice": ({"command": build_entrypoint("t {config_path}", specs={}), "specs": {}}, "build_entrypoint"),
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_refused_and_leaves_nothing(name: str, home: Path) -> None:
    given, words = WRONG[name]
    with pytest.raises(InvalidInput, match=words):
        connect().create_job(**given)
    assert not list(home.rglob("*.json"))


def test_an_unknown_target_or_job_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="did you mean process"):
        connect("proces")
    with pytest.raises(InvalidInput, match="None is not a target"):
        connect(None)  # type: ignore[arg-type]
    sdk = connect()
    with pytest.raises(InvalidInput, match="None is not a job name"):
        sdk.get_job_logs(None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="knows no job"):
        sdk.get_job_status("tao-0123456789abcdef-1")
    with pytest.raises(InvalidInput, match="is not a state"):
        sdk.list_jobs("running")
    with pytest.raises(InvalidInput, match="the path is empty"):
        sdk.list_path("")
    with pytest.raises(InvalidInput, match="has no instances"):
        sdk.list_instances()


def test_an_action_of_the_catalog_is_created_by_its_name(tmp_path: Path) -> None:
    sdk = connect()
    job = sdk.create_job(model="tiny", action="train", automl_policy="off", overrides={"num_epochs": 2})
    assert ended(sdk, job) == "Complete"
    assert job.labels["step"] == "run"


def test_secrets_reach_the_job_and_neither_its_log_nor_its_analysis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "correct-horse-battery")
    sdk = connect()
    job = sdk.create_job(command='echo "ValueError: $MY_TOKEN"; exit 1', secrets=["MY_TOKEN"])
    assert ended(sdk, job) == "Error"
    told = sdk.get_job_logs(job) + json.dumps(sdk.get_failure_analysis(job)) + sdk.get_job_status(job).message
    assert "MY_TOKEN" in told
    assert "correct-horse" not in told


def test_a_look_starts_a_job_whose_launcher_died_only_where_its_secrets_are(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = job('echo "got ${MY_TOKEN:-nothing}" | rev', secrets=["MY_TOKEN"])
    rendered = process_at(home).render(request, new_key(), 1)
    job_folder.stage(home / "jobs" / f"tao-{rendered.key}-1", rendered.files)
    sdk = connect()
    (staged,) = sdk.list_jobs()
    assert sdk.get_job_status(staged).status == sdk.get_job_status(staged).status == "Pending"
    monkeypatch.setenv("MY_TOKEN", "correct-horse-battery")
    assert ended(sdk, staged) == "Complete"
    assert "got correct-horse-battery"[::-1] in sdk.get_job_logs(staged)


def test_the_package_shows_what_there_is_and_imports_nothing_for_that() -> None:
    code = (
        "import sys, prefect_tao; print(sorted(set(dir(prefect_tao))), "
        "[n for n in ('prefect', 'pydantic', 'prefect_tao.sdk') if n in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert all(repr(name) in shown for name in ("connect", "run", "InvalidInput", "JobStatus", "build_entrypoint"))
    assert shown.strip().endswith("[]")
    for name in {*prefect_tao.__all__} - {"__version__", *prefect_tao.FLOWS}:  # those import Prefect
        assert getattr(prefect_tao, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        prefect_tao.nothing  # noqa: B018


def test_the_verbs_and_the_calls_have_the_same_names() -> None:
    verbs = {name for name, _ in inspect.getmembers(Verbs, inspect.iscoroutinefunction) if name[0] != "_"}
    assert {"get_job_results_dir"} | verbs - {"handle", "find_secrets"} == {
        name for name, _ in inspect.getmembers(Sdk, inspect.isfunction) if f"a{name}" in dir(Sdk)
    }


def cli(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_paths_and_jobs_are_looked_at_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "a.json").touch()
    listed = cli("ls", str(tmp_path))
    assert {f"{tmp_path}/train/", f"{tmp_path}/a.json"} <= set(listed.stdout.splitlines())
    assert json.loads(cli("ls", "--json", str(tmp_path / "train")).stdout) == []
    missing = cli("ls", str(tmp_path / "none"))
    assert (type(missing.exception), missing.stdout) == (NotThere, "")
    assert issubclass(NotThere, InvalidInput)  # which ends a command with 2
    there, absent = cli("check", str(tmp_path)), cli("check", "--json", str(tmp_path / "none"))
    assert (there.exit_code, absent.exit_code) == (0, 1)
    assert json.loads(absent.stdout)["exists"] is False


def test_a_job_is_explained_from_the_command_line() -> None:
    sdk = connect()
    bad, good = sdk.create_job(command="echo ValueError: no such class; exit 4"), sdk.create_job(command="true")
    assert (ended(sdk, bad), ended(sdk, good)) == ("Error", "Complete")
    told = cli("why", bad.id)
    assert told.exit_code == 0
    assert "program: " in told.stdout
    assert "what to do: " in told.stdout
    assert "no such class" in told.stdout
    assert json.loads(cli("why", bad.id, "--json").stdout)["err_class"] == "ERR_PROGRAM"
    assert "has not failed" in cli("why", good.id).stdout
    assert json.loads(cli("why", good.id, "--json").stdout) is None
    assert bad.id in cli("replicas", bad.id).stdout
    assert json.loads(cli("replicas", bad.id, "--json").stdout)[0]["name"] == bad.id
    assert isinstance(cli("why", "tao-0123456789abcdef-1").exception, InvalidInput)
