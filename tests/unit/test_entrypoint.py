"""What is wrong with a job's plan is said before anything is launched, with the place and what to do."""

from __future__ import annotations

import ast
import json
import math
import re
import sys
from typing import Any

import pytest

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import InputRule, JobRequest
from prefect_tao.runner.entrypoint import (
    build_entrypoint,
    embedded_program,
    entrypoint_for,
    input_locations,
    program_files,
)
from prefect_tao.runner.inside.pointers import get_pointer, parse_pointer, set_pointer, walk
from prefect_tao.runner.terse import terse

COMMAND = "train -e {config_path}"


def refusal(*args: Any, **fields: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        build_entrypoint(*(args or (COMMAND,)), **fields)
    return caught.value


# -- modes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ({"specs": {"a": 1}}, "config"),
        ({"specs": {}}, "config"),
        ({"args": {"a": 1}}, "args"),
        ({"args": {}}, "args"),
        ({}, "passthrough"),
    ],
)
def test_the_mode_follows_from_what_is_given(given: dict[str, Any], mode: str) -> None:
    entrypoint = build_entrypoint(COMMAND, **given)
    assert entrypoint.mode == mode
    assert entrypoint.plan["mode"] == mode


def test_specs_and_args_together_are_refused() -> None:
    assert "both specs and args" in refusal(specs={"a": 1}, args={"a": 1}).cause


@pytest.mark.parametrize("command", ["", "  \n", "echo \0"])
def test_a_command_that_cannot_run_is_refused(command: str) -> None:
    assert refusal(command).remedy


def test_a_request_and_its_fields_give_the_same_plan() -> None:
    request = JobRequest.build(
        command=COMMAND, specs={"train": {"lr": 1e-5}}, outputs={"results_dir": {}}, resources={"time_limit": "1h"}
    )
    direct = build_entrypoint(COMMAND, specs={"train": {"lr": 1e-5}}, outputs={"results_dir": {}}, time_limit=3600.0)
    assert entrypoint_for(request).plan == direct.plan


def test_the_plan_shares_nothing_with_the_caller() -> None:
    specs: dict[str, Any] = {"train": {"sizes": (1, 2)}}
    entrypoint = build_entrypoint(COMMAND, specs=specs)
    specs["train"]["sizes"] = "changed"
    assert entrypoint.plan["specs"] == {"train": {"sizes": [1, 2]}}


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["specs", "args"])
def test_a_number_that_no_file_can_hold_is_refused_by_its_place(kind: str, value: float) -> None:
    fields = {kind: {"a": {"b": [{"c": 1.0}, {"c": value}]}}}
    assert refusal(**fields).cause.startswith(f"a.b[1].c is {value}")


def test_a_value_of_another_kind_is_refused_by_its_place() -> None:
    assert "a.b is a set" in refusal(specs={"a": {"b": {1, 2}}}).cause
    assert "a has a key that is not text: 1" in refusal(specs={"a": {1: "x"}}).cause
    assert "surrogates" in refusal(specs={"a": "\ud800"}).cause


def test_null_is_refused_in_toml_but_at_an_output() -> None:
    specs = {"results_dir": None, "model": {"path": None}}
    assert "model.path is null" in refusal(specs=specs, outputs={"results_dir": {}}, config_format="toml").cause
    assert "results_dir is null" in refusal(specs={"results_dir": None}, config_format="toml").cause
    build_entrypoint(COMMAND, specs={"results_dir": None}, outputs={"results_dir": {}}, config_format="toml")
    build_entrypoint(COMMAND, specs=specs, config_format="yaml")
    build_entrypoint(COMMAND, specs=specs, config_format="json")


def test_an_unknown_config_format_is_refused() -> None:
    assert "yaml, toml, json" in refusal(specs={}, config_format="ini").remedy


def test_a_flat_dotted_key_is_refused_with_its_nested_form() -> None:
    assert "{train: {optim: {lr: ...}}}" in refusal(specs={"train.optim.lr": 0.1}).remedy
    assert "'b.c'" in refusal(specs={"a": [{"b.c": 1}]}).cause
    assert "'b.c'" in refusal(specs={"a": ({"b.c": 1},)}).cause
    build_entrypoint(COMMAND, specs={"extensions": {".jpg": True}})


def test_arguments_are_flat() -> None:
    assert "the argument a is nested" in refusal(args={"a": {"b": 1}}).cause
    assert "the argument a is nested" in refusal(args={"a": [[1]]}).cause
    assert "the argument a holds a NUL" in refusal(args={"a": ["x\0"]}).cause


def test_flags_need_args_because_only_arguments_are_appended() -> None:
    assert "--verbose" in refusal(specs={}, flags=["--verbose"]).cause
    assert "--verbose" in refusal(flags=["--verbose"]).cause


# -- inputs and outputs ------------------------------------------------------------------------------------------------


def test_a_plain_command_takes_locations_by_path() -> None:
    assert build_entrypoint("ls", inputs={"/data": "s3://b/k"}).plan["inputs"] == {"/data": "s3://b/k"}
    assert "/data" in refusal("ls", inputs={"/data": {"type": "file"}}).remedy


def test_with_specs_an_input_is_a_rule_and_its_location_a_value() -> None:
    assert "data.root" in refusal(specs={}, inputs={"data.root": "s3://b/k"}).remedy
    assert "'type': 'file'" in refusal(specs={}, inputs={"a": None}).remedy
    rule = InputRule(type="folder")
    assert build_entrypoint(COMMAND, specs={}, inputs={"a": rule}).plan["inputs"]["a"]["type"] == "folder"


def test_a_rule_that_does_not_exist_is_refused() -> None:
    assert "a: typ" in refusal(specs={}, inputs={"a": {"typ": "file"}}).cause
    assert "a: type" in refusal(specs={}, outputs={"a": {"type": "list"}}).cause


def test_an_input_of_args_needs_its_argument() -> None:
    assert "there is no argument data" in refusal(args={"x": 1}, inputs={"data": {}}).cause


def test_outputs_are_keys_of_a_spec_and_paths_of_a_plain_command() -> None:
    assert "outputs={'results_dir'" in refusal(specs={}, outputs=["/results"]).remedy
    assert "outputs=['/results']" in refusal("ls", outputs={"results_dir": {}}).remedy


@pytest.mark.parametrize("value", ["gs://bucket/x", "hf_model://a/b", 7, ["a"], True])
def test_an_output_that_cannot_be_kept_where_it_says_is_refused(value: Any) -> None:
    assert "output out" in refusal(specs={"out": value}, outputs={"out": {}}).cause


@pytest.mark.parametrize("value", [None, "", "???", "sub/folder", "/abs", "file:///abs", "lustre:///abs", "s3://b/k"])
def test_an_output_may_be_anywhere_that_can_be_kept(value: str | None) -> None:
    build_entrypoint(COMMAND, specs={"out": value}, outputs={"out": {}})


def test_declared_inputs_are_found_where_the_spec_names_them() -> None:
    request = JobRequest.build(
        command=COMMAND,
        specs={"data": {"train": ["/a", "", "/b"], "val": "???", "test": "/c"}},
        inputs={"data.train": {}, "data.val": {}, "data.test": {"optional": True}, "data.none": {}},
    )
    places = {key: uri for key, (uri, _) in input_locations(request).items()}
    assert places == {"data.train[0]": "/a", "data.train[2]": "/b", "data.test": "/c"}


# -- pointers ----------------------------------------------------------------------------------------------------------


def test_pointers_reach_into_maps_and_lists() -> None:
    tree: dict[str, Any] = {"a": {"b": [{"c": 1}, [2, 3]]}}
    assert get_pointer(tree, "a.b[0].c") == 1
    assert get_pointer(tree, "a.b[1][1]") == 3
    assert get_pointer(tree, "a.b[7].c") is None
    assert get_pointer(tree, "a.b.c") is None
    set_pointer(tree, "a.b[0].c", 9)
    set_pointer(tree, "a.b[1][0]", 8)
    set_pointer(tree, "x.y.z", 7)
    set_pointer(tree, "l[0]", 6)
    assert tree == {"a": {"b": [{"c": 9}, [8, 3]]}, "x": {"y": {"z": 7}}, "l": [6]}


def test_every_leaf_is_found_again_at_its_pointer() -> None:
    tree = {"a": {"b": [{"c": 1}, [2, 3]]}, "d": "x"}
    leaves = dict(walk(tree))
    assert leaves == {"a.b[0].c": 1, "a.b[1][0]": 2, "a.b[1][1]": 3, "d": "x"}
    assert all(get_pointer(tree, pointer) == value for pointer, value in leaves.items())


@pytest.mark.parametrize("pointer", ["", ".a", "a.", "a..b", "[0]", "a[", "a[x]", "a[-1]", "a[0]b"])
def test_what_is_no_pointer_is_refused(pointer: str) -> None:
    with pytest.raises(ValueError, match=r"such as a\.b\[0\]\.c"):
        parse_pointer(pointer)
    assert refusal(specs={}, outputs={pointer: {}}).remedy


@pytest.mark.parametrize("pointer", ["text.b", "list.b", "list[5]", "list[5].x", "map[0]", "text[0].x"])
def test_a_pointer_against_the_grain_is_refused(pointer: str) -> None:
    tree = {"text": "x", "list": [1], "map": {}}
    with pytest.raises(ValueError, match=re.escape(pointer)):
        set_pointer(tree, pointer, 1)


def test_the_name_of_an_argument_may_hold_points() -> None:
    tree = {"model.files": ["x", "y"]}
    assert get_pointer(tree, "model.files") == ["x", "y"]
    set_pointer(tree, "model.files[1]", "z")
    assert tree == {"model.files": ["x", "z"]}


# -- the program itself ------------------------------------------------------------------------------------------------


def test_the_embedded_program_leaves_room_in_one_argument() -> None:
    assert len(embedded_program()) <= 33_000
    assert len(build_entrypoint("true").script()) < 34_000


def test_the_plan_travels_as_json() -> None:
    files = build_entrypoint("echo é", specs={"a": "ü"}).files
    assert json.loads(files["plan.json"])["specs"] == {"a": "ü"}
    assert {name: files[name] for name in program_files()} == program_files()
    assert sorted(files) == sorted(["plan.json", "runner.py", *program_files()])


@pytest.mark.parametrize("name", program_files())
def test_the_program_is_python_3_8(name: str) -> None:
    ast.parse(program_files()[name], feature_version=(3, 8))


def definitions(source: bytes) -> list[str]:
    tree = ast.parse(source, feature_version=(3, 8))
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]


@pytest.mark.parametrize("name", program_files())
def test_the_program_is_still_all_there_where_it_is_made_short(name: str) -> None:
    source = program_files()[name]
    assert definitions(terse(source)) == definitions(source)


def test_what_is_made_short_does_the_same() -> None:
    source = b'''"""Words."""
from __future__ import annotations
TYPE_CHECKING = False
if TYPE_CHECKING:
    from nowhere import Any
count: int = 1 if not 0 else -2

class Held:
    """More words."""

def told(*names: str, last: Any = "a  b\\n") -> list[Any]:
    # why
    found: list[Any] = [name for name in names if name not in "x # y"]

    if found and not last.startswith(("c", "d")):
        return [*found, last, b"\\0", lambda n: n * -1 ** 2]
    else:
        return []
'''
    short, spaces = terse(source), (dict[str, Any](), dict[str, Any]())
    assert b"ords" not in short
    assert b"why" not in short
    assert b"Any" not in short
    for text, space in zip((source, short), spaces, strict=True):
        exec(text, space)
    long_way, short_way = (
        [space["count"], space["told"]("p", "x")[:3], space["told"]("p")[3](3), space["told"](last="c")]
        for space in spaces
    )
    assert short_way == long_way == [1, ["p", "a  b\n", b"\0"], -3, []]


def test_only_names_that_one_function_knows_are_shortened() -> None:
    source = b"""import json
limit = 3
def f(given, key=None):
    import re
    from json import dumps as write
    total, words = 0, [word.strip() for word in given]
    def inner(count=total):
        nonlocal total
        total += count
        longest = max(words, key=len)
        return longest
    try:
        found = {number: word for number, word in enumerate(words) if number < limit}
    except ValueError as error:
        found = error
    for a in "ab":
        total += len(a)
    return [inner(count=2), total, write(found), re.sub("x", "y", given[0]), json.loads("1"), key]
"""
    short, spaces = terse(source), (dict[str, Any](), dict[str, Any]())
    for kept in (b"given", b"count=", b"key", b"total", b"error", b"limit"):
        assert kept in short
    for gone in (b"words", b"longest", b"found", b"number"):
        assert gone not in short
    for text, space in zip((source, short), spaces, strict=True):
        exec(text, space)
    long_way, short_way = (space["f"]([" x", "yyy", "z", "w"], key=7) for space in spaces)
    assert short_way == long_way == ["yyy", 4, '{"0": "x", "1": "yyy", "2": "z"}', " y", 1, 7]


def test_the_program_imports_nothing_that_an_image_may_lack() -> None:
    names = set()
    for source in program_files().values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").partition(".")[0])
    assert names - sys.stdlib_module_names == {"botocore"}  # which comes with boto3, and only then


@pytest.mark.parametrize("name", program_files())
def test_the_program_installs_nothing(name: str) -> None:
    assert not re.search(rb"\bpip\b|ensurepip|easy_install", program_files()[name])
