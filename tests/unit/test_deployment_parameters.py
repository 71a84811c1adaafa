"""What is wrong with the parameters of prefect.yaml is told before anything is deployed, secrets above all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_tao.deployments.described import Described, described_deployments
from prefect_tao.deployments.yaml_parameters import parameter_findings
from prefect_tao.flows.chains import chain

TOKEN = "nvapi-" + "0123456789" * 4


def found(ours: bool = True, **entry: Any) -> list[tuple[str, str]]:
    """What is said of a deployment, and what to do."""
    entrypoint = "prefect_tao.flows.chains.chain" if ours else "mine.py:flow"
    described = Described({"name": "mine", "entrypoint": entrypoint, **entry}, chain)
    return [(one.message, one.remedy) for one in parameter_findings([described])]


def test_a_misspelt_parameter_is_told_with_the_one_that_was_meant() -> None:
    schedule = {"slug": "x", "cron": "0 2 * * *", "parameters": {"targt": "process"}}
    assert found(parameters={"modle": "tiny"}, schedules=[schedule]) == [
        ("mine: the flow chain has no parameter modle", "did you mean model or nodes?"),
        ("mine: the flow chain has no parameter targt", "did you mean target?"),
    ]


def test_values_that_the_form_would_refuse_are_told() -> None:
    schedule = {"slug": "x", "cron": "0 2 * * *", "parameters": {"gpus": -2}}
    told = found(parameters={"steps": [], "recipe": "none-such", "target": "moon"}, schedules=[schedule])
    remedies = {message.split(": ")[1]: remedy for message, remedy in told}
    assert sorted(remedies) == ["gpus", "recipe", "steps", "target"]
    assert remedies["recipe"].startswith("it is: A ready-made chain instead of steps.")


@pytest.mark.parametrize(
    ("entry", "where"),
    [
        ({"parameters": {"model": TOKEN}}, "parameters.model holds a key or token"),
        ({"parameters": {"steps": [{"overrides": {"a": TOKEN}}]}}, "parameters.steps[0].overrides.a holds"),
        ({"parameters": {"overrides": {TOKEN: 1}}}, "parameters.overrides.*** holds"),
        ({"parameters": {"env": {"wandb_api_key": "0"}}}, "parameters.env.wandb_api_key is called like a secret"),
        ({"parameters": {"steps": [{"env": {"HF_TOKEN": "0"}}]}}, "parameters.steps[0].env.HF_TOKEN is called"),
        ({"schedules": [{"slug": "x", "parameters": {"model": TOKEN}}]}, "schedules[0].parameters.model holds"),
        ({"triggers": [{"name": "x", "parameters": {"model": TOKEN}}]}, "triggers[0].parameters.model holds"),
        ({"work_pool": {"job_variables": {"env": {"API_KEY": "0"}}}}, "work_pool.job_variables.env.API_KEY is called"),
        ({"parameters": {"model": "{{ prefect.blocks.secret.x }}"}}, "parameters.model refers to a secret"),
        ({"parameters": {"model": "{{ $HF_TOKEN }}"}}, "parameters.model refers to a secret"),
        ({"parameters": {"model": "{{ $MODEL }}"}}, None),
        ({"pull": [{"prefect.deployments.steps.git_clone": {"access_token": "{{ prefect.blocks.secret.x }}"}}]}, None),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_a_secret_is_told_wherever_it_would_be_stored_and_not_repeated(
    entry: dict[str, Any], where: str | None, ours: bool
) -> None:
    told = found(ours, **entry)
    assert TOKEN not in str(told)
    assert [message for message, _ in told if where and f"mine: {where}" in message] == [one for one, _ in told]
    assert bool(told) == bool(where)


def test_a_flow_of_somebody_else_is_not_judged() -> None:
    assert found(ours=False, parameters={"anything": 1, "gpus": -2}) == []


def test_our_own_prefect_yaml_is_fine() -> None:
    assert parameter_findings(described_deployments(Path(__file__).parents[2])) == []
