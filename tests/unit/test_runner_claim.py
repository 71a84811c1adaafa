"""Where two jobs may bear one name, the first that starts has it, and any other leaves without doing anything."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from runner_tools import KEY, Runner, make_bucket, without_boto3
from s3_server import aws_alone

from prefect_tao.runner.entrypoint import Entrypoint, build_entrypoint

SAYS = build_entrypoint("echo ran")


def test_the_first_job_has_the_name_on_a_mount(runner: Runner) -> None:
    first = runner.run(SAYS, TAO_CLAIM="1", TAO_NATIVE_ID="job-a")
    second = runner.run(SAYS, TAO_CLAIM="1", TAO_NATIVE_ID="job-b")
    again = runner.run(SAYS, TAO_CLAIM="1", TAO_NATIVE_ID="job-a", TAO_RESTARTS="1")
    assert ["ran\n" in ended.log for ended in (first, second, again)] == [True, False, True]
    assert second.code == 0
    assert "job job-a has this name" in second.log
    assert second.marker["native_id"] == "job-a"


def test_the_next_attempt_has_a_name_of_its_own(runner: Runner) -> None:
    runner.run(SAYS, TAO_CLAIM="1", TAO_NATIVE_ID="job-a")
    assert "ran\n" in runner.run(SAYS, TAO_CLAIM="1", TAO_NATIVE_ID="job-b", TAO_ATTEMPT="2").log


@pytest.mark.parametrize("tool", ["boto3", "aws"])
def test_the_first_job_has_the_name_in_a_bucket(runner: Runner, tmp_path: Path, tool: str) -> None:
    bucket, env = make_bucket(), dict[str, str | None]()
    if tool == "aws":
        runner.python = without_boto3(tmp_path / "bare")
        env["PATH"] = f"{aws_alone(tmp_path / 'bin')}:{os.environ['PATH']}"
    env |= {**bucket.only, "TAO_CLAIM": "1"}
    first = runner.run(SAYS, TAO_NATIVE_ID="job-a", **env)
    second = runner.run(SAYS, TAO_NATIVE_ID="job-b", **env)
    assert ["ran\n" in ended.log for ended in (first, second)] == [True, False]
    assert second.code == 0
    assert bucket.get(f"results/{KEY}/attempts/1.claim") == b"job-a"
    assert bucket.marker()["native_id"] == "job-a"


def test_a_claim_that_cannot_be_made_runs_nothing(runner: Runner) -> None:
    (runner.base / "attempts").parent.mkdir(parents=True, exist_ok=True)
    (runner.base / "attempts").write_text("a file in the way")
    ended = runner.run(SAYS, TAO_CLAIM="1", TAO_NATIVE_ID="job-a")
    assert ended.code != 0
    assert "ran\n" not in ended.log
    assert "cannot claim its name" in ended.log


def test_a_plan_too_large_for_a_job_is_fetched_by_it(runner: Runner) -> None:
    bucket = make_bucket()
    at = bucket.put(
        "plan.json", json.dumps(build_entrypoint("wc -c < {config_path}", specs={"a": "x" * 999}).plan).encode()
    )
    ended = runner.run(Entrypoint("config", {"at": at}), script=True, **bucket.only)
    assert ended.code == 0
    assert int(ended.log.splitlines()[-1]) > 999
