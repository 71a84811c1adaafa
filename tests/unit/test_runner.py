"""The program starts in any image that has a python3, however it got there, and keeps what it is told in confidence."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from runner_tools import KEY, Runner, checkpoint, make_bucket, old_python, put

from prefect_tao.runner.entrypoint import build_entrypoint

SECRET = "nvapi-ThisIsVerySecret"


# -- ways to start -----------------------------------------------------------------------------------------------------


def test_one_shell_text_holds_program_and_plan(runner: Runner) -> None:
    text = build_entrypoint("echo it\\'s {config_path} >&2; exit 7", specs={"a": "'$HOME`x`\n"}).script()
    env = {name: value for name, value in runner.env.items() if value is not None}
    for shell in ("bash", "sh"):
        done = subprocess.run([shell, "-c", text], env=env, capture_output=True, text=True)
        assert done.returncode == 7
        assert done.stderr == f"it's {runner.work}/spec.yaml\n"
        assert yaml.safe_load(runner.spec()) == {"a": "'$HOME`x`\n"}
        assert runner.marker()["exit_code"] == 7


def test_a_shell_text_leaves_its_place_to_the_program(runner: Runner) -> None:
    """So that the platform's signals reach the program and not a shell that waits for it."""
    job = runner.start(build_entrypoint("echo me=$PPID"), script=True)
    assert f"me={job.process.pid}\n" in job.end().log


def test_a_shell_text_reaches_s3(runner: Runner) -> None:
    bucket, data = make_bucket(), runner.folder / "data"
    entrypoint = build_entrypoint(
        f'cp {data} "$TAO_RESULTS_DIR/copy"', inputs={str(data): bucket.put("set/x", b"precious")}
    )
    assert runner.run(entrypoint, script=True, **bucket.only).code == 0
    assert bucket.get(f"results/{KEY}/results_dir/copy") == b"precious"


def test_an_image_without_python_says_so(runner: Runner) -> None:
    ended = runner.run(build_entrypoint("true"), script=True, PATH="/nowhere")
    assert ended.code == 127
    assert "no python3" in ended.log


def test_a_whole_job_runs_on_python_3_8(runner: Runner) -> None:
    old = old_python()
    if old is None:
        pytest.skip("there is no Python 3.8 here: put python3.8 on PATH, or install one with pyenv")
    runner.python = old
    newest = checkpoint(runner.base / "results_dir" / "model_epoch_1.pth")
    data = runner.folder / "data.tar"
    subprocess.run(["tar", "-cf", str(data), "-C", str(newest.parent), newest.name], check=True)
    out = runner.folder / "out"
    specs = {"train": {"resume_training_checkpoint_path": "", "lr": 1e-5}, "data": [str(data)]}
    entrypoint = build_entrypoint(
        f"test -f {{config_path}} && echo 1 > {out}/x; sleep 60",
        specs={**specs, "out": str(out)},
        inputs={"data": {}},
        outputs={"results_dir": {}, "out": {}},
        time_limit=1,
    )
    ended = runner.run(entrypoint)
    assert (ended.code, ended.marker["ended_by"]) == (143, "time_limit"), ended.log
    assert (out / "x").exists()
    spec = yaml.safe_load(runner.spec())
    assert spec["train"] == {"resume_training_checkpoint_path": str(newest), "lr": 1e-5}
    assert os.listdir(spec["data"][0]) == [newest.name]


def test_nothing_is_installed_at_the_start(runner: Runner) -> None:
    tools = runner.folder / "bin"
    tools.mkdir()
    for name in ("pip", "pip3", "uv", "curl", "wget", "apt-get"):
        (tools / name).write_text(f"#!/bin/sh\ntouch {runner.folder}/called\n")
        (tools / name).chmod(0o755)
    assert runner.run(build_entrypoint("true"), script=True, PATH=f"{tools}:{os.environ['PATH']}").code == 0
    assert not (runner.folder / "called").exists()


def test_a_job_without_data_does_not_wait_for_what_it_does_not_need(runner: Runner) -> None:
    files = runner.folder / "files"
    files.mkdir()
    put(build_entrypoint("true"), files)
    env = {name: value for name, value in runner.env.items() if value is not None}
    words = [runner.python, "-S", "-X", "importtime", files / "runner.py", files / "plan.json"]
    told = subprocess.run(words, env=env, capture_output=True, text=True, check=True).stderr
    loaded = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    assert "inside.main" in loaded
    assert not loaded & {
        "json",
        "re",
        "enum",
        "collections",
        "functools",
        "signal",
        "threading",
        "subprocess",
        "typing",
    }


def test_a_log_that_cannot_be_written_does_not_end_the_job(runner: Runner) -> None:
    files = runner.folder / "files"
    files.mkdir()
    put(build_entrypoint("true"), files)
    env = {name: value for name, value in runner.env.items() if value is not None and name != "TAO_RESULTS_ROOT"}
    with open("/dev/full", "wb") as full:
        done = subprocess.run([runner.python, files / "runner.py", files / "plan.json"], env=env, stdout=full)
    assert done.returncode == 0


def test_jobs_without_a_name_do_not_meet(runner: Runner) -> None:
    for _ in range(2):
        assert runner.run(build_entrypoint("touch $TAO_RESULTS_DIR/x"), TAO_JOB_ID=None).code == 0
    assert len(list(runner.root.glob("job-*/results_dir/x"))) == 2


def test_tao_finds_its_results_folder_in_the_environment(runner: Runner) -> None:
    ended = runner.run(build_entrypoint("echo at=$TAO_API_RESULTS_DIR/$TAO_JOB_ID="))
    assert f"at={runner.base}=" in ended.log


# -- secrets -----------------------------------------------------------------------------------------------------------


def secrets_file(runner: Runner, content: str) -> Path:
    path = runner.folder / "secrets.json"
    path.write_text(content)
    path.chmod(0o600)
    return path


def test_secrets_reach_the_command_and_nothing_else(runner: Runner) -> None:
    path = secrets_file(runner, json.dumps({"NGC_KEY": SECRET}))
    command = (
        f'test "$NGC_KEY" = {SECRET[:5]}"{SECRET[5:]}" && test "$NGC_CLI_API_KEY" = "$NGC_KEY" && test ! -e {path}'
        ' && test -z "$TAO_SECRETS_FILE" && tr "\\0" " " < /proc/$PPID/cmdline && tr "\\0" " " < /proc/$PPID/environ'
    )
    (runner.folder / "check.sh").write_text(command)
    entrypoint = build_entrypoint(f". {runner.folder}/check.sh", specs={"a": 1}, outputs={"results_dir": {}})
    ended = runner.run(entrypoint, TAO_SECRETS_FILE=str(path))
    assert ended.code == 0, ended.log
    (runner.folder / "check.sh").unlink()
    assert "plan.json" in ended.log, "the program's own arguments were looked at"
    written = [file for file in runner.folder.rglob("*") if file.is_file()]
    assert len(written) >= 4
    assert not [file for file in written if SECRET.encode() in file.read_bytes()]


def test_secrets_are_kept_for_a_requeue_when_the_platform_says_so(runner: Runner) -> None:
    path = secrets_file(runner, json.dumps({"HF_TOKEN": "x"}))
    ended = runner.run(
        build_entrypoint('test "$HF_TOKEN" = x -a -z "$TAO_SECRETS_KEEP"'),
        TAO_SECRETS_FILE=str(path),
        TAO_SECRETS_KEEP="1",
    )
    assert ended.code == 0
    assert path.exists()


def test_a_command_is_not_run_without_the_secrets_that_were_to_be_kept(runner: Runner) -> None:
    ended = runner.run(
        build_entrypoint("echo it ran"),
        TAO_SECRETS_FILE=str(runner.folder / "secrets.json"),
        TAO_SECRETS_KEEP="1",
    )
    assert ended.code != 0
    assert "it ran" not in ended.log
    assert "the secrets file could not be read" in ended.log


def test_secrets_may_say_where_the_results_go(runner: Runner) -> None:
    bucket = make_bucket()
    names = {"AWS_ACCESS_KEY_ID": "ACCESS_KEY", "AWS_SECRET_ACCESS_KEY": "SECRET_KEY"}
    secrets = {
        names.get(name, "S3_ENDPOINT_URL"): value for name, value in bucket.env.items() if "METADATA" not in name
    }
    path = secrets_file(runner, json.dumps({**secrets, "S3_BUCKET_NAME": bucket.name}))
    entrypoint = build_entrypoint("echo 1 > $TAO_RESULTS_DIR/x")
    ended = runner.run(entrypoint, TAO_SECRETS_FILE=str(path), TAO_RESULTS_ROOT=None)
    assert ended.code == 0, ended.log
    assert bucket.get(f"results/{KEY}/results_dir/x") == b"1\n"


def test_a_broken_secrets_file_ends_the_job_with_a_marker_and_without_its_content(runner: Runner) -> None:
    path = secrets_file(runner, f'{{"NGC_KEY": "{SECRET}"')
    ended = runner.run(build_entrypoint("echo it ran"), TAO_SECRETS_FILE=str(path))
    assert ended.code == 125
    assert "secrets file" in ended.marker["error"]
    assert "it ran" not in ended.log
    assert SECRET not in ended.log


def test_a_platform_with_a_file_for_it_is_told_the_end(runner: Runner) -> None:
    told = runner.folder / "told"
    ended = runner.run(build_entrypoint("exit 3"), TAO_END_FILE=str(told))
    assert ended.code == 3
    assert json.loads(told.read_text()) == {name: ended.marker[name] for name in ended.marker if name != "outputs"}
