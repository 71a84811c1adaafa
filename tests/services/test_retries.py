"""A run of a deployment that is retried as the UI does it: the same flow run goes on with what is not complete."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import CALL, Api, interrupt, wait_for

from prefect_tao.jobs.naming import job_key

# Those who share the one server run one after the other.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("prefect-server"), pytest.mark.timeout(400)]
SERVE = """
from prefect import serve
from prefect.deployments.runner import EntrypointType
from prefect_tao.flows import chain, sweep
serve(*(flow.to_deployment("retried", entrypoint_type=EntrypointType.MODULE_PATH) for flow in (chain, sweep)))
"""


@pytest.fixture
def served(server: Any, home: Path) -> Iterator[None]:
    """Both flows as deployments, with a process that runs them."""
    env = {**server.env, "PREFECT_TAO_HOME": str(home), "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    with open(home.parent / "serve.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE], env=env, stdout=log, stderr=log)
    yield
    interrupt(process)


def begun(api: Api, flow: str, **parameters: Any) -> str:
    deployment = wait_for(lambda: api.deployment(f"{flow}/retried"), 60)
    return str(api.ask("POST", f"/deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"])


@pytest.mark.usefixtures("served")
def test_a_retry_of_a_chain_and_of_a_sweep_runs_only_what_is_not_complete(api: Api, tmp_path: Path) -> None:
    ran, points, mended = tmp_path / "ran", tmp_path / "points", tmp_path / "mended"
    steps = [
        {"name": "first", "command": f"echo first >> {ran}"},
        {"name": "breaks", "command": f"echo breaks >> {ran}; ls {mended}", "after": "first"},
        {"name": "waits", "command": f"echo waits >> {ran}", "after": "breaks"},
    ]
    number = "number=$(tr -dc 0-9 < {config_path})"
    command = f"{number}; echo $number >> {points}; test $number != 2 -o -e {mended}"
    chain = begun(api, "chain", steps=steps)
    sweep = begun(api, "sweep", command=command, over={"number": [1, 2, 3]})
    wait_for(lambda: (api.state(chain), api.state(sweep)) == ("FAILED", "COMPLETED"), 120)
    assert api.run(sweep)["state"]["message"] == "2 of 3 points complete, 1 failed; a retry runs only those"

    mended.touch()
    for run in (chain, sweep):
        api.retry(run)
    wait_for(lambda: all(api.run(run)["run_count"] == 2 for run in (chain, sweep)), 120)
    wait_for(lambda: (api.state(chain), api.state(sweep)) == ("COMPLETED", "COMPLETED"), 120)
    assert ran.read_text().split() == ["first", "breaks", "breaks", "waits"]
    assert sorted(points.read_text().split()) == ["1", "2", "2", "3"]
    assert "3 of 3 points complete" in api.page("leaderboard", job_key(sweep, "sweep"))["description"]


def test_with_results_in_s3_another_machine_skips_what_is_complete(
    server: Any, s3_server: Any, home: Path, tmp_path: Path
) -> None:
    import boto3
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect_aws import AwsClientParameters, AwsCredentials, S3Bucket

    keys = {"aws_access_key_id": "me", "aws_secret_access_key": "mine", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=s3_server.endpoint, **keys).create_bucket(Bucket="remembered")
    client = AwsClientParameters(endpoint_url=s3_server.endpoint)
    with temporary_settings({PREFECT_API_URL: server.api}):
        S3Bucket(bucket_name="remembered", credentials=AwsCredentials(**keys, aws_client_parameters=client)).save(
            "remembered", overwrite=True
        )
    ran, mended = tmp_path / "ran", tmp_path / "mended"
    steps = [
        {"name": "first", "command": f"echo first >> {ran}"},
        {"name": "breaks", "command": f"echo breaks >> {ran}; ls {mended}", "after": "first"},
    ]
    given = json.dumps({"steps": steps, "run_key": "over-there"})

    def run(machine: str) -> int:
        # Nothing is shared but the server and S3: neither jobs nor Prefect's own folder.
        own = {
            "PREFECT_TAO_HOME": str(tmp_path / machine),
            "PREFECT_LOCAL_STORAGE_PATH": str(tmp_path / f"{machine}-p"),
        }
        env = {**server.env, **own, "PREFECT_DEFAULT_RESULT_STORAGE_BLOCK": "s3-bucket/remembered"}
        return subprocess.run([sys.executable, "-c", CALL, "chain", given], env=env, timeout=120).returncode

    assert run("one") == 1
    mended.touch()
    assert run("two") == 0
    assert ran.read_text().split() == ["first", "breaks", "breaks"]
