"""What the runner makes in the temporary folder goes with it, however it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from runner_tools import Runner, make_bucket, without_boto3
from s3_server import aws_alone

from prefect_tao.runner.entrypoint import build_entrypoint


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_nothing_stays_in_the_temporary_folder(tmp_path: Path, is_cancelled: bool) -> None:
    runner, temporary = Runner(tmp_path), tmp_path / "tmp"
    temporary.mkdir()
    # A shell would need quotes for this path, so that the command gets a link to the spec; and the bucket is written
    # through the aws program, whose settings are a file.
    bucket, env = make_bucket(), {"TMPDIR": str(temporary), "TAO_WORK_DIR": str(tmp_path / "a b")}
    runner.python = without_boto3(tmp_path / "bare")
    env |= {"PATH": f"{aws_alone(tmp_path / 'bin')}:{os.environ['PATH']}", "S3_ADDRESSING_STYLE": "path"}
    command = 'ls $TMPDIR; cat {config_path}; for n in 1 2 3 4 5; do echo $n >"$TAO_RESULTS_DIR/$n"; done; echo begun'
    command += "; exec sleep 300" if is_cancelled else ""
    job = runner.start(build_entrypoint(command, specs={"lr": 0.1}), **{**env, **bucket.only})
    job.says("begun")
    if is_cancelled:
        job.signal(signal.SIGTERM)
    ended = job.end()
    assert ended.code == (143 if is_cancelled else 0), ended.log
    assert "tao-" in ended.log
    assert bucket.get("results/k3y/results_dir/5") == b"5\n"
    assert list(temporary.iterdir()) == []
