"""What a person reads in Prefect's UI about runs: their steps, gates, progress, curves, ranks, and why they failed."""

from __future__ import annotations

from typing import Any

import pytest
from prefect_tools import Api, wait_for

from prefect_tao.preflight.gates import GATES

from .conftest import Look, artifacts

pytestmark = [pytest.mark.xdist_group("deployments"), pytest.mark.timeout(300)]
# A picture that was loaded and is not blank counts; a broken one has no width.
PICTURES = "[...document.querySelectorAll('img')].filter(one => one.src.startsWith('data:') && one.naturalWidth).length"


def test_the_run_shows_its_steps(look: Look, runs: dict[str, str]) -> None:
    look.open(f"/runs/flow-run/{runs['chain']}", "tiny: train > export", "Completed", "Task Runs")
    look.browser.click("Task Runs")
    said = look.browser.sees("tiny train on process", "gate: ")
    assert "Ready to scale" not in said  # Prefect's advertisement for its cloud
    look.picture("run")


def test_the_graph_has_the_seven_gates_before_the_job(api: Api, runs: dict[str, str]) -> None:
    def nodes() -> dict[str, Any]:
        graph = api.ask("GET", f"/flow_runs/{runs['failed']}/graph-v2")
        return {node["label"]: node for _, node in graph["nodes"]}

    found = wait_for(lambda: nodes() if len(nodes()) > len(GATES) else None, 20)
    gates = {found[f"gate: {name}"]["id"] for name in GATES}
    (job,) = [node for label, node in found.items() if not label.startswith("gate: ")]
    assert {parent["id"] for parent in job["parents"]} == gates


def test_the_launch_review_tells_what_will_be_sent(look: Look, api: Api, runs: dict[str, str]) -> None:
    review = artifacts(api, runs["chain"])["review"]
    look.open(
        f"/artifacts/artifact/{review['id']}",
        "Launch review: tiny",
        "Gates",
        "platform credentials",
        "What will be sent",
    )
    look.picture("review")


def test_a_training_shows_its_curves(look: Look, api: Api, runs: dict[str, str]) -> None:
    body = {"flow_runs": {"id": {"any_": [runs["chain"]]}}, "limit": 100}
    keyed = {one["key"] or "": one for one in api.ask("POST", "/artifacts/filter", body)}
    (outcome,) = [one for key, one in keyed.items() if key.startswith("job-tiny-train-on-process-")]
    look.open(f"/artifacts/artifact/{outcome['id']}", "tiny train on process", "Complete", "results", "checkpoints")
    assert wait_for(lambda: look.browser.script(PICTURES), 20) >= 2
    look.picture("curves")


def test_a_sweep_shows_its_leaderboard(look: Look, api: Api, runs: dict[str, str]) -> None:
    board = artifacts(api, runs["sweep"])["leaderboard"]
    look.open(f"/artifacts/artifact/{board['id']}", "2 of 2 points complete; best", "train.optim.lr", "Complete")
    look.picture("leaderboard")


def test_a_search_shows_what_it_has_learned(look: Look, api: Api, runs: dict[str, str]) -> None:
    pages = artifacts(api, runs["search"])
    look.open(
        f"/artifacts/artifact/{pages['leaderboard']['id']}", "AutoML: tiny train", "bayesian", "7 complete", "Best"
    )
    assert wait_for(lambda: look.browser.script(PICTURES), 20) >= 4
    look.picture("search")
    look.open(f"/artifacts/artifact/{pages['search']['id']}", "judged by: val_loss", "at most 7 trials", "first trials")
    look.picture("search-review")


def test_a_chain_shows_its_steps(look: Look, api: Api, runs: dict[str, str]) -> None:
    summary = artifacts(api, runs["chain"])["chain"]
    look.open(f"/artifacts/artifact/{summary['id']}", "Steps", "train", "export", "Complete", "ran for")
    look.picture("chain")
    look.follow("page", "tiny train on process", "checkpoints")
    look.follow("log", "is Complete", "launched tao-")


def test_a_failed_run_says_why_and_what_to_do(look: Look, api: Api, runs: dict[str, str]) -> None:
    look.open(f"/runs/flow-run/{runs['failed']}", "Failed", "Details")
    look.browser.click("Details")
    if look.version == "v1":
        look.browser.click("See More")
    look.browser.sees("The model and its batch do not fit into the GPU's memory")
    look.picture("failed")
    page = artifacts(api, runs["failed"])["job"]
    look.open(
        f"/artifacts/artifact/{page['id']}", "Why: program", "What to do:", "Lower the batch size", "loading the model"
    )
    look.picture("failure")


def test_a_refused_launch_lists_all_that_stands_in_its_way(look: Look, api: Api, runs: dict[str, str]) -> None:
    findings = artifacts(api, runs["refused"])["findings"]
    look.open(
        f"/artifacts/artifact/{findings['id']}",
        "What stands in the way of the launch",
        "LEPTON_AUTH_TOKEN",
        "what to do:",
        "was not confirmed",
    )
    look.picture("findings")
