"""The gates as Prefect tasks: in the run graph, all findings at once, nothing touched, the image confirmed."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from boxed import MODEL, PLATFORMS
from prefect_tools import Api, call, wait_for

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.state import JobState
from prefect_tao.preflight.gates import GATES

pytestmark = pytest.mark.xdist_group("prefect-server")
SERVE = """
from prefect.deployments.runner import EntrypointType
from prefect_tao.flows import run
run.serve(name="gated", entrypoint_type=EntrypointType.MODULE_PATH)
"""
# A run starts in a process of its own, which takes its time on a busy machine.
RUN_SECONDS = 150
DINO = {"model": "dino", "action": "train", "target": "lepton", "train_root": "/mnt/t", "eval_root": "/mnt/v"}
BOXED_WITH_DATA = f"""{MODEL}    datasets:
      table: {{source: train, path: table.csv}}
    inputs:
      table: {{type: file}}
"""


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
    review = api.page("review", outcome.handle.key)["data"]
    assert "Launch review: tiny train on process" in review
    assert '"num_epochs": 2' in review
    assert "prefect_tao.examples.tiny_trainer train" in review


def test_all_findings_are_told_at_once_and_nothing_is_touched(
    server: Any, api: Api, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LEPTON_WORKSPACE_ID", "LEPTON_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    stored = {path for path in (server.home / "storage").rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput) as refused:
        call(server, "run", **DINO)
    told = str(refused.value)
    for part in ("LEPTON_WORKSPACE_ID", "LEPTON_AUTH_TOKEN", "nothing proves that this path is mounted"):
        assert part in told
    assert "was not confirmed" in told
    assert "goes through an AutoML search, and it is not said what that may spend" in told
    run = api.newest_run("run")
    assert run["state"]["type"] == "FAILED"
    assert "LEPTON_WORKSPACE_ID" in run["state"]["message"]
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


def test_a_look_finds_a_secret_in_a_block_of_the_server(server: Any) -> None:
    save = "from prefect.blocks.system import Secret; Secret(value='hush-hush-hush').save('gate-flow-token')"
    subprocess.run([sys.executable, "-c", save], env=server.env, check=True, timeout=60)
    words = ["run", "--dry-run", "--json", "--secret", "GATE_FLOW_TOKEN", "--", "true"]
    looked = subprocess.run(
        [sys.executable, "-m", "prefect_tao.cli", *words], env=server.env, capture_output=True, text=True, timeout=60
    )
    assert looked.returncode == 0, looked.stderr
    (found,) = json.loads(looked.stdout)["gates"]["model_credentials"]
    assert found["message"] == "GATE_FLOW_TOKEN is set"
    assert "hush" not in looked.stdout + looked.stderr


def test_a_look_counts_all_gpus_of_a_node_by_what_the_block_says(server: Any, home: Path) -> None:
    site = {"user": "me", "hostnames": ["127.0.0.1"], "ssh_port": 1, "partition": "big", "max_gpus_per_node": 16}
    save = f"from prefect_tao.blocks import TaoSlurm; TaoSlurm(**{site}).save('gate-flow-big', overwrite=True)"
    subprocess.run([sys.executable, "-c", save], env=server.env, check=True, timeout=60)
    words = ["plan", "dino", "train", "--target", "slurm/gate-flow-big", "--gpus", "-1", "--json"]
    looked = subprocess.run(
        [sys.executable, "-m", "prefect_tao.cli", *words], env=server.env, capture_output=True, text=True, timeout=60
    )
    assert looked.stdout, looked.stderr
    told = json.loads(looked.stdout)
    assert told["spec"]["train"]["num_gpus"] == 16
    assert told["request"]["resources"]["gpus"] == 16
    assert not [one for one in told["gates"]["compute"] if one["level"] == "fail" and "gpus" in one["message"]]


@pytest.fixture
def served(server: Any, home: Path, tmp_path: Path) -> Iterator[None]:
    """The flow as a deployment, in a process whose catalog has a model with an image."""
    (tmp_path / "catalog" / "models").mkdir(parents=True)
    (tmp_path / "catalog" / "platforms.yaml").write_text(PLATFORMS)
    (tmp_path / "catalog" / "models" / "boxed.yaml").write_text(BOXED_WITH_DATA)
    own = {"PREFECT_TAO_HOME": str(home), "PREFECT_TAO_CATALOG": str(tmp_path / "catalog")}
    env = {**server.env, **own, "PREFECT_RUNNER_POLL_FREQUENCY": "2"}
    with open(home.parent / "serve.log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-c", SERVE], env=env, stdout=log, stderr=log)
    yield
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:  # it waits for a run that a failed test left paused
        process.kill()
        process.wait()


def asks_a_person(api: Api, run: str) -> bool:
    """Whether the run is paused and its form is there, which Prefect stores a moment later."""
    state = api.run(run)["state"]
    if state["type"] != "PAUSED":
        return False
    try:
        return bool(api.ask("GET", f"/flow_runs/{run}/input/{state['state_details']['run_input_keyset']['schema']}"))
    except urllib.error.HTTPError:
        return False


def resume(api: Api, run: str, **choice: str) -> Any:
    """What the server says to a person's choice; a busy one (503) is asked again, as Prefect's own clients do."""

    def answer() -> Any:
        try:
            return api.ask("POST", f"/flow_runs/{run}/resume", {"run_input": choice})
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
            return None

    return wait_for(answer, 30)


def test_a_run_from_the_ui_asks_for_the_image_when_all_else_is_good(
    server: Any, api: Api, served: None, home: Path, tmp_path: Path
) -> None:
    deployment = wait_for(lambda: api.deployment("run/gated"), RUN_SECONDS)
    boxed = {"model": "boxed", "action": "train", "step": "box", "run_key": "boxed"}

    def started() -> str:
        body = {"parameters": {**boxed, "train_root": str(tmp_path / "data")}}
        return str(api.ask("POST", f"/deployments/{deployment}/create_flow_run", body)["id"])

    bad = started()
    wait_for(lambda: api.state(bad) in ("FAILED", "PAUSED"), RUN_SECONDS)
    assert api.state(bad) == "FAILED"
    assert gate_states(api, bad) == dict.fromkeys(GATES, "COMPLETED") | {"datasets": "FAILED"}
    assert "was not confirmed" not in api.run(bad)["state"]["message"]

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "table.csv").write_text("1\n")
    aborted = started()
    wait_for(lambda: asks_a_person(api, aborted), RUN_SECONDS)
    assert resume(api, aborted, decision="abort", image="x")["status"] == "ACCEPT"
    wait_for(lambda: api.state(aborted) in ("CANCELLED", "FAILED"), RUN_SECONDS)
    assert api.state(aborted) == "CANCELLED"
    assert not home.exists()

    run = started()
    wait_for(lambda: asks_a_person(api, run), RUN_SECONDS)
    others = {f"gate: {name}": "COMPLETED" for name in GATES if name != "image"}
    wait_for(lambda: {task["name"]: task["state"]["type"] for task in api.task_runs(run)} == others, 30)
    refused = resume(api, run, image="x")
    assert refused["status"] == "REJECT"
    assert "decision" in refused["details"]["reason"]
    assert resume(api, run, decision="launch", image="registry.example/team/boxed:2")["status"] == "ACCEPT"
    wait_for(lambda: api.state(run) in ("COMPLETED", "FAILED"), RUN_SECONDS)
    assert api.state(run) == "COMPLETED", api.run(run)["state"]
    assert set(gate_states(api, run).values()) == {"COMPLETED"}
    review = api.page("review", job_key("boxed", "box"))["data"]
    assert "`registry.example/team/boxed:2` (from chosen by a person)" in review
