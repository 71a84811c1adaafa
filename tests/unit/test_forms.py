"""A deployment's schema as a form: no None, choices that forbid nothing, and no place for a secret."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from prefect_tao.deployments.forms import form

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
    },
}
CHOICES = {"target": ["process", "slurm/polar"], "model": ["tiny"]}
TOKEN = "hf_" + "a" * 34


def accepts(value: dict[str, Any]) -> bool:
    return bool(Draft202012Validator(form(SCHEMA, CHOICES)).is_valid(value))


def test_a_field_that_may_be_left_out_asks_for_no_none() -> None:
    fields = form(SCHEMA, {})["properties"]
    assert fields["model"] == {"type": "string", "position": 1}
    assert fields["root"]["anyOf"] == [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    assert fields["env"]["description"].startswith("Variables. Written as JSON")
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
    ],
)
def test_what_looks_like_a_secret_is_refused_at_every_depth(value: dict[str, Any]) -> None:
    assert not accepts(value)
