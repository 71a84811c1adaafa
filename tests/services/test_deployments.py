"""`make deploy` brings everything to a server, again and again; forms refuse what is wrong before anything runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import debian
import pytest
import yaml
from deployed import ROOT, begin, deploy, switch_off
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
from prefect_tools import Api, call, job_states, wait_for

from prefect_tao.deployments.deploying import deploy as deploy_folder
from prefect_tao.deployments.described import described_deployments
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import CREDENTIAL_PATTERN
from prefect_tao.jobs.state import JobState
from prefect_tao.settings import PREFECT_DEFAULTS

pytestmark = [pytest.mark.xdist_group("deployments"), pytest.mark.timeout(300)]
DEPLOYMENTS = ROOT / "deployments"
NAMES = [
    "run/run",
    "chain/chain",
    "sweep/sweep",
    "automl/automl",
    "watch/watch",
    "quickstart/quickstart",
    "chain/nightly",
]
CARE = "return-instances/return-instances"
TOKEN = "nvapi-" + "0123456789" * 4
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


def refusal(api: Api, deployment: str, **parameters: Any) -> str:
    """Why the server refuses these parameters; it must, with a conflict."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        begin(api, deployment, **parameters)
    assert refused.value.code == 409
    return str(json.loads(refused.value.read())["detail"])


def read(api: Api, name: str) -> dict[str, Any]:
    return dict(api.ask("GET", f"/deployments/name/{name}"))


def runs_of(api: Api, deployment: str, *states: str) -> list[dict[str, Any]]:
    body = {"deployments": {"id": {"any_": [deployment]}}, "flow_runs": {"state": {"type": {"any_": states}}}}
    return list(api.ask("POST", "/flow_runs/filter", body))


def ended(api: Api, run: str) -> str:
    """The state a run ended in."""
    wait_for(lambda: api.state(run) in ENDED, 120)
    return api.state(run)


# -- what is deployed --------------------------------------------------------------------------------------------------


def test_everything_is_there_and_the_person_is_told_how_to_go_on(api: Api, deployed: str) -> None:
    assert [one.name for one in described_deployments(ROOT)] == [*NAMES, CARE, "recover/recover"]
    for name in NAMES:
        there = read(api, name)
        assert there["work_pool_name"] == "tao"
        assert there["pull_steps"] in (None, [])
        assert there["entrypoint"].startswith("prefect_tao.flows.")
        assert there["enforce_parameter_schema"]
        assert there["description"]
    for part in ("worker start --pool tao", "/deployments", "targets       process", "tao-alerts"):
        assert part in deployed
    types = {one["slug"] for one in api.ask("POST", "/block_types/filter", {})}
    assert {"tao-process", "tao-docker", "tao-slurm", "tao-kubernetes", "tao-lepton", "tao-brev"} <= types
    automations = {one["name"] for one in api.ask("POST", "/automations/filter", {})}
    assert {"tao: a run without heartbeat has crashed", "tao: attach again after a crash"} <= automations


def test_every_parameter_of_every_form_is_described_in_order_and_asks_for_no_none(api: Api, deployed: str) -> None:
    for name in NAMES:
        fields = read(api, name)["parameter_openapi_schema"]["properties"]
        assert sorted(field["position"] for field in fields.values()) == list(range(len(fields)))
        for field in fields.values():
            assert len(field["description"]) > 5
            assert {"type": "null"} not in field.get("anyOf", [])


def test_a_pool_of_another_type_is_told_before_anything_is_deployed(server: Any, deployed: str) -> None:
    words = [sys.executable, "-m", "prefect_tao.deployments", "--pool-type", "docker"]
    done = subprocess.run(words, env=server.env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "the work pool tao is there already, of type process, not docker" in done.stderr
    assert "deployments " not in done.stdout


def test_deploying_again_keeps_what_people_chose_and_offers_blocks_saved_meanwhile(
    server: Any, api: Api, deployed: str
) -> None:
    nightly = read(api, "chain/nightly")
    assert [one["active"] for one in nightly["schedules"]] == [False, False]
    assert nightly["global_concurrency_limit"]["limit"] == 1
    schedule = next(one for one in nightly["schedules"] if one["slug"] == "sundays")
    api.ask("PATCH", f"/deployments/{nightly['id']}/schedules/{schedule['id']}", {"active": True})
    added = {"schedule": {"cron": "5 5 5 5 5"}, "active": True, "parameters": {"model": "tiny"}}
    api.ask("POST", f"/deployments/{nightly['id']}/schedules", [added])
    save = (
        "from prefect_tao.blocks import TaoDocker, TaoProcess; TaoProcess().save('deployed', overwrite=True); "
        "TaoDocker(host='ssh://me@box').save('box', overwrite=True); "
        "TaoDocker().save('here', overwrite=True)"
    )
    subprocess.run([sys.executable, "-c", save], env=server.env, check=True, timeout=60)
    count = len(api.ask("POST", "/automations/filter", {}))
    try:
        told = deploy(server)
        again = read(api, "chain/nightly")
        assert again["id"] == nightly["id"]
        assert {one["slug"] for one in again["schedules"] if one["active"]} == {"sundays", None}
        (kept,) = [one for one in again["schedules"] if one["slug"] is None]
        assert kept["schedule"]["cron"] == added["schedule"]["cron"]
        assert kept["parameters"] == added["parameters"]
        assert len(again["schedules"]) == 3
        assert "unlike prefect.yaml: chain/nightly sundays" in told
        assert len(api.ask("POST", "/automations/filter", {})) == count
        for target in ("process/deployed", "remote-docker/box", "local-docker/here"):
            assert target in told
            assert target in json.dumps(read(api, "run/run")["parameter_openapi_schema"]["properties"]["target"])
    finally:
        switch_off(api)
        there = {one["slug"]: one["id"] for one in read(api, "chain/nightly")["schedules"]}
        api.ask("PATCH", f"/deployments/{nightly['id']}/schedules/{there['sundays']}", {"active": False})
        api.ask("DELETE", f"/deployments/{nightly['id']}/schedules/{there[None]}")


MINE = """
from prefect import flow

@flow(name="another name")
def my_flow(target: int = 1) -> None: ...
"""


async def test_a_flow_of_somebody_else_is_deployed_as_it_is_and_its_schedule_stays_off(
    server: Any, api: Api, deployed: str, tmp_path: Path
) -> None:
    entry = {
        "name": "mine",
        "entrypoint": "mine.py:my_flow",
        "work_pool": {"name": "tao"},
        "schedules": [{"slug": "nights", "cron": "0 2 * * *", "active": True}],
    }
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": [entry]}))
    said: list[str] = []
    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        await deploy_folder(tmp_path, say=said.append)
        mine = read(api, "another%20name/mine")
        assert mine["parameter_openapi_schema"]["properties"]["target"]["type"] == "integer"
        assert "additionalProperties" not in mine["parameter_openapi_schema"]
        (schedule,) = mine["schedules"]
        assert schedule["active"]
        api.ask("PATCH", f"/deployments/{mine['id']}/schedules/{schedule['id']}", {"active": False})
        await deploy_folder(tmp_path, say=said.append)
    (schedule,) = read(api, "another%20name/mine")["schedules"]
    assert not schedule["active"]
    assert any("unlike prefect.yaml: another name/mine nights" in line for line in said)
    api.ask("DELETE", f"/deployments/{mine['id']}")


def test_the_nightly_schedule_runs_when_it_is_switched_on(api: Api, standing: Path) -> None:
    nightly = read(api, "chain/nightly")
    schedule = next(one for one in nightly["schedules"] if one["slug"] == "every-night")
    soon = f"DTSTART:{datetime.now(UTC) + timedelta(seconds=8):%Y%m%dT%H%M%SZ}\nFREQ=DAILY;COUNT=1"
    path = f"/deployments/{nightly['id']}/schedules/{schedule['id']}"
    api.ask("PATCH", path, {"schedule": {"rrule": soon, "timezone": "UTC"}, "active": True})
    try:
        api.ask("POST", f"/deployments/{nightly['id']}/schedule", {})
        (run,) = wait_for(lambda: [one for one in runs_of(api, nightly["id"], *ENDED) if one["auto_scheduled"]], 120)
    finally:
        api.ask("PATCH", path, {"schedule": {"cron": "0 2 * * 1-6", "timezone": "UTC"}, "active": False})
    assert run["state"]["type"] == "COMPLETED", run["state"]
    assert job_states(standing, run["id"]) == [JobState.COMPLETE] * 3


@pytest.fixture(scope="module")
def at_once(server: Any, standing: Path) -> dict[str, list[str]]:
    """Two equal runs of two deployments, all begun in the same moment."""
    api = Api(server.api)
    nights = [begin(api, "chain/nightly") for _ in range(2)]
    return {"chain/nightly": nights, "run/run": [begin(api, "run/run", command="echo same") for _ in range(2)]}


def test_two_nights_never_run_at_once(api: Api, standing: Path, at_once: dict[str, list[str]]) -> None:
    ends = {ended(api, run): run for run in at_once["chain/nightly"]}
    assert ends.keys() == {"COMPLETED", "CANCELLED"}
    assert job_states(standing, ends["COMPLETED"]) == [JobState.COMPLETE] * 3
    assert job_states(standing, ends["CANCELLED"]) == []


def test_two_people_who_start_the_same_get_two_runs_with_a_job_each(
    api: Api, standing: Path, at_once: dict[str, list[str]]
) -> None:
    for run in at_once["run/run"]:
        assert ended(api, run) == "COMPLETED"
        assert job_states(standing, run) == [JobState.COMPLETE]


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_wrong_parameters_are_refused_before_a_run_exists(api: Api, deployed: str) -> None:
    before = api.count()
    assert "'gpus'" in refusal(api, "run/run", command="true", gpus=-2)
    assert "'target'" in refusal(api, "run/run", command="true", target="not a target")
    assert "'epochs'" in refusal(api, "quickstart/quickstart", epochs="many")
    assert "'job'" in refusal(api, "watch/watch", job="nothing-like-a-job")
    assert "'recipe'" in refusal(api, "chain/chain", recipe="none-such")
    assert "'steps'" in refusal(api, "chain/chain", steps=[])
    assert "'over'" in refusal(api, "sweep/sweep", model="tiny", action="train", over={})
    assert "'points'" in refusal(api, "sweep/sweep", model="tiny", action="train", points=[])
    assert api.count() == before


def test_what_would_break_the_list_of_runs_is_refused_before_a_run_exists(api: Api, deployed: str) -> None:
    assert "'gpus'" in refusal(api, "run/run", command="true", gpus=10**30)
    assert "'overrides.a.b[0]'" in refusal(api, "run/run", command="true", overrides={"a": {"b": [-(10**30)]}})
    assert "half a character" in refusal(api, "run/run", command="true", specs={"a": "\ud800"})
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    with pytest.raises(urllib.error.HTTPError, match="4"):
        begin(api, "run/run", command="true", specs={"a": deep})
    api.ask("POST", "/flow_runs/filter", {})
    api.ask("POST", "/flow_runs/paginate", {})


def test_parameters_of_an_older_version_are_refused_by_name(api: Api, deployed: str) -> None:
    assert "'num_gpus' was unexpected" in refusal(api, "run/run", command="true", num_gpus=1)
    assert "'pipeline' was unexpected" in refusal(api, "chain/chain", model="tiny", pipeline=["train"])
    assert "'trials' was unexpected" in refusal(api, "sweep/sweep", over={"a": [1]}, trials=3)


def test_another_target_than_the_saved_ones_can_be_typed(api: Api, deployed: str) -> None:
    run = begin(api, "run/run", command="true", target="slurm/saved-later")
    api.ask("DELETE", f"/flow_runs/{run}")


@pytest.mark.parametrize(
    "parameters",
    [
        {"command": f"train --key {TOKEN}"},
        {"command": "true", "env": {"KEY": TOKEN}},
        {"command": "true", "specs": {"deep": [{"down": TOKEN}]}},
        {"command": "true", "secrets": [TOKEN]},
    ],
    ids=["command", "env", "specs", "secrets"],
)
def test_a_secret_in_a_parameter_is_refused_and_stored_nowhere(
    server: Any, api: Api, deployed: str, parameters: dict[str, Any]
) -> None:
    before = api.count()
    assert "a key or token; give its name under secrets" in refusal(api, "run/run", **parameters)
    assert api.count() == before
    stored = [path for path in server.home.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert not stored


def test_a_variable_called_like_a_secret_is_refused_in_a_step_too(api: Api, deployed: str) -> None:
    steps = [{"action": "train", "env": {"wandb_api_key": "0123"}}]
    assert "called like a secret; give its name under secrets" in refusal(api, "chain/chain", model="tiny", steps=steps)


def test_a_secret_in_a_deployment_s_own_parameters_is_refused_too(api: Api, deployed: str) -> None:
    deployment = read(api, "run/run")["id"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        api.ask("PATCH", f"/deployments/{deployment}", {"parameters": {"command": TOKEN}})
    assert 400 <= refused.value.code < 500


def test_where_no_form_stands_before_it_a_secret_is_refused_before_there_is_a_run_and_not_repeated(
    server: Any, api: Api, home: Path
) -> None:
    """Prefect would keep the parameters as they were given, and show them to all."""
    token = "nvapi-" + "9876543210" * 4
    with pytest.raises(InvalidInput) as refused:
        call(server, "run", command=f"train --key {token}")
    assert token not in str(refused.value)
    assert api.run_with(f"train --key {token}") is None
    assert not home.exists()


# What a form cannot know is told by the run, before any job: where it is sent, what is wrong, and what is said of it.
TOLD_BY_THE_RUN: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "steps that wait for each other": (
        "chain/chain",
        {"steps": [{"name": "a", "command": "true", "after": "b"}, {"name": "b", "command": "true", "after": "a"}]},
        ("the steps wait for each other: a -> b -> a", "break the circle"),
    ),
    "a chain that does not hold together": (
        "chain/chain",
        {
            "model": "tiny",
            "steps": [
                {"action": "train", "overrides": {"results_dir": "/nowhere/one"}},
                {"name": "other", "action": "train", "overrides": {"results_dir": "/nowhere/one"}},
                {"name": "late", "command": "true", "after": "trian"},
                {"name": "reads", "command": "cat {steps.train.engine}"},
            ],
        },
        (
            "there is no step 'trian'",
            "did you mean train",
            "the step train makes no engine",
            "the steps train and other both write to /nowhere/one",
        ),
    ),
    "a sweep over an unknown key": (
        "sweep/sweep",
        {"model": "tiny", "action": "train", "over": {"learning_rte": [0.1, 0.2]}},
        ("learning_rte: not a key of this action's spec",),
    ),
    "a deleted block": (
        "run/run",
        {"command": "true", "target": "process/deleted-since"},
        (
            "there is no saved block for the target process/deleted-since",
            "save a tao-process block named deleted-since",
        ),
    ),
}


@pytest.fixture(scope="module")
def told_by_the_run(server: Any, standing: Path) -> dict[str, str]:
    """The runs by what is wrong with them, all begun at once."""
    api = Api(server.api)
    return {case: begin(api, name, **given) for case, (name, given, _) in TOLD_BY_THE_RUN.items()}


@pytest.mark.parametrize("case", TOLD_BY_THE_RUN)
def test_what_no_form_can_know_fails_the_run_before_any_job(
    api: Api, standing: Path, told_by_the_run: dict[str, str], case: str
) -> None:
    run = told_by_the_run[case]
    assert ended(api, run) == "FAILED"
    message = api.run(run)["state"]["message"]
    assert [words for words in TOLD_BY_THE_RUN[case][2] if words not in message] == [], message
    assert job_states(standing, run) == []


def test_a_schedule_in_the_past_is_taken_and_makes_no_run(api: Api, deployed: str) -> None:
    """Prefect's server says nothing; what it does is what a person can rely on."""
    deployment = read(api, "quickstart/quickstart")["id"]
    past = {"rrule": "DTSTART:20200101T000000Z\nFREQ=DAILY;COUNT=3", "timezone": "UTC"}
    (made,) = api.ask("POST", f"/deployments/{deployment}/schedules", [{"schedule": past, "active": True}])
    try:
        api.ask("POST", f"/deployments/{deployment}/schedule", {})
        assert runs_of(api, deployment, "SCHEDULED") == []
    finally:
        api.ask("DELETE", f"/deployments/{deployment}/schedules/{made['id']}")


@pytest.mark.parametrize("cron", ["61 2 * * *", "every night"])
def test_a_schedule_that_means_nothing_is_refused(api: Api, deployed: str, cron: str) -> None:
    deployment = read(api, "quickstart/quickstart")["id"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        api.ask("POST", f"/deployments/{deployment}/schedules", [{"schedule": {"cron": cron}, "active": True}])
    assert refused.value.code == 422


# -- the files ---------------------------------------------------------------------------------------------------------


def test_no_file_of_the_deployments_holds_or_refers_to_a_secret() -> None:
    for file in (ROOT / "prefect.yaml", *DEPLOYMENTS.rglob("*.*")):
        if file.suffix in (".yaml", ".json", ".py", ".env", ".service"):
            text = file.read_text()
            assert "prefect.blocks." not in re.sub(r"(import|from) prefect\S*", "", text), file
            assert not re.search(CREDENTIAL_PATTERN, text), file


@pytest.mark.parametrize("kind", ["process", "docker", "kubernetes"])
def test_a_work_pool_template_uses_all_of_its_variables_and_explains_them(kind: str) -> None:
    template = json.loads((DEPLOYMENTS / "work_pools" / f"{kind}.json").read_text())
    variables = template["variables"]["properties"]
    assert set(re.findall(r"{{ (\w+) }}", json.dumps(template["job_configuration"]))) == set(variables)
    assert all(variable["title"] and len(variable["description"]) > 5 for variable in variables.values())


def compose(file: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What Docker Compose makes of a file, without starting anything."""
    debian.ensure({"docker-compose": "docker-compose"})
    words = ["docker-compose", "--file", str(file), "config"]
    env = {"PATH": debian.PATH, **variables}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)


def test_the_compose_file_is_understood_and_asks_for_its_password(tmp_path: Path) -> None:
    described = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())
    del described["name"]  # which Debian's version of Compose does not know yet
    file = tmp_path / "compose.yaml"
    file.write_text(yaml.safe_dump(described))
    refused = compose(file)
    assert refused.returncode != 0
    assert "set TAO_DB_PASSWORD" in refused.stderr
    understood = compose(file, TAO_DB_PASSWORD="not-a-secret")
    assert understood.returncode == 0, understood.stderr
    services = yaml.safe_load(understood.stdout)["services"]
    assert services.keys() == {"database", "server", "worker"}
    assert services["server"]["environment"]["PREFECT_SERVER_DATABASE_PASSWORD"] == "not-a-secret"


def test_the_compose_file_holds_together() -> None:
    described = yaml.safe_load((DEPLOYMENTS / "compose.yaml").read_text())
    services = described["services"]
    assert set(services) == {"database", "server", "worker"}
    for service in services.values():
        named = {str(volume).partition(":")[0] for volume in service.get("volumes", [])}
        assert named <= set(described["volumes"])
        assert set(service.get("depends_on", {})) <= set(services)
    server, working = services["server"], services["worker"]
    assert server["healthcheck"]
    assert services["database"]["healthcheck"]
    ours = {name: value for name, value in PREFECT_DEFAULTS.items() if name.startswith("PREFECT_SERVER_")}
    del ours["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"]
    assert server["environment"].items() >= ours.items()
    assert server["environment"]["PREFECT_SERVER_DATABASE_HOST"] in services
    assert working["environment"]["PREFECT_API_URL"] == "http://server:4200/api"
    assert working["environment"]["PREFECT_CLIENT_MAX_RETRIES"] == "8"
    home = working["environment"]["PREFECT_TAO_HOME"]
    mounts = {str(volume).split(":")[1] for volume in working["volumes"]}
    assert any(home.startswith(mount) for mount in mounts)
    assert any(working["environment"]["PREFECT_LOCAL_STORAGE_PATH"].startswith(mount) for mount in mounts)
    assert working["depends_on"]["server"]["condition"] == "service_healthy"
