"""A deployment's schema as a form: no None, choices that forbid nothing, and no place for a secret."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prefect.utilities.callables import parameter_schema

from prefect_tao.deployments.forms import form
from prefect_tao.flows.chains import chain
from prefect_tao.preflight.plans.recipes import RECIPES

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "target": {"type": "string", "default": "process", "position": 0},
        "model": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "position": 1},
        "root": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}],
            "default": None,
            "position": 2,
        },
        "env": {
            "anyOf": [{"type": "object", "additionalProperties": {"type": "string"}}, {"type": "null"}],
            "default": None,
            "description": "Variables.",
            "position": 3,
        },
        "steps": {"type": "array", "items": {"type": "object"}, "position": 4},
    },
}
CHOICES = {"target": ["process", "slurm/polar"], "model": ["tiny"]}
TOKEN = "hf_" + "a" * 34


def accepts(value: dict[str, Any]) -> bool:
    return bool(Draft202012Validator(form(SCHEMA, CHOICES)).is_valid(value))


def test_a_field_that_may_be_left_out_asks_for_no_none() -> None:
    fields = form(SCHEMA, {})["properties"]
    assert fields["model"] == {"type": "string", "position": 1}
    assert fields["root"]["anyOf"] == [
        {"type": "string", "title": "one"},
        {"type": "array", "items": {"type": "string"}, "title": "several"},
    ]
    assert fields["env"]["description"] == 'Variables. Written as JSON, such as {"NCCL_DEBUG": "INFO"}.'
    assert fields["steps"]["description"].startswith('Each item is written as JSON, such as {"action": "train"')
    assert SCHEMA["properties"]["model"]["default"] is None  # what was given is left as it was


def test_choices_are_offered_and_everything_else_can_be_typed() -> None:
    target = form(SCHEMA, CHOICES)["properties"]["target"]
    assert target["anyOf"][0]["enum"] == ["process", "slurm/polar"]
    assert target["default"] == "process"
    assert accepts({"target": "process"})
    assert accepts({"target": "kubernetes/saved-later", "model": "my-own"})


@pytest.mark.parametrize("target", ["", "two words", "moon", "moon/base", "slurm/", "slurm/Not A Block", "slurm/b/c"])
def test_what_is_no_target_is_refused(target: str) -> None:
    assert not accepts({"target": target})


def test_unknown_parameters_are_refused() -> None:
    assert not accepts({"num_gpus": 1})


@pytest.mark.parametrize(
    "value",
    [
        {"model": TOKEN},
        {"root": ["/data", TOKEN]},
        {"env": {"A": f"x {TOKEN}"}},
        {"env": {TOKEN: "x"}},
        {"env": {"WANDB_API_KEY": "0123"}},
        {"env": {"wandb_api_key": "0123"}},
        {"env": {"DEEP": [TOKEN]}},
        {"steps": [{"env": {"HF_Token": "0123"}}]},
        {"steps": [{"env": {"A": TOKEN}}]},
    ],
)
def test_what_looks_like_a_secret_is_refused_at_every_depth(value: dict[str, Any]) -> None:
    assert not accepts(value)


def test_variables_that_are_no_secrets_are_accepted_at_every_depth() -> None:
    assert accepts({"env": {"TOKENIZERS_PARALLELISM": "false"}, "steps": [{"env": {"KEYS": "1"}, "token": "x"}]})


def test_the_form_of_a_chain_offers_exactly_the_recipes_that_there_are() -> None:
    field = form(dict(parameter_schema(chain)), {})["properties"]["recipe"]
    assert field["enum"] == list(RECIPES)
    assert "prune: train > prune > retrain > evaluate." in field["description"]
