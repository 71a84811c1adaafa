"""The options of a launch are said once: `run`, `plan`, `preflight` and the flow's parameters have the same ones."""

from __future__ import annotations

import inspect
import json
import shlex
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import debian
import pytest
import typer.main
from test_cli import cli

from prefect_tao.catalog.nouns import Source
from prefect_tao.cli import app
from prefect_tao.cli.examining import parameters
from prefect_tao.cli.options import Options
from prefect_tao.flows import run as flow
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.preflight.resolve.parameters import OF_COMMANDS, ask_from, proofs_from, request_from
from prefect_tao.preflight.resolve.problems import setting

# What a flow is told besides the launch itself, and what only a command has.
OWN = {"command", "model", "action", "step", "run_key", "long_running_enabled", "status_interval_minutes"}
OWN |= {*OF_COMMANDS, "config_format"}


def options_of(command: str) -> set[str]:
    commands: Any = typer.main.get_command(app)
    return {name for one in commands.commands[command].params for name in one.opts if name.startswith("--")}


def test_run_plan_and_preflight_take_the_same_options() -> None:
    shared = {f"--{field.name.strip('_').replace('_', '-')}" for field in fields(Options)}
    for command in ("run", "plan", "preflight"):
        assert shared <= options_of(command)
    assert options_of("plan") == options_of("preflight")


def test_the_flow_takes_what_the_command_line_gives() -> None:
    assert set(inspect.signature(flow.fn).parameters) == set(parameters(Options())) | OWN


def test_there_is_a_root_for_every_kind_of_data_of_the_catalog() -> None:
    roots = {f"{source}_root" for source in get_args(Source)}
    assert roots == {name for name in inspect.signature(flow.fn).parameters if name.endswith("_root")}
    assert set(Options().roots) == set(get_args(Source))


def test_every_parameter_of_the_flow_is_described_in_its_form() -> None:
    described = flow.parameters.properties
    assert all(described[name].get("description") for name in inspect.signature(flow.fn).parameters)


def test_an_action_and_a_command_refuse_what_is_meant_for_the_other() -> None:
    with pytest.raises(InvalidInput, match=r"train_root \(--train-root\) is for an action of the catalog"):
        request_from({"command": "true", "train_root": ["/data"]})
    with pytest.raises(InvalidInput, match=r"inputs \(--input\) is for a command"):
        ask_from({"model": "tiny", "action": "train", "inputs": {"/x": "/y"}})


def test_what_was_given_arrives() -> None:
    given = {
        "model": "clip",
        "action": "train",
        "train_wds_root": "/w",
        "data_format": "wds",
        "paths": {"a": "b"},
    }
    ask = ask_from(given)
    assert (ask.roots, ask.data_format) == ({"train_wds": ("/w",)}, "wds")
    assert proofs_from(given).extra_paths == {"a": "b"}
    request = request_from({"command": "t {config_path}", "specs": {"a": {"b": 1}}, "overrides": {"a.b": 2}, "gpus": 2})
    assert request.specs == {"a": {"b": 2}}
    assert request.resources.gpus == 2


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_remedy_can_be_pasted_into_a_shell(shell: str, tmp_path: Path) -> None:
    told = setting("a[0].b", "/data/<model> x/file")
    assert shlex.split(told) == ["--set", "a[0].b=/data/<model> x/file"]
    try:
        debian.ensure({shell: shell})
    except debian.Missing as missing:
        pytest.skip(str(missing))
    words = [shell, "-c", f"printf '%s|' {told}"]
    said = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout == "--set|a[0].b=/data/<model> x/file|"


def test_a_root_that_is_not_there_is_told_by_all_of_them(home: Path) -> None:
    words = ("--train-root", "/no/such/root", "--json")
    for command in (("preflight", "tiny", "train"), ("plan", "tiny", "train")):
        done = cli(*command, *words)
        assert done.returncode == 2
        found = {one["subject"]: one["level"] for one in json.loads(done.stdout)["gates"]["datasets"]}
        assert found["input --train-root"] == "fail"
    done = cli("run", "--dry-run", "--model", "tiny", "--action", "train", "--train-root", "/no/such/root")
    assert done.returncode == 2
    assert "/no/such/root: does not exist on process" in done.stderr
