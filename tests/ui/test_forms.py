"""Forms in Prefect's UI that a person fills in who never saw the code: deployments, blocks, the image to confirm."""

from __future__ import annotations

import json
from typing import Any

import pytest
from prefect_tools import Api, wait_for

from .conftest import Look

pytestmark = [pytest.mark.xdist_group("deployments"), pytest.mark.timeout(300)]
# The field below the label with this text.
FIELD = """(words => {
  const label = [...document.querySelectorAll('label, .p-label, span, div')]
    .filter(one => one.textContent.trim().startsWith(words)).pop();
  for (let place = label; place; place = place.parentElement) {
    const field = place.querySelector('textarea, input:not([type=checkbox]), .cm-content');
    if (field) return field;
  }
  return null;
})"""


# The steps come first: this adds one, and its editor stands above the button, as soon as it is there.
ADD = "[...document.querySelectorAll('button')].find(one => one.textContent.trim() === 'Add item')"
STEP = f"""((one, add) => one && add.compareDocumentPosition(one) & Node.DOCUMENT_POSITION_PRECEDING ? one : null)(
  document.querySelector('.cm-content, .p-code-input__textarea'), {ADD})"""


def field(words: str) -> str:
    return f"{FIELD}({words!r})"


def test_a_deployment_is_filled_in_and_started(look: Look, api: Api, deployed: str) -> None:
    deployment = api.deployment("run/run")
    look.open(
        f"/deployments/deployment/{deployment}/run",
        "What to run, as a shell would",
        "The model, by name, alias, arch or Hugging Face id",
        "Where: process, or PLATFORM/BLOCK such as slurm/polar",
        "Names of secrets, such as HF_TOKEN; never values",
        "Written as JSON",
    )
    assert "Property is type" not in look.browser.text()
    look.browser.fill(field("command (Optional)"), f"echo from-{look.version}")
    look.browser.sees(f"echo from-{look.version}")
    look.picture("deployment-form")
    look.submit()
    run = wait_for(lambda: api.run_with(f"echo from-{look.version}"), 120)
    given = {name: value for name, value in run["parameters"].items() if value not in (None, [], {})}
    assert given["target"] == "process"
    assert not set(given) - {"command", "target", *DEFAULTS}


DEFAULTS = (
    "confirm_image",
    "yes",
    "config_format",
    "automl_policy",
    "release_elsewhere",
    "long_running_enabled",
    "status_interval_minutes",
)


def test_a_chain_is_written_step_by_step_and_started(look: Look, api: Api, deployed: str) -> None:
    deployment = api.deployment("chain/chain")
    look.open(
        f"/deployments/deployment/{deployment}/run",
        "Each item is written as JSON",
        "prune: train > prune > retrain > evaluate.",
        "Where the steps run that name no target",
    )
    name = f"from-{look.version}"
    look.browser.script(f"{ADD}.click()")
    look.browser.fill(STEP, json.dumps({"name": name, "command": "true"}))
    look.browser.sees(name)
    look.picture("chain-form")
    look.submit()
    wait_for(lambda: [{"name": name, "command": "true"}] in given(api, deployment, "steps"), 120)


def test_the_form_of_a_sweep_says_how_its_values_are_written(look: Look, api: Api, deployed: str) -> None:
    deployment = api.deployment("sweep/sweep")
    text = look.open(
        f"/deployments/deployment/{deployment}/run",
        'Written as JSON, such as {"train.optim.lr": [0.1, 0.01]}.',
        "grid tries all combinations",
        "Jobs at once",
    )
    assert text.index("the values to try") < text.index("grid tries all") < text.index("Jobs at once")
    over = {"number": [1, len(look.version)]}
    look.browser.fill(field("command (Optional)"), f"echo sweep-{look.version}")
    look.browser.fill(field("over (Optional)"), json.dumps(over))
    look.browser.sees('"number"')
    look.picture("sweep-form")
    look.submit()
    wait_for(lambda: over in given(api, deployment, "over"), 120)


def test_the_form_of_a_search_asks_for_what_it_may_spend(look: Look, api: Api, deployed: str) -> None:
    deployment = api.deployment("automl/automl")
    look.open(
        f"/deployments/deployment/{deployment}/run",
        "How trials are chosen: bayesian",
        "Trials of an AutoML search; 20 when left out",
        "GPU hours that a search may use",
        'Written as JSON, such as {"train.optim.lr": {"valid_min": 0.001, "valid_max": 0.5}}.',
    )
    look.picture("search-form")


def given(api: Api, deployment: str | None, name: str) -> list[Any]:
    """What the runs of a deployment were given for one parameter."""
    body = {"deployments": {"id": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_DESC", "limit": 200}
    return [run["parameters"].get(name) for run in api.ask("POST", "/flow_runs/filter", body)]


def test_a_secret_typed_into_a_form_is_refused_and_stored_nowhere(look: Look, api: Api, deployed: str) -> None:
    deployment = api.deployment("run/run")
    look.open(f"/deployments/deployment/{deployment}/run", "What to run, as a shell would")
    look.browser.fill(field("command (Optional)"), "train --key nvapi-" + "0123456789" * 4)
    look.browser.click("Submit")
    look.browser.sees("a key or token; give its name under secrets")
    look.picture("secret-refused")
    assert "nvapi-" not in json.dumps(api.ask("POST", "/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 200}))


def test_the_form_of_a_platform_explains_its_fields(look: Look, deployed: str) -> None:
    text = look.open(
        "/blocks/catalog/tao-slurm/create", "TAO SLURM", "Login nodes", "Partition", "Secret variables", "NGC key block"
    )
    assert text.index("Login nodes") < text.index("Partition") < text.index("NGC key block")
    look.picture("block-form")


def test_the_form_of_a_cluster_explains_its_fields(look: Look, deployed: str) -> None:
    look.open(
        "/blocks/catalog/tao-kubernetes/create",
        "Where you may create Jobs and Secrets.",
        "For images of nvcr.io, from NGC_KEY; it goes with its job.",
        "As pvc://CLAIM:/inside, host:///path:/inside or nfs://SERVER/path:/inside",
        "Seconds after which the cluster ends a Pod; none when left out.",
    )
    look.picture("kubernetes-form")


def test_a_run_waits_for_its_image_and_a_person_confirms_it(look: Look, api: Api, paused: str) -> None:
    look.open(f"/runs/flow-run/{paused}", "boxed train on process", "Paused")
    if look.version == "v2":
        look.browser.click("Open menu")
    look.browser.click("Resume")
    look.browser.sees("would run in this container image", "registry.example/team/boxed:1", "or abort the run")
    look.picture("confirm-image")
    if look.version == "v2":  # the one run can be answered once
        for words in ("Select", "launch", "Resume"):
            look.browser.click(words)
        wait_for(lambda: api.state(paused) == "COMPLETED", 120)
