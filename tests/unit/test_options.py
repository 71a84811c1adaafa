"""The parameters of a launch are declared once: flows, forms, the command line and chains take them from there."""

from __future__ import annotations

import inspect
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import debian
import pytest
import typer.main
from test_cli import cli

from prefect_tao.catalog.nouns import Source
from prefect_tao.cli import app
from prefect_tao.cli.options import Command, Given, launches
from prefect_tao.flows import automl, chain, run, sweep
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.launch.parameters import declared
from prefect_tao.launch.parameters.declared import (
    ChainParameters,
    RunParameters,
    SearchParameters,
    StepParameters,
    SweepParameters,
)
from prefect_tao.launch.parameters.derived import parameters
from prefect_tao.preflight.plans.recipes import RECIPES
from prefect_tao.preflight.resolve.problems import setting
from prefect_tao.preflight.resolve.translating import ask_from, proofs_from, request_from

FLOWS = {RunParameters: run, ChainParameters: chain, SweepParameters: sweep, SearchParameters: automl}
GROUPS = ("what", "where", "data", "resources", "monitoring", "advanced")
# One line more in the declaration, read in the place of the file itself.
ADDED = """    nodes: Annotated[int | None, Ge(1), Parameter("resources", "Number of nodes.")]
    priority: Annotated[int | None, Ge(3), Parameter("resources", "Goes before others.")]
"""
SHOW_ADDED = """
import inspect, json, sys, types
name = "prefect_tao.launch.parameters.declared"
module = sys.modules[name] = types.ModuleType(name)
exec(compile(sys.argv[1], name, "exec"), module.__dict__)

import typer.main
from prefect_tao.cli import app
from prefect_tao.cli.options import Command, Given, launches
from prefect_tao.deployments.forms import form
from prefect_tao.flows import automl, chain, run, sweep
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.preflight.plans.chain_plan import plan_chain
from prefect_tao.preflight.resolve.translating import ask_from

commands = typer.main.get_command(app).commands
def refused(**given):
    try:
        plan_chain([{"model": "tiny", "action": "train", **given}], {})
    except InvalidInput as error:
        return str(error)
(step,) = plan_chain([{"model": "tiny", "action": "train"}], {"priority": 5})
print(json.dumps({
    "signatures": ["priority" in inspect.signature(flow.fn).parameters for flow in (run, chain, sweep)],
    "validated": run.validate_parameters({"priority": "4"})["priority"],
    "form": form(dict(run.parameters), {})["properties"]["priority"],
    "options": [
        one.help for command in ("run", "plan", "preflight", "chain", "sweep")
        for one in commands[command].params if "--priority" in one.opts
    ],
    "step": step.given["priority"],
    "refused": refused(priority=1),
    "ask": ask_from(step.given).given["priority"],
}))
"""


def options_of(command: str) -> set[str]:
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    return {name for one in found.params for name in one.opts if name.startswith("--")}


def test_a_parameter_that_is_declared_is_there_for_flows_forms_options_steps_and_asks() -> None:
    text = Path(declared.__file__).read_text()
    changed = text.replace(ADDED.splitlines(keepends=True)[0], ADDED)
    assert changed != text
    done = subprocess.run([sys.executable, "-c", SHOW_ADDED, changed], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["signatures"] == [True, True, True]
    assert found["validated"] == 4
    wanted = {"type": "integer", "minimum": 3, "description": "Goes before others.", "title": "priority"}
    assert wanted.items() <= found["form"].items()
    assert found["options"] == ["Goes before others."] * 5
    assert (found["step"], found["ask"]) == (5, 5)
    assert "priority: expected greater than or equal to 3" in found["refused"]


@pytest.mark.parametrize("kind", FLOWS)
def test_a_flow_has_its_parameters_in_groups_with_help_and_limits(kind: type) -> None:
    schema, flow = FLOWS[kind].parameters, FLOWS[kind]
    assert list(inspect.signature(flow.fn).parameters) == list(schema.properties) == list(parameters(kind))
    for position, (name, one) in enumerate(parameters(kind).items()):
        field = schema.properties[name]
        assert (field["description"], field["position"], field.get("default")) == (one.help, position, one.default)
    groups = [one.group for one in parameters(kind).values()]
    assert list(dict.fromkeys(groups)) == [group for group in GROUPS if group in groups]
    assert groups == sorted(groups, key=GROUPS.index)


def test_every_command_has_an_option_for_each_parameter_that_it_can_take() -> None:
    of_steps = {one.spelling for one in parameters(StepParameters).values() if one.only != "command"}
    for command in ("plan", "preflight"):
        assert of_steps - {None, "--model", "--action"} <= options_of(command)
    assert options_of("plan") == options_of("preflight")
    launching = {"run": RunParameters, "chain": ChainParameters, "sweep": SweepParameters}
    for command, kind in {**launching, "automl run": SearchParameters}.items():
        assert {one.spelling for one in parameters(kind).values()} - {None} <= options_of(command)


def test_the_words_of_the_command_line_become_what_the_flow_takes() -> None:
    words = ["--set", "a.b=1e-3", "--env", "A=1", "--secret", "T", "--json-required-field", "k=a,b", "--gpus", "2"]
    words += ["--train-root", "/d", "--detach", "--interval", "0.5"]
    assert typed(RunParameters, *words) == {
        "overrides": {"a.b": 0.001},
        "env": {"A": "1"},
        "secrets": ["T"],
        "json_required_fields": {"k": ["a", "b"]},
        "gpus": 2,
        "train_root": ["/d"],
        "long_running_enabled": False,
        "status_interval_minutes": 0.5,
    }
    assert typed(RunParameters, "--gpus", "0") == {"gpus": 0}  # none at all, and not nothing said
    assert typed(ChainParameters, "--gpus", "0") == {"gpus": 0}
    assert typed(RunParameters, "--flag", "fast", "--input", "a:file", "--output", "b") == {
        "args": {},
        "flags": ["fast"],
        "inputs": {"a": {"type": "file"}},
        "outputs": {"b": {"type": "folder"}},
    }
    assert typed(RunParameters, "--input", "/in=/data", "--output", "out") == {
        "inputs": {"/in": "/data"},
        "outputs": ["out"],
    }
    assert typed(SweepParameters, "--over", "lr=1,2", "--over", "x={min: 0, max: 1}") == {
        "over": {"lr": [1, 2], "x": {"min": 0, "max": 1}}
    }


def typed(kind: type, *words: str) -> dict[str, Any]:
    """What a command with these options is given."""
    found: list[dict[str, Any]] = []

    def command(*, command: Command = None, given: Given) -> None:
        found.append(given)

    app = typer.Typer()
    app.command()(launches(kind)(command))
    app(list(words), standalone_mode=False)
    return found[0]


def test_there_is_a_root_for_every_kind_of_data_of_the_catalog() -> None:
    roots = {f"{source}_root" for source in get_args(Source)}
    assert roots == {name for name in parameters(RunParameters) if name.endswith("_root")}


def test_the_recipes_of_a_chain_are_those_that_there_are() -> None:
    assert get_args(declared.Recipe) == tuple(RECIPES)


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
    assert (ask.roots, ask.given["data_format"]) == ({"train_wds": ("/w",)}, "wds")
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
