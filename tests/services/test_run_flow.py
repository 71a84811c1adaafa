"""The flow `run` against a real Prefect server: results, failure, detaching, attaching again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from opened_platforms import process_at
from prefect_tools import CALL, Api, call, start, wait_for
from runner_tools import Bucket
from s3_server import S3Server

from prefect_tao.jobs.errors import InvalidInput, JobFailed
from prefect_tao.jobs.state import JobState
from prefect_tao.preflight.gates import GATES

# Those who share the one server run one after the other.
pytestmark = pytest.mark.xdist_group("prefect-server")
TINY = f"{sys.executable} -m prefect_tao.examples.tiny_trainer"


def test_a_run_leaves_an_outcome_artifacts_and_log_lines(server: Any, api: Api, home: Path) -> None:
    outcome = call(
        server,
        "run",
        command=f"{TINY} train -e {{config_path}}",
        specs={"results_dir": "", "train": {"num_epochs": 3}},
        outputs={"results_dir": {"type": "folder"}},
        action="train",
    )
    assert outcome.state is JobState.COMPLETE
    assert outcome.progress.epoch == 3
    assert any(path.endswith("model_epoch_003.ckpt") for path in outcome.checkpoints)
    run = api.newest_run("run")
    assert run["state"]["type"] == "COMPLETED"
    assert run["name"] == "train on process"
    graph = {*(f"gate: {name}" for name in GATES), "train on process"}
    # A busy server takes its time until it has written down the last of them.
    wait_for(lambda: {task["name"] for task in api.task_runs(run["id"])} == graph, 60)
    page = api.page("job", outcome.handle.key)["data"]
    assert "**Complete**" in page
    assert "data:image/svg+xml;base64," in page
    assert api.page("job", outcome.handle.key)["key"].startswith("job-train-on-process-")
    assert any("is Complete" in line for line in api.logs(run["id"]))


def test_a_plain_call_works_where_an_event_loop_runs_as_in_a_notebook(server: Any, api: Api) -> None:
    async def cell() -> Any:
        return call(server, "run", command="true")

    assert asyncio.run(cell()).state is JobState.COMPLETE
    assert api.newest_run("run")["state"]["type"] == "COMPLETED"


def test_a_refused_launch_is_logged_in_its_own_words_once(server: Any, api: Api) -> None:
    with pytest.raises(InvalidInput) as refusal:
        call(server, "run", command="true", secrets=["NO_SUCH"])
    assert len(traceback.extract_tb(refusal.value.__traceback__)) <= 3
    logs = api.logs(api.newest_run("run")["id"])
    assert not [line for line in logs if "Traceback" in line or "Finished in state" in line], logs
    assert [line for line in logs if "NO_SUCH" in line] == [
        "NO_SUCH is missing: the job asks for it",
        str(refusal.value),
    ]


def test_a_failed_job_fails_the_run_with_cause_remedy_and_log(server: Any, api: Api) -> None:
    with pytest.raises(JobFailed) as failure:
        call(server, "run", command="echo before; echo 'ValueError: no such class 7' >&2; exit 4")
    assert failure.value.verdict is not None
    assert "no such class 7" in failure.value.verdict.log_excerpt
    run = api.newest_run("run")
    assert run["state"]["type"] == "FAILED"
    assert "no such class 7" in run["state"]["message"]
    assert "what to do" in run["state"]["message"]


def test_bad_input_fails_the_check_and_launches_nothing(server: Any, api: Api, home: Path) -> None:
    with pytest.raises(InvalidInput, match="input /data/x: /no/such/file: does not exist on process"):
        call(server, "run", command="true", inputs={"/data/x": "/no/such/file"})
    assert not home.exists()
    assert api.newest_run("run")["state"]["type"] == "FAILED"


def test_a_detached_launch_returns_the_handle_and_the_job_goes_on(server: Any, home: Path) -> None:
    handle = call(server, "run", command="sleep 1; echo late", long_running_enabled=False)
    words = [sys.executable, "-m", "prefect_tao.cli", "watch", handle.name, "--json"]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout)["state"] == "Complete"


def test_the_same_run_key_attaches_a_new_flow_run_to_the_old_job(server: Any, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    outcomes = [call(server, "run", command=f"echo once >> {marker}", run_key=str(marker)) for _ in range(2)]
    assert marker.read_text() == "once\n"
    assert outcomes[0] == outcomes[1]


def test_two_runs_of_the_same_parameters_are_two_jobs(server: Any, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    outcomes = [call(server, "run", command=f"echo again >> {marker}") for _ in range(2)]
    assert marker.read_text() == "again\nagain\n"
    assert outcomes[0].handle.key != outcomes[1].handle.key


def test_secrets_reach_the_job_and_nothing_that_prefect_keeps(
    server: Any, api: Api, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "s3cr3t-value-nobody-may-see"
    monkeypatch.setenv("HF_TOKEN", value)
    command = 'test "$HF_TOKEN" = "s3cr3t-"value-nobody-may-see'
    assert call(server, "run", command=command, secrets=["HF_TOKEN"]).state is JobState.COMPLETE
    run = api.newest_run("run")
    assert value not in json.dumps([run, api.task_runs(run["id"]), api.logs(run["id"])])
    files = [path for root in (home, server.home) for path in root.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if value.encode() in path.read_bytes()]


def test_a_secret_that_a_failing_job_prints_is_kept_nowhere(
    server: Any, api: Api, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "pr1nted-by-the-job-itself"
    monkeypatch.setenv("HF_TOKEN", value)
    with pytest.raises(JobFailed) as failure:
        call(
            server, "run", command='echo "RuntimeError: token=$HF_TOKEN was refused" >&2; exit 1', secrets=["HF_TOKEN"]
        )
    assert "token=***HF_TOKEN*** was refused" in str(failure.value)
    run = api.newest_run("run")
    assert value not in json.dumps([run, api.task_runs(run["id"]), api.logs(run["id"])])
    assert not [path for path in server.home.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]


def test_two_calls_in_one_flow_are_two_jobs(server: Any, tmp_path: Path) -> None:
    from prefect import flow
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from prefect_tao.flows import run

    @flow
    async def mine() -> list[Any]:
        return [await run(f"echo {word} >> {tmp_path}/said") for word in ("one", "two")]

    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        outcomes = asyncio.run(mine())
    assert [outcome.state for outcome in outcomes] == [JobState.COMPLETE] * 2
    assert (tmp_path / "said").read_text() == "one\ntwo\n"


def test_all_gpus_are_counted_before_anything_is_derived_from_them(
    server: Any, api: Api, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_TAO_GPUS", "0,1,2")
    monkeypatch.setenv("PREFECT_TAO_GPU_LOCKS", str(tmp_path / "locks"))
    outcome = call(server, "run", command="echo got $CUDA_VISIBLE_DEVICES", gpus=-1)
    page = api.page("review", outcome.handle.key)["data"]
    assert "| GPUs and nodes | 3 x 1 |" in page
    chained = call(server, "chain", steps=[{"name": "a", "command": "true"}], gpus=-1)
    swept = call(server, "sweep", command="cat {config_path}", over={"lr": [1]}, gpus=-1)
    assert (chained.steps[0].gpus, swept.points[0].gpus) == (3, 3)


@pytest.mark.parametrize("wrong", [{"gpus": -2}, {"gpu": 1}, {"target": "process/"}, {"target": "nowhere"}])
def test_wrong_parameters_are_bad_input(server: Any, home: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        call(server, "run", command="true", **wrong)
    assert not home.exists()


def test_a_missing_secret_is_named_before_anything_is_launched(server: Any, home: Path) -> None:
    with pytest.raises(InvalidInput, match="NO_SUCH_TOKEN is missing: the job asks for it"):
        call(server, "run", command="true", secrets=["NO_SUCH_TOKEN"])
    assert not home.exists()


def test_a_secret_block_is_found_by_the_secrets_name(server: Any) -> None:
    from prefect.blocks.system import Secret
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: server.api}):
        Secret(value="from-a-block").save("wandb-api-key")  # type: ignore[arg-type]
    outcome = call(server, "run", command='test "$WANDB_API_KEY" = from-a-block', secrets=["WANDB_API_KEY"])
    assert outcome.state is JobState.COMPLETE


def test_a_target_with_a_block_uses_the_blocks_folders(server: Any, tmp_path: Path) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from prefect_tao.blocks import TaoProcess

    with temporary_settings({PREFECT_API_URL: server.api}):
        TaoProcess(root=str(tmp_path / "spare")).save("spare")
    call(server, "run", command="true", target="process/spare")
    assert list((tmp_path / "spare" / "jobs").iterdir())
    with pytest.raises(InvalidInput, match="there is no saved block for the target process/none-such"):
        call(server, "run", command="true", target="process/none-such")
    with pytest.raises(InvalidInput, match=r"did you mean process/spare\?"):
        call(server, "run", command="true", target="process/spaer")


def test_a_killed_run_leaves_its_job_and_a_new_run_attaches_to_it(server: Any, api: Api, home: Path) -> None:
    marker = home.parent / "ran"
    command = f"echo once >> {marker}; sleep 4"
    running = start(server, home, "run", command=command)
    wait_for(marker.exists, 60)
    old = api.newest_run("run")["id"]
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    outcome = call(server, "run", command=command, run_key=old)
    assert outcome.state is JobState.COMPLETE
    assert marker.read_text() == "once\n"
    assert len(list((process_at(home).root / "jobs").iterdir())) == 1


def test_finished_steps_are_remembered_in_s3_where_that_is_configured(
    server: Any, home: Path, s3_server: S3Server
) -> None:
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
    from prefect_aws import AwsClientParameters, AwsCredentials, S3Bucket

    bucket = Bucket(s3_server.endpoint)
    keys = AwsCredentials(
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
        aws_client_parameters=AwsClientParameters(endpoint_url=s3_server.endpoint),
    )
    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        asyncio.run(S3Bucket(bucket_name=bucket.name, credentials=keys).asave("tao-results", overwrite=True))
    env = {
        **server.env,
        "PREFECT_TAO_HOME": str(home),
        "PREFECT_DEFAULT_RESULT_STORAGE_BLOCK": "s3-bucket/tao-results",
    }
    words = [sys.executable, "-c", CALL, "run", json.dumps({"command": "true", "run_key": "kept-in-s3"})]
    subprocess.run(words, env=env, check=True, capture_output=True, timeout=120)
    kept = bucket.client.list_objects_v2(Bucket=bucket.name)["Contents"]
    texts = [bucket.get(one["Key"]) for one in kept]
    assert any(JobState.COMPLETE.value.encode() in text for text in texts)


def test_a_detached_launch_names_its_job_and_its_run_for_programs(server: Any, api: Api, home: Path) -> None:
    words = [sys.executable, "-m", "prefect_tao.cli", "run", "--model", "tiny", "--action", "train"]
    words += ["--set", "num_epochs=2", "--set", "train.optim.lr=0.1", "--detach", "--json"]
    done = subprocess.run(words, env={**server.env, "PREFECT_TAO_HOME": str(home)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["name"] == f"tao-{told['key']}-1"
    run = api.run(told["flow_run_id"])
    assert run["name"] == "tiny train on process: num_epochs=2, lr=0.1"
