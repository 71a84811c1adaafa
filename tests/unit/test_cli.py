"""The command line: bad input ends with 2 and leaves nothing, help shows examples, jobs are handled by name."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from opened_platforms import process_at
from typer.testing import CliRunner

import prefect_tao
from prefect_tao.cli import app
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest

KEY = "0123456789abcdef"


def cli(*words: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prefect_tao.cli", *words],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )


def tree(folder: Path) -> dict[str, float]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


BAD = {
    "unknown platform": (["--target", "slrm/x", "--", "true"], "there is no platform 'slrm'"),
    "misspelt platform": (["--target", "proces", "--", "true"], "did you mean process?"),
    "a target of another form": (["--target", "process/", "--", "true"], "is not a target"),
    "no image": (["--image", "team/my net:1", "--", "true"], "'team/my net:1' is not an image reference"),
    "negative gpus": (["--gpus", "-2", "--", "true"], "gpus"),
    "more gpus than there are": (["--gpus", "3", "--", "true"], "3 were asked for, and this machine has 0"),
    "all gpus where there are none": (["--gpus", "-1", "--", "true"], "all were asked for, and this machine has 0"),
    "no nodes": (["--nodes", "0", "--", "true"], "nodes"),
    "several nodes here": (["--nodes", "2", "--", "true"], "process runs on this machine only"),
    "an empty command": (["--", ""], "the command is empty"),
    "no command at all": ([], "command"),
    "a missing input": (["--input", "/x=/no/such/file", "--", "true"], "/no/such/file: does not exist on process"),
    "a spec with NaN": (["--set", "train.lr=.nan", "--", "t -e {config_path}"], "train.lr is nan"),
    "a spec file that is not there": (["--spec", "none.yaml", "--", "t -e {config_path}"], "cannot be read"),
    "a broken spec file": (["--spec", "broken.yaml", "--", "t -e {config_path}"], "broken.yaml, line 2, column 5, is"),
    "a flat dotted key": (["--spec", "flat.yaml", "--", "t -e {config_path}"], "the flat key 'train.lr'"),
    "a long variable name": (["--env", "A" * 300 + "=1", "--", "true"], "has 300 characters"),
    "a variable without value": (["--env", "NAME", "--", "true"], "'NAME' is not NAME=VALUE"),
    "a secret's value": (["--env", "K=nvapi-" + "x" * 40, "--", "true"], "looks like a secret"),
    "specs and args": (["--set", "a=1", "--arg", "b=2", "--", "true"], "not both"),
    "a bad time limit": (["--time-limit", "soon", "--", "true"], "'soon' is not a duration"),
    "bad memory": (["--memory", "-4G", "--", "true"], "not an amount of memory"),
    "a bad format": (["--config-format", "xml", "--set", "a=1", "--", "true"], "use yaml, toml or json"),
    "no required field": (["--json-required-field", "", "--", "true"], "'' is not KEY=FIELD"),
    "an empty required field": (["--json-required-field", "k=", "--", "true"], "k=: a name is empty"),
    "a proof of nothing": (["--mount-proof", "nonsense", "--", "true"], "'nonsense' is not PATH=HOW"),
    "a proof of no path": (["--mount-proof", "a=b", "--", "true"], "does not say of a path how it is mounted"),
    "a root that is a file": (
        ["--model", "tiny", "--action", "train", "--train-root", "flat.yaml"],
        "flat.yaml is a file, and a root is the folder",
    ),
    "storage without a bucket": (["--input", "/x=s3://", "--", "true"], "error: input /x: s3://: names no place there"),
    "a command beside a model": (["--model", "tiny", "--action", "train", "--", "true"], "only one of them can run"),
    "gpus in words": (["--gpus", "many", "--", "true"], "--gpus 'many' is not a whole number"),
    "no cpus": (["--cpus", "0", "--", "true"], "--cpus 0: expected a whole number of 1 or more"),
    "an output without a path": (["--output", "", "--", "true"], "an output without a path"),
    "an empty run key": (["--run-key", "", "--", "true"], "--run-key is empty"),
    "a spec that is a folder": (["--spec", ".", "--", "t -e {config_path}"], "cannot be read: Is a directory"),
    "a workdir that is not there": (["--workdir", "/no/such/dir", "--", "true"], "/no/such/dir is not a folder"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_and_what_to_do_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    words, expected = BAD[case]
    (tmp_path / "broken.yaml").write_text("a: [1,\n b: }")
    (tmp_path / "flat.yaml").write_text("train.lr: 1\n")
    before = tree(tmp_path)
    env = {"HOME": str(tmp_path), "PREFECT_TAO_HOME": str(tmp_path / "home"), "PREFECT_TAO_GPUS": ""}
    done = cli("run", *words, cwd=tmp_path, env=env)
    assert done.returncode == 2, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "words", [("jobs", "--limit", "0"), ("logs", "x", "--tail", "-3"), ("cancel", "x", "--timeout", "-1")]
)
def test_a_number_that_no_list_or_wait_can_have_is_bad_input(words: tuple[str, ...]) -> None:
    done = cli(*words)
    assert done.returncode == 2
    assert f"Invalid value for '{words[-2]}'" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--", "true"),
        ("run", "--dry-run", "--target", "slurm", "--", "true"),
        ("jobs",),
        ("logs", f"tao-{KEY}-1"),
        ("ls", "/tmp"),
    ],
    ids=" ".join,
)
def test_a_file_of_variables_that_cannot_be_read_is_named(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / ".config" / "tao" / ".env").mkdir(parents=True)
    done = CliRunner().invoke(app, words, env={"HOME": str(tmp_path)})
    assert isinstance(done.exception, InvalidInput), done.output  # which ends a command with 2
    assert "/.config/tao/.env cannot be read: Is a directory" in done.exception.cause
    assert done.exception.remedy == "correct its permissions or remove it"


def test_outputs_of_a_plain_command_are_paths_of_any_form(home: Path, tmp_path: Path) -> None:
    done = cli("run", "--dry-run", "--output", "./out", "--output", "../shared.v1..2", "--", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_unwritable_results_folder_is_found_before_the_launch(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    before = tree(tmp_path)
    env = {"TAO_RESULTS_ROOT": str(tmp_path / "file" / "results"), "PREFECT_TAO_HOME": str(tmp_path / "home")}
    done = cli("run", "--", "true", cwd=tmp_path, env=env)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert tree(tmp_path) == before


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    done = cli(
        "run", "--gpus", "1", "--input", "/a=/no/a", "--input", "/b=/no/b", "--", "true", env={"PREFECT_TAO_GPUS": ""}
    )
    assert done.returncode == 2
    assert all(text in done.stderr for text in ("gpus", "/no/a", "/no/b"))


def test_all_gpus_of_this_machine_are_shown_as_their_number(tmp_path: Path) -> None:
    env = {"PREFECT_TAO_HOME": str(tmp_path), "PREFECT_TAO_GPUS": "0,1,2"}
    done = cli("run", "--dry-run", "--gpus", "-1", "--", "true", env=env)
    assert done.returncode == 0, done.stderr
    assert "# GPUs: 3, as CUDA_VISIBLE_DEVICES" in done.stdout
    planned = cli("plan", "dino", "train", "--gpus", "-1", "--json", env=env)
    spec = json.loads(planned.stdout)["spec"]["train"]
    assert (spec["num_gpus"], spec["gpu_ids"]) == (3, [0, 1, 2])


def test_help_shows_an_example_and_needs_no_prefect() -> None:
    code = "import sys; sys.argv = ['prefect-tao', 'run', '--help']\nfrom prefect_tao.cli import main\n"
    code += "try: main()\nexcept SystemExit: print('prefect' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "prefect-tao run --gpus 1" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize("name", [command.name for command in app.registered_commands])
def test_every_command_shows_an_example_that_is_its_own(name: str) -> None:
    told = CliRunner().invoke(app, [name, "--help"]).output
    assert f"    prefect-tao {name}" in told.split("Example")[1]
    assert not re.search(r"--[a-z-]+ <list", told)


def test_the_version_is_told_without_a_command() -> None:
    done = cli("--version")
    assert done.returncode == 0
    assert done.stdout == f"prefect-tao {prefect_tao.__version__}\n"


def test_a_dry_run_shows_what_would_be_sent_and_launches_nothing(home: Path) -> None:
    done = cli("run", "--dry-run", "--set", "train.lr=1e-5", "--", "train -e {config_path}")
    assert done.returncode == 0, done.stderr
    assert '"lr": 1.0e-05' in done.stdout
    assert "train -e {config_path}" in done.stdout
    assert not home.exists()
    assert done.stderr.endswith("all gates pass; nothing was launched\n")


def test_a_dry_run_tells_of_a_secret_that_is_not_here(home: Path) -> None:
    done = cli("run", "--dry-run", "--secret", "NO_SUCH_TOKEN", "--", "true", env={"PREFECT_API_URL": ""})
    assert done.returncode == 2
    assert "NO_SUCH_TOKEN is missing" in done.stderr
    told = json.loads(cli("run", "--dry-run", "--json", "--secret", "NO_SUCH_TOKEN", "--", "true").stdout)
    assert not told["passed"]
    assert [one["subject"] for one in told["gates"]["model_credentials"]] == ["credential NO_SUCH_TOKEN"]


def test_a_dry_run_and_a_plan_tell_programs_the_same(home: Path) -> None:
    words = ("--set", "num_epochs=2", "--json")
    dry = cli("run", "--dry-run", "--model", "tiny", "--action", "train", *words)
    assert dry.returncode == 0, dry.stderr
    told = json.loads(dry.stdout)
    assert told == json.loads(cli("plan", "tiny", "train", *words).stdout)
    assert told["passed"]
    assert told["spec"]["train"]["num_epochs"] == 2
    assert "tiny_trainer train" in told["rendered"]
    assert not home.exists()


def launched(home: Path, command: str) -> str:
    platform = process_at(home)
    return asyncio.run(launch(platform, JobRequest.build(command=command, labels={"step": "s"}), KEY, {})).handle.name


def test_jobs_logs_and_watch_find_a_job_by_name(home: Path) -> None:
    name = launched(home, "echo one; sleep 0.5; echo two")
    assert "one" in cli("logs", name, "--follow").stdout
    assert cli("logs", name, "--tail", "1").stdout == "two\n"
    watched = cli("watch", name, "--json")
    assert watched.returncode == 0
    assert json.loads(watched.stdout)["state"] == "Complete"
    (row,) = json.loads(cli("jobs", "--json").stdout)
    assert (row["name"], row["seen"]["state"]) == (name, "Complete")
    assert name in cli("jobs").stdout


def test_watching_a_failed_job_ends_with_1_and_the_cause(home: Path) -> None:
    name = launched(home, "echo 'RuntimeError: bad luck' >&2; exit 3")
    done = cli("watch", name)
    assert done.returncode == 1
    assert "bad luck" in done.stderr
    assert "what to do" in done.stderr
    assert done.stderr.endswith(f"logs {name} --target process\n")
    assert "exit code 3" in cli("jobs").stdout


def test_cancel_returns_when_the_job_is_over(home: Path) -> None:
    name = launched(home, "sleep 100")
    started = time.monotonic()
    done = cli("cancel", name)
    assert (done.returncode, done.stdout) == (0, f"{name}  Canceled\n")
    (line,) = cli("jobs", env={"COLUMNS": "60"}).stdout.splitlines()[1:]  # one a job, however long
    assert line.startswith(name)
    assert "cancelled on request" in line
    assert time.monotonic() - started < 30
    assert cli("cancel", name, "--json").stdout == json.dumps({"name": name, "state": "Canceled"}) + "\n"


def test_an_unknown_or_malformed_name_is_bad_input(home: Path) -> None:
    assert cli("logs", "nonsense").returncode == 2
    done = cli("watch", f"tao-{KEY}-1")
    assert done.returncode == 2
    assert "no target knows the job" in done.stderr


def test_a_list_of_jobs_that_leaves_some_out_says_so(home: Path) -> None:
    platform = process_at(home)
    for number in range(2):
        asyncio.run(launch(platform, JobRequest(command="true"), f"{number}" * 16, {}))
    env = {"PREFECT_TAO_HOME": str(home)}
    cut = cli("jobs", "--limit", "1", "--json", env=env)
    assert len(json.loads(cut.stdout)) == 1
    assert "the newest 1 of 2 jobs; --limit 2 lists all" in cut.stderr
    assert cli("jobs", env=env).stderr == ""
