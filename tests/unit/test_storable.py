"""Values that Prefect cannot show again never reach it: one of them would break every list of runs, for all people."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import CircularSchemaRefError, is_valid

import prefect_tao.flows
from prefect_tao.deployments.forms import form
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.launch.parameters.storable import DEEPEST, LEAST, MOST, check_storable


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


TOO_MUCH = {
    "too big": 10**20,
    "too small": LEAST - 1,
    "NUL": "a\0b",
    "half a character": "\ud800",
    "too deep": nested(300),
    "a token": "nvapi-" + "x" * 40,
    "a password in a URL": "postgresql+psycopg://me:pass-word@database:5432/studies",
}
FITTING = [
    MOST,
    LEAST,
    0,
    True,
    0.5,
    1e18,
    "ä 🦊 \\u0000",
    nested(DEEPEST - 3),
    None,
    "postgresql://me@database/studies",
]


@pytest.mark.parametrize("value", [*TOO_MUCH.values(), float("inf"), float("nan")], ids=repr)
@pytest.mark.parametrize("place", [lambda value: value, lambda value: [{"b": (value,)}]])
def test_what_prefect_cannot_store_is_told_at_every_depth(value: Any, place: Any) -> None:
    with pytest.raises(InvalidInput) as told:
        check_storable({"overrides": {"a": place(value)}, "steps": [{"x": place(value)}]})
    assert {one.subject.partition(".")[0] for one in told.value.findings} == {"overrides", "steps"}
    assert all(one.remedy for one in told.value.findings)


@pytest.mark.parametrize("value", FITTING, ids=repr)
def test_all_else_passes(value: Any) -> None:
    check_storable({"overrides": {"a": value}})
    assert is_valid({"overrides": {"a": value}}, form(dict(parameter_schema(prefect_tao.flows.run)), {}))


def test_a_map_that_holds_itself_is_told() -> None:
    itself: dict[str, Any] = {}
    itself["again"] = itself
    with pytest.raises(InvalidInput, match="specs is nested deeper"):
        check_storable({"specs": itself})


@pytest.mark.parametrize("value", TOO_MUCH.values(), ids=TOO_MUCH)
@pytest.mark.parametrize("flow", ["run", "chain", "sweep"])
def test_no_form_takes_it(flow: str, value: Any) -> None:
    schema = json.loads(json.dumps(form(dict(parameter_schema(getattr(prefect_tao.flows, flow))), {})))
    for given in ({"overrides": {"a": {"b": [value]}}}, {"overrides": {f"{value}"[:9]: value}}):
        try:
            assert not is_valid(given, schema)
        except CircularSchemaRefError:  # what the server answers to too many levels
            assert value is TOO_MUCH["too deep"]


def test_a_number_of_gpus_beyond_all_bounds_is_refused_by_the_form() -> None:
    schema = form(dict(parameter_schema(prefect_tao.flows.run)), {})
    assert is_valid({"gpus": 8}, schema)
    assert not is_valid({"gpus": 10**30}, schema)
    assert not is_valid({"epochs": 10**30}, form(dict(parameter_schema(prefect_tao.flows.quickstart)), {}))


@pytest.mark.parametrize(
    ("flow", "given"),
    [
        ("run", {"command": "true", "gpus": 10**30}),
        ("chain", {"steps": [{"command": "true", "specs": {"a": [10**30]}}]}),
        ("sweep", {"command": "true", "over": {"a": [1, 10**30]}}),
        ("quickstart", {"epochs": 10**30}),
    ],
)
def test_a_call_from_python_is_refused_before_there_is_a_run(flow: str, given: dict[str, Any]) -> None:
    async def called() -> None:
        await getattr(prefect_tao.flows, flow)(**given)

    for call in (lambda: asyncio.run(called()), lambda: getattr(prefect_tao, flow)(**given)):
        with pytest.raises(InvalidInput, match="more than 64 bits"):
            call()


@pytest.mark.parametrize(
    ("flow", "given", "words"),
    [
        ("run", {"command": "true", "gpus": "many"}, r"gpus: expected a whole number \(got 'many'\)"),
        ("chain", {"steps": [], "gpus": "many"}, r"gpus: expected a whole number \(got 'many'\)"),
        ("quickstart", {"epochs": 0}, r"epochs: expected greater than or equal to 1 \(got 0\)"),
        ("watch", {"job": "mine"}, "job: "),
    ],
)
def test_a_value_of_the_wrong_type_is_told_in_plain_words_before_there_is_a_run(
    flow: str, given: dict[str, Any], words: str
) -> None:
    async def called() -> None:
        await getattr(prefect_tao.flows, flow)(**given)

    with pytest.raises(InvalidInput, match=words) as told:
        asyncio.run(called())
    assert "pydantic" not in str(told.value)


def test_a_parameter_that_there_is_not_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(InvalidInput, match="run has no parameter 'gpuz'\n  what to do: did you mean gpus"):
        prefect_tao.run("true", gpuz=2)


@pytest.mark.parametrize("more", [["run"], ["run", "--dry-run"]])
@pytest.mark.parametrize("what", [["--model", "tiny", "--action", "train"], ["--", "echo {config_path}"]])
def test_the_command_line_ends_with_2_and_says_which_value(more: list[str], what: list[str]) -> None:
    words = [*more, "--set", "train.seed=99999999999999999999", *what]
    done = subprocess.run([sys.executable, "-m", "prefect_tao.cli", *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert "overrides.train.seed is a whole number of more than 64 bits" in done.stderr
    assert "Prefect" not in done.stderr
