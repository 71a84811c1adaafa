"""The gates as Prefect tasks: in the run graph, all findings at once, nothing touched, the image confirmed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import Api, call, wait_for

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.state import JobState
from prefect_tao.preflight.gates import GATES

pytestmark = pytest.mark.xdist_group("prefect-server")
SERVE = """
from prefect.deployments.runner import EntrypointType
from prefect_tao.flows import run
run.serve(name="gated", entrypoint_type=EntrypointType.MODULE_PATH)
"""
DINO = {"model": "dino", "action": "train", "target": "slurm", "train_root": "/lustre/t", "eval_root": "/lustre/v"}


def gate_states(api: Api, run: str) -> dict[str, str]:
    """How each of the seven gates ended; Prefect's server learns of it a moment later."""

    def ended() -> dict[str, str]:
        tasks = {task["name"]: task["state"]["type"] for task in api.task_runs(run)}
        states = {name: tasks.get(f"gate: {name}", "") for name in GATES}
        return states if set(states.values()) <= {"COMPLETED", "FAILED"} else {}

    states: dict[str, str] = wait_for(ended, 30)
    return states


def test_an_action_of_the_catalog_passes_seven_gates_and_leaves_a_review(server: Any, api: Api, home: Path) -> None:
    outcome = call(server, "run", model="tiny", action="train", overrides={"num_epochs": 2})
    assert outcome.state is JobState.COMPLETE
    assert outcome.progress.epoch == 2
    run = api.newest_run("run")["id"]
    assert gate_states(api, run) == dict.fromkeys(GATES, "COMPLETED")
    review = api.artifact(f"review-{outcome.handle.key}")["data"]
    assert "Launch review: tiny train on process" in review
    assert '"num_epochs": 2' in review
    assert "prefect_tao.examples.tiny_trainer train" in review


def test_all_findings_are_told_at_once_and_nothing_is_touched(
    server: Any, api: Api, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_USER", "SLURM_HOSTNAME", "SLURM_PARTITION", "SSH_KEY_PATH", "SSH_AUTH_SOCK"):
        monkeypatch.delenv(name, raising=False)
    stored = {path for path in (server.home / "storage").rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput) as refused:
        call(server, "run", **DINO)
    told = str(refused.value)
    for part in ("SLURM_USER", "SLURM_PARTITION", "SSH_KEY_PATH", "the driver for slurm is not there yet"):
        assert part in told
    assert "was not confirmed" in told
    assert "needs automl_policy=off until the search exists" in told
    run = api.newest_run("run")
    assert run["state"]["type"] == "FAILED"
    assert "SLURM_PARTITION" in run["state"]["message"]
    states = gate_states(api, run["id"])
    assert states["platform"] == "COMPLETED"
    assert states["reachable"] == states["image"] == states["platform_credentials"] == "FAILED"
    assert not home.exists()
    new = {path for path in (server.home / "storage").rglob("*") if path.is_file()} - stored
    assert len(new) <= 1  # Prefect's own record of how the run failed; no gate and no launch has left a result


def test_credentials_never_reach_what_prefect_keeps(server: Any, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    value = "nobody-may-read-this-key"
    monkeypatch.setenv("SECRET_KEY", value)
    monkeypatch.setenv("ACCESS_KEY", "also-" + value)
    with pytest.raises(InvalidInput):
        call(server, "run", **{**DINO, "target": "kubernetes", "train_root": "s3://nowhere/t"}, automl_policy="off")
    run = api.newest_run("run")
    assert value not in json.dumps([run, api.task_runs(run["id"]), api.logs(run["id"])])


@pytest.fixture
def served(server: Any, home: Path) -> Iterator[None]:
    env = {**server.env, "PREFECT_TAO_HOME": str(home), "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    with open(home.parent / "serve.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE], env=env, stdout=log, stderr=log)
    yield
    process.terminate()
    process.wait(30)


def test_a_run_from_the_ui_waits_for_a_person_to_confirm_the_image(server: Any, api: Api, served: None) -> None:
    deployment = wait_for(lambda: api.deployment("run/gated"), 60)
    body = {"parameters": {**DINO, "automl_policy": "off"}}
    run = api.ask("POST", f"/deployments/{deployment}/create_flow_run", body)["id"]
    wait_for(lambda: api.state(run) == "PAUSED", 60)
    refused = api.ask("POST", f"/flow_runs/{run}/resume", {"run_input": {"image": "x"}})
    assert refused["status"] == "REJECT"
    assert "decision" in refused["details"]["reason"]
    choice = {"decision": "launch", "image": "registry.example/team/dino:1"}
    api.ask("POST", f"/flow_runs/{run}/resume", {"run_input": choice})
    wait_for(lambda: api.state(run) == "FAILED", 60)
    states = gate_states(api, run)
    assert states["image"] == "COMPLETED"
    message = api.run(run)["state"]["message"]
    assert "the driver for slurm is not there yet" in message
    assert "was not confirmed" not in message
