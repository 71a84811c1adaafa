"""The command gets its spec and its arguments exactly as they were given."""

from __future__ import annotations

import json
import random
import sys
import tomllib
from typing import Any

import pytest
import yaml
from runner_tools import Runner

from prefect_tao.runner.entrypoint import Entrypoint, build_entrypoint
from prefect_tao.runner.inside.configs import config_text

READERS = {"yaml": yaml.safe_load, "toml": tomllib.loads, "json": json.loads}

NASTY: dict[str, Any] = {
    "small": 1e-05,
    "large": 1e22,
    "plain": 0.1,
    "whole": 3.0,
    "negative": -0.0,
    "least": 5e-324,
    "long": 2**70,
    "no": False,
    "yes": True,
    "1": "a key like a number",
    "null": "a key like null",
    "": "a key of nothing",
    "a key: # with - marks": "x",
    "schlüssel": "größe 日本語 🚀",
    "text": {
        "yes": "yes",
        "number": "1e-05",
        "octal": "0o17",
        "date": "2024-01-01",
        "time": "12:30:45",
        "null": "null",
        "tilde": "~",
        "empty": "",
        "spaces": "  both ends  ",
        "quotes": 'it\'s "quoted" \\ and back\\slashed',
        "lines": "one\ntwo\r\nthree\n",
        "tab": "\t",
        "control": "".join(map(chr, [*range(32), 127, 0x80, 0x85, 0x9F])),
        "separators": "\u2028\u2029\u00a0\ufeff\ufffe\uffff",
        "marks": "# no comment: {config_path} ${HOME} %s - [x] & * ! | > @ `",
        "document": "--- \n... ",
    },
    "empty_map": {},
    "empty_list": [],
    "nested": {"a": {"b": {"c": {}}}, "list": [[], {}, [[]], [{}]]},
    "maps": [{"a": 1, "b": [{"c": "x"}, {"c": "y", "d": {"e": []}}]}, {}, {"a": {"b": 2}}],
    "mixed": [1, "a", 2.5, True, {"k": [1, {"x": "y"}]}, [1, [2, [3]]]],
}


@pytest.mark.parametrize("config_format", ["yaml", "toml", "json"])
def test_a_spec_is_read_back_as_it_was_given(runner: Runner, config_format: str) -> None:
    specs = NASTY if config_format == "toml" else {**NASTY, "nothing": None, "list": [None, {"a": None}]}
    entrypoint = build_entrypoint("test -f {config_path}", specs=specs, config_format=config_format)
    assert runner.run(entrypoint).code == 0
    assert READERS[config_format](runner.spec(config_format)) == specs


@pytest.mark.parametrize("config_format", ["yaml", "toml", "json"])
def test_any_spec_is_read_back_as_it_was_given(config_format: str) -> None:
    chance = random.Random(7)
    letters = "abAZ01 _-.:#'\"\\{}[],&*!|>%@`\n\t\x00\x1f\x7f\x85é\u2028\ue000\ufffd\U0001f680"

    def text() -> str:
        return "".join(chance.choice(letters) for _ in range(chance.randrange(8)))

    def value(depth: int) -> Any:
        kind = chance.randrange(7 if depth else 5)
        if kind < 5:
            number = chance.uniform(-1, 1) * 10.0 ** chance.randrange(-300, 300)
            return [text(), chance.randrange(-(10**9), 10**9), number, chance.random() < 0.5, text()][kind]
        if kind == 5:
            return [value(depth - 1) for _ in range(chance.randrange(4))]
        return table(depth - 1)

    def table(depth: int) -> dict[str, Any]:
        return {text(): value(depth) for _ in range(chance.randrange(5))}

    for _ in range(150):
        specs = table(4)
        assert READERS[config_format](config_text(specs, config_format)) == specs


@pytest.mark.parametrize("config_format", ["yaml", "toml", "json"])
def test_every_character_is_read_back(config_format: str) -> None:
    blocks = (range(0x300), range(0x1FF0, 0x2070), range(0xD7F0, 0xD800), range(0xE000, 0xE010), range(0xFDC0, 0x10010))
    specs = {"text": "".join(chr(code) for block in blocks for code in block)}
    assert READERS[config_format](config_text(specs, config_format)) == specs


def test_a_null_output_of_a_toml_spec_gets_its_place(runner: Runner) -> None:
    entrypoint = build_entrypoint(
        "test -f {config_path}", specs={"results_dir": None}, outputs={"results_dir": {}}, config_format="toml"
    )
    assert runner.run(entrypoint).code == 0
    assert tomllib.loads(runner.spec("toml")) == {"results_dir": str(runner.base / "results_dir")}


def test_only_the_config_path_is_replaced_in_a_command(runner: Runner) -> None:
    command = """echo "home=${HOME} $(echo a b | awk '{print $2}') {other} {config_path}" > "$TAO_RESULTS_DIR/said" """
    assert runner.run(build_entrypoint(command, specs={"a": 1})).code == 0
    said = (runner.base / "results_dir" / "said").read_text()
    assert said == f"home={runner.folder} b {{other}} {runner.work / 'spec.yaml'}\n"


@pytest.mark.parametrize("quoted", ["{config_path}", "'{config_path}'", '"{config_path}"'])
def test_a_work_folder_with_blanks_needs_no_care_in_the_command(runner: Runner, quoted: str) -> None:
    runner.work = runner.folder / "my 'job' $(touch x)"
    runner.env["TAO_WORK_DIR"] = str(runner.work)
    ended = runner.run(build_entrypoint(f"grep hello {quoted}", specs={"a": "hello"}))
    assert ended.code == 0, ended.log


# -- arguments ---------------------------------------------------------------------------------------------------------


def argv(runner: Runner, entrypoint: Entrypoint) -> list[str]:
    """What the command was really given."""
    ended = runner.run(entrypoint)
    assert ended.code == 0, ended.log
    found: list[str] = json.loads((runner.base / "results_dir" / "argv").read_text())
    return found


TELL = f"""{sys.executable} -S -c '
import json, os, sys
json.dump(sys.argv[1:], open(os.environ["TAO_RESULTS_DIR"] + "/argv", "w"))'"""


def test_an_argument_is_a_value_and_never_a_command(runner: Runner) -> None:
    trap = runner.folder / "trap"
    args = {
        "a": f"x'; touch {trap}; '",
        "b": f"$(touch {trap}) `touch {trap}` && touch {trap}",
        "c": "it's",
        "d": 'say "hi" \\ *.py ~ $HOME',
        "e": "two\nlines",
        "f": "",
        "g": "größe 🚀",
    }
    words = argv(runner, build_entrypoint(TELL, args=args))
    assert dict(zip(words[::2], words[1::2], strict=True)) == {f"--{key}": value for key, value in args.items()}
    assert not trap.exists()


def test_numbers_booleans_nulls_and_lists_have_their_forms(runner: Runner) -> None:
    args = {"lr": 1e-05, "n": 3, "on": True, "off": False, "none": None, "files": ["a b", 2, "c"], "last": -1}
    words = argv(runner, build_entrypoint(TELL, args=args))
    assert words == ["--lr", "1e-05", "--n", "3", "--on", "--files", "a b", "2", "c", "--last", "-1"]


def test_flags_may_be_given_with_or_without_dashes(runner: Runner) -> None:
    words = argv(runner, build_entrypoint(TELL, args={"--lr": 1, "-e": "x"}, flags=["--verbose", "quiet", "-v"]))
    assert words == ["--lr", "1", "-e", "x", "--verbose", "--quiet", "-v"]


def test_a_command_may_end_with_blank_lines(runner: Runner) -> None:
    assert argv(runner, build_entrypoint(TELL + " \n\n", args={"a": 1})) == ["--a", "1"]


def test_the_command_of_arguments_is_still_a_shell_command(runner: Runner) -> None:
    assert argv(runner, build_entrypoint(f"X=1; test -n $X && {TELL}", args={"a": 1})) == ["--a", "1"]


def test_inputs_and_outputs_of_arguments_become_paths_whatever_their_names(runner: Runner) -> None:
    data = runner.folder / "data.json"
    data.write_text("{}")
    entrypoint = build_entrypoint(
        TELL,
        args={"data.train": f"file://{data}", "data.more": [f"file://{data}"]},
        inputs={"data.train": {"type": "file"}, "data.more": {}},
        outputs={"out.dir": {}, "out.file": {"type": "file"}},
    )
    assert argv(runner, entrypoint) == [
        *("--data.train", str(data), "--data.more", str(data)),
        *("--out.dir", str(runner.base / "out.dir"), "--out.file", str(runner.base / "out.file" / "file")),
    ]


# -- size --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [False, True])
def test_a_spec_of_five_megabytes_works(runner: Runner, script: bool) -> None:
    lines = {f"key{index}": "x" * 990 + "\\é" for index in range(5000)}
    command = "wc -c < {config_path} > $TAO_RESULTS_DIR/size"
    entrypoint = build_entrypoint(command, specs={"a": lines, "text": "y" * 10**6}, config_format="json")
    ended = runner.run(entrypoint, script=script)
    assert ended.code == 0, ended.log
    assert int((runner.base / "results_dir" / "size").read_text()) > 5_000_000
    assert json.loads(runner.spec("json"))["a"] == lines
