"""Outputs are kept where the design says, while the command runs and however it ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner_tools import KEY, Bucket, Runner, until, without_boto3
from s3_server import aws_alone

from prefect_tao.runner.entrypoint import build_entrypoint
from prefect_tao.runner.inside.sync import Sync
from prefect_tao.runner.inside.tenure import Tenure


def place(runner: Runner, value: Any, rule: str = "folder", **env: str | None) -> tuple[str, str]:
    """Where the command is told to write an output of this value, and where the record says it is kept."""
    specs = {"train": {"out": value}}
    entrypoint = build_entrypoint("test -f {config_path}", specs=specs, outputs={"train.out": {"type": rule}})
    ended = runner.run(entrypoint, **env)
    assert ended.code == 0, ended.log
    return yaml.safe_load(runner.spec())["train"]["out"], ended.marker["outputs"]["train.out"]


# -- destinations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, "", "???", "."])
def test_an_output_without_a_place_is_kept_on_the_mount_under_its_key(runner: Runner, value: str | None) -> None:
    folder = str(runner.base / "train.out")
    assert place(runner, value) == (folder, folder)
    assert Path(folder).is_dir()


def test_a_relative_output_is_kept_below_its_key(runner: Runner) -> None:
    folder = str(runner.base / "train.out" / "a" / "b")
    assert place(runner, "./a/b/") == (folder, folder)


def test_an_absolute_output_is_kept_where_it_says(runner: Runner) -> None:
    folder = str(runner.folder / "elsewhere")
    assert place(runner, folder) == (folder, folder)
    assert place(runner, f"file://{folder}") == (folder, folder)
    assert Path(folder).is_dir()


def test_the_folder_of_a_file_output_is_made_and_the_file_is_not(runner: Runner) -> None:
    assert place(runner, None, "file")[0] == str(runner.base / "train.out" / "out")
    path = Path(place(runner, "model.onnx", "file")[0])
    assert path == runner.base / "train.out" / "model.onnx"
    assert path.parent.is_dir()
    assert not path.exists()


@pytest.mark.parametrize("value", ["../other", "a/../../x"])
def test_a_relative_output_that_leaves_its_folder_is_refused(runner: Runner, value: str) -> None:
    ended = runner.run(build_entrypoint("true", specs={"out": value}, outputs={"out": {}}))
    assert ended.code == 125
    assert "refused" in ended.marker["error"]


def test_without_mount_and_bucket_results_stay_on_the_own_disk_with_a_loud_warning(runner: Runner) -> None:
    entrypoint = build_entrypoint("touch $TAO_RESULTS_DIR/x", specs={}, outputs={"out": {}})
    ended = runner.run(entrypoint, TAO_RESULTS_ROOT=None)
    assert ended.code == 0
    assert "WARNING" in ended.log
    assert (runner.work / "out").is_dir()
    assert (runner.work / "results_dir" / "x").exists()


def test_a_mount_outranks_a_bucket(runner: Runner, bucket: Bucket) -> None:
    folder = str(runner.base / "train.out")
    assert place(runner, None, S3_BUCKET_NAME=bucket.name, **bucket.env) == (folder, folder)
    assert bucket.keys() == []


def test_the_results_folder_is_there_for_every_command(runner: Runner) -> None:
    tell = 'test -d "$TAO_RESULTS_DIR" && echo "at=$TAO_RESULTS_DIR="'
    elsewhere = runner.folder / "elsewhere"
    for fields, folder in (
        ({}, runner.base / "results_dir"),
        ({"outputs": [str(runner.folder / "x")]}, runner.base / "results_dir"),
        ({"specs": {}, "outputs": {"out": {}}}, runner.base / "results_dir"),
        ({"specs": {"results_dir": str(elsewhere)}, "outputs": {"results_dir": {}}}, elsewhere),
    ):
        ended = runner.run(build_entrypoint(tell, **fields))  # type: ignore[arg-type]
        assert f"at={folder}=" in ended.log


# -- plain commands on a mount -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 3])
def test_outputs_of_a_plain_command_are_copied_to_the_mount_also_when_it_fails(runner: Runner, code: int) -> None:
    folder, file = runner.folder / "o ut" / "model", runner.folder / "metrics.json"
    command = f"mkdir -p '{folder}/sub' && echo 1 > '{folder}/sub/w' && echo 2 > {file} && exit {code}"
    ended = runner.run(build_entrypoint(command, outputs=[str(folder), str(file)]))
    assert ended.code == code
    assert (runner.base / "model" / "sub" / "w").read_text() == "1\n"
    assert (runner.base / "metrics.json").read_text() == "2\n"
    assert ended.marker["outputs"] == {
        "model": str(runner.base / "model"),
        "metrics.json": str(runner.base / "metrics.json"),
    }


def test_two_outputs_with_one_basename_do_not_meet(runner: Runner) -> None:
    paths = [runner.folder / name / "out" for name in ("a", "b")]
    command = " && ".join(f"mkdir -p {path} && echo {path} > {path}/said" for path in paths)
    ended = runner.run(build_entrypoint(command, outputs=[str(path) for path in paths]))
    kept = ended.marker["outputs"].values()
    assert sorted(Path(folder, "said").read_text().strip() for folder in kept) == [str(path) for path in paths]


def test_an_output_that_is_on_the_mount_already_is_not_copied_into_itself(runner: Runner) -> None:
    command = f"touch {runner.root}/x && mkdir -p {runner.root}/mine && touch {runner.root}/mine/y"
    ended = runner.run(build_entrypoint(command, outputs=[str(runner.root), f"{runner.root}/mine/"], sync_interval=0.1))
    assert ended.code == 0
    assert ended.marker["outputs"] == {"mount": str(runner.root), "mine": str(runner.root / "mine")}
    assert sorted(os.listdir(runner.base)) == ["attempts", "results_dir"]


def test_an_output_around_the_mount_leaves_the_mount_out(runner: Runner) -> None:
    outer = runner.folder / "outer"
    runner.root, runner.base = outer / "mount", outer / "mount" / KEY
    runner.env["TAO_RESULTS_ROOT"] = str(runner.root)
    ended = runner.run(build_entrypoint(f"sleep 0.3; touch {outer}/x", outputs=[str(outer)], sync_interval=0.1))
    assert ended.code == 0
    assert os.listdir(runner.base / "outer") == ["x"]


def test_pipes_sockets_and_dangling_links_in_an_output_hold_nothing_up(runner: Runner) -> None:
    out = runner.folder / "out"
    command = f"mkdir {out} && mkfifo {out}/pipe && ln -s /nowhere {out}/link && echo 1 > {out}/x"
    assert runner.run(build_entrypoint(command, outputs=[str(out)])).code == 0
    assert os.listdir(runner.base / "out") == ["x"]


def test_a_file_that_cannot_be_kept_makes_a_success_a_failure_of_the_runner(runner: Runner) -> None:
    out = runner.folder / "out"
    (runner.base / "out" / "x").mkdir(parents=True)
    job = runner.start(build_entrypoint(f"mkdir {out} && echo 1 > {out}/x && echo 2 > {out}/y", outputs=[str(out)]))
    until((runner.base / "out" / "y").exists, "the other file, which is kept all the same")
    ended = job.end()
    assert ended.code == 125
    assert (ended.marker["phase"], ended.marker["exit_code"]) == ("outputs", 125)
    assert "out/x" in ended.marker["error"]


MODELS = {
    "onnx": b"\x08\x08\x12\x07pytorch\x1a\x052.5.1:" + b"weights " * 200,
    "pickle": b"\x80\x04}q\x01(X\x07weights" + b"weights " * 200,
    "late": b"a header of its own\n" * 40 + b"\x01\x02" + b"weights " * 200,
}


@pytest.mark.parametrize("kind", MODELS)
def test_half_a_model_is_not_carried_and_half_a_log_is(tmp_path: Path, kind: str) -> None:
    """A model need not hold a NUL where it begins."""
    assert b"\0" not in MODELS[kind][:1024]
    out = tmp_path / "out"
    out.mkdir()
    sync = Sync([], (), Tenure(""))
    sync.add(str(out), str(tmp_path / "kept"))
    (out / "model").write_bytes(MODELS[kind])
    (out / "log").write_text("epoch 1: 50%\r\033[32mepoch 1: 100%\033[0m\t\f größer\n")
    sync.once(interval=60)
    assert os.listdir(tmp_path / "kept") == ["log"]
    sync.once(interval=60)
    assert (tmp_path / "kept" / "model").read_bytes() == MODELS[kind], "it has been the same for two rounds"


# -- a bucket ----------------------------------------------------------------------------------------------------------


def test_outputs_appear_in_the_bucket_while_the_command_runs(runner: Runner, bucket: Bucket) -> None:
    go = runner.folder / "go"
    command = f"cd $TAO_RESULTS_DIR && echo 1 > a.ckpt && until test -f {go}; do echo x >> log; sleep 0.05; done"
    entrypoint = build_entrypoint(command, specs={}, outputs={"results_dir": {}}, sync_interval=0.2)
    job = runner.start(entrypoint, **bucket.only)
    until(lambda: "results_dir/a.ckpt" in bucket.outputs(), "the checkpoint")
    until(lambda: "results_dir/log" in bucket.outputs(), "a file that is written to all the time")
    assert "ended" not in bucket.marker()
    assert job.process.poll() is None
    go.touch()
    ended = job.end()
    assert ended.code == 0, ended.log
    assert (
        bucket.get(f"results/{KEY}/results_dir/log") == (runner.work / "outputs" / "results_dir" / "log").read_bytes()
    )
    marker = bucket.marker()
    assert marker["outputs"] == {"results_dir": bucket.uri(f"results/{KEY}/results_dir")}
    assert (marker["exit_code"], marker["ended_by"]) == (0, "none")
    assert marker["ended"] > marker["started"]


def test_a_failed_commands_outputs_reach_the_bucket_wherever_they_were_written(runner: Runner, bucket: Bucket) -> None:
    specs = {
        "abs": str(runner.folder / "abs"),
        "uri": bucket.uri("mine/exp/"),
        "rel": "sub",
        "file": bucket.uri("one/m.onnx"),
    }
    outputs = {"abs": {}, "uri": {}, "rel": {}, "file": {"type": "file"}}
    script = "import json, sys; s = json.load(open(sys.argv[1])); open(s.pop('file'), 'w').write('f'); "
    script += "[open(p + '/' + k, 'w').write(k) for k, p in s.items()]; sys.exit(7)"
    entrypoint = build_entrypoint(
        f'{sys.executable} -S -c "{script}" {{config_path}}', specs=specs, outputs=outputs, config_format="json"
    )
    ended = runner.run(entrypoint, **bucket.only)
    assert ended.code == 7, ended.log
    assert bucket.outputs() == ["abs/abs", "rel/sub/rel"]
    assert bucket.get("mine/exp/uri") == b"uri"
    assert bucket.get("one/m.onnx") == b"f"
    assert bucket.marker()["exit_code"] == 7


def test_a_terminated_commands_outputs_reach_the_bucket_before_the_marker(runner: Runner, bucket: Bucket) -> None:
    written = {**bucket.only, "S3_BUCKET_NAME": f"s3://{bucket.name}/"}  # as people write it too
    job = runner.start(build_entrypoint("echo 1 > $TAO_RESULTS_DIR/x; echo up; sleep 60"), **written)
    job.says("up")
    job.signal(signal.SIGTERM)
    ended = job.end()
    assert ended.code == 143
    assert bucket.outputs() == ["results_dir/x"]
    assert (bucket.marker()["exit_code"], bucket.marker()["ended_by"]) == (143, "preempt")


def test_what_is_excluded_is_not_carried(runner: Runner, bucket: Bucket) -> None:
    out = runner.folder / "out"
    names = ("inputs/a", "sub/inputs/b", "myinputs/c", "inputs.txt", "x.tmp", "sub/y.tmp", "logs/z", "sub/keep")
    command = " && ".join(f"mkdir -p $(dirname {out}/{name}) && touch {out}/{name}" for name in names)
    twin = runner.folder / "twin" / "out"
    command += f" && mkdir -p {twin} && touch {twin}/t"
    entrypoint = build_entrypoint(
        command, outputs=[str(out), str(twin)], upload_excludes=["inputs/", "*.tmp", "logs/*"]
    )
    assert runner.run(entrypoint, **bucket.only).code == 0
    (other,) = (key for key in bucket.outputs() if not key.startswith("out/"))
    assert other.endswith("_twin_out/t"), "two outputs with one basename do not meet"
    assert bucket.outputs() == sorted(["out/inputs.txt", "out/myinputs/c", "out/sub/keep", other])


def test_the_runners_own_folders_are_no_output_of_the_command(runner: Runner, bucket: Bucket) -> None:
    entrypoint = build_entrypoint(
        f"touch {runner.work}/x $TAO_RESULTS_DIR/y", inputs={"in": bucket.put("d", b"1")}, outputs=[str(runner.work)]
    )
    assert runner.run(entrypoint, **bucket.only).code == 0
    assert bucket.outputs() == ["results_dir/y", "work/x"]


def test_a_job_for_s3_that_cannot_reach_it_ends_before_its_command(runner: Runner, bucket: Bucket) -> None:
    runner.python = without_boto3(runner.folder / "venv")
    specs = {"results_dir": bucket.uri("x")}
    entrypoint = build_entrypoint("echo it ran {config_path}", specs=specs, outputs={"results_dir": {}})
    ended = runner.run(entrypoint, PATH="/nowhere", **bucket.env)
    assert ended.code == 125
    assert "boto3" in ended.marker["error"]
    assert "it ran" not in ended.log


# -- the aws command ---------------------------------------------------------------------------------------------------


def test_without_boto3_the_aws_command_fetches_and_keeps(runner: Runner, bucket: Bucket) -> None:
    runner.python, aws = without_boto3(runner.folder / "lean"), aws_alone(runner.folder / "aws")
    specs = {"data": bucket.put("set/x.json", b"hello"), "out": bucket.uri("kept")}
    entrypoint = build_entrypoint(
        'cat {config_path}; cp "$(dirname {config_path})/inputs/data/x.json" "$(dirname {config_path})/outputs/out/"',
        specs=specs,
        inputs={"data": {}},
        outputs={"out": {}},
    )
    ended = runner.run(entrypoint, PATH=f"{aws}:/usr/bin:/bin", **bucket.env)
    assert ended.code == 0, ended.log
    assert bucket.get("kept/x.json") == b"hello"
    assert json.loads((runner.base / "attempts" / "1.json").read_text())["outputs"] == {"out": bucket.uri("kept")}
