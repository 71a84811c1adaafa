"""The options of the command line: one for each parameter of a launch, and those that commands share besides."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge

from prefect_tao.launch.parameters.derived import parameters
from prefect_tao.launch.parameters.parameter import Parameter

HERE = "process"

Command = Annotated[list[str] | None, typer.Argument(help="What to run, after --.", show_default=False)]
Target = Annotated[str, typer.Option(help="Where: process, or <platform>/<block name>.")]
SkipAccess = Annotated[
    bool, typer.Option("--skip-platform-access", help="Ask nothing outside; only for a dry look at a set-up.")
]
SkillBank = Annotated[
    Path | None, typer.Option("--skill-bank", help="A TAO skill bank checkout to read (or TAO_SKILL_BANK_PATH).")
]


def _settle_log(verbose: bool) -> bool:
    """Prefect reads at its import what it may say, and a command may import it before it runs anything."""
    from prefect_tao.cli.running import hush

    hush(verbose)
    return verbose


Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Prefect's own log.", callback=_settle_log)]
RunDir = Annotated[
    Path | None, typer.Option("--run-dir", help="Also keep the run as files below this folder, for programs.")
]
Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]
# The parameter of a command that stands for all options of a launch: what was typed, as the flow takes it.
Given = dict[str, Any]


def launches(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command whose parameter `given` is spread out: it has an option for every parameter of `kind`.

    A parameter that the command declares itself, as an argument perhaps, is left to it. What is only for a command
    after -- is offered only where one can be given.
    """

    def spread(command: Callable[..., None]) -> Callable[..., None]:
        hints, own = get_type_hints(command, include_extras=True), inspect.signature(command).parameters
        left_out = () if "command" in own else ("command",)
        offered = [
            one
            for one in parameters(kind).values()
            if one.spelling and one.name not in own and one.only not in left_out
        ]

        @functools.wraps(command)
        def called(**typed: Any) -> None:
            words = [(one, typed.pop(one.name)) for one in offered]
            # Not `in`: to that, 0 is False.
            given = _read([pair for pair in words if pair[1] is not None and pair[1] is not False])
            command(given=_from_here(given), **typed)

        signature: list[inspect.Parameter] = []
        for name, one in own.items():
            if name == "given":
                signature += [
                    _keyword(each.name, False if _kind(each) is bool else None, _option(each)) for each in offered
                ]
            else:
                signature.append(_keyword(name, one.default, hints[name]))
        called.__signature__ = inspect.Signature(signature)  # type: ignore[attr-defined]
        called.__annotations__ = {one.name: one.annotation for one in signature}
        return called

    return spread


def _from_here(given: Given) -> Given:
    """Roots on this machine as whole paths: a job begins in a folder of its own."""
    if not str(given.get("target", HERE)).startswith(HERE):
        return given
    roots = {
        name: [word if "://" in word or word.startswith("{") else os.path.abspath(word) for word in words]
        for name, words in given.items()
        if name.endswith("_root")
    }
    return {**given, **roots}


def command_given(words: Sequence[str], given: Given) -> Given:
    """What a command after -- adds to the parameters; on this machine it begins where the person is."""
    found = {"command": words[0] if len(words) == 1 else shlex.join(words)}
    is_here = str(given.get("target", HERE)).startswith(HERE)
    return {"workdir": os.getcwd(), **given, **found} if is_here else found


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


# -- from a parameter to an option -------------------------------------------------------------------------------------


def _kinds(one: Parameter) -> tuple[Any, ...]:
    """The types that its value may have, without None."""
    hint = get_args(one.type)[0]
    kinds = get_args(hint) if NoneType in get_args(hint) else (hint,)
    return tuple(kind for kind in kinds if kind is not NoneType)


def _kind(one: Parameter) -> Any:
    """What is typed for it: one word, one number, several words, a path, or nothing but the option itself."""
    if one.form in ("spec", "points", "folder"):
        return Path
    kinds = _kinds(one)
    if any(get_origin(kind) in (list, dict) for kind in kinds):
        return list[str]
    return str if get_origin(kinds[0]) is Literal else kinds[0]


def _option(one: Parameter) -> Any:
    """Its annotation, as typer reads it."""
    kind, text, metavar = _kind(one), one.typed or one.help, one.metavar
    if kind is bool:
        return Annotated[bool, typer.Option(one.spelling, help=text)]
    if kind == list[str]:
        text = f"{text.removesuffix('.')} (repeat)."
    if one.default is not None:
        text = f"{text}  [default: {one.default}]"
    if get_origin(_kinds(one)[0]) is Literal:
        metavar = f"<{'|'.join(get_args(_kinds(one)[0]))}>"
    if kind in (int, float):
        parser = functools.partial(_number, one, kind)
        return Annotated[kind | None, typer.Option(one.spelling, help=text, metavar=metavar or "<n>", parser=parser)]
    return Annotated[kind | None, typer.Option(one.spelling, help=text, metavar=metavar)]


def _number(one: Parameter, kind: type[int] | type[float], word: str) -> float:
    """The number that was typed for a parameter, in its bounds. Raises InvalidInput."""
    from prefect_tao.jobs.errors import InvalidInput

    least: Any = next((limit.ge for limit in get_args(one.type) if isinstance(limit, Ge)), None)
    wanted = "a whole number" if kind is int else "a number"
    try:
        number = kind(word)
    except ValueError:
        raise InvalidInput(f"{one.spelling} {word!r} is not {wanted}", f"write for example {one.spelling} 1") from None
    if least is not None and number < least:
        raise InvalidInput(f"{one.spelling} {word}: expected {wanted} of {least} or more", one.help)
    return number


# -- from what was typed to what the flow takes ------------------------------------------------------------------------


def _read(typed: Sequence[tuple[Parameter, Any]]) -> Given:
    """The parameters that were typed, as the flow takes them. Raises InvalidInput."""
    from prefect_tao.cli.parsing import build_inputs, build_outputs

    given = {one.name: _value(one, words) for one, words in typed}
    # Beside a spec or arguments, inputs and outputs are keys of it.
    plain = not given.keys() & {"specs", "overrides", "args", "flags", "over", "points"}
    if "inputs" in given:
        given["inputs"] = build_inputs(given["inputs"], plain)
    if "outputs" in given:
        given["outputs"] = build_outputs(given["outputs"], plain)
    return {"args": {}, **given} if "flags" in given else given


def _value(one: Parameter, words: Any) -> Any:
    from prefect_tao.cli.data_files import read_points, read_spec
    from prefect_tao.cli.parsing import pairs, parse_value, searched_range, tried_values
    from prefect_tao.jobs.errors import InvalidInput

    option, kind = str(one.spelling), _kinds(one)[0]
    if one.form in ("inputs", "outputs"):
        return words
    readers: dict[str | None, Callable[[Any], Any]] = {
        "spec": read_spec,
        "points": read_points,
        "folder": lambda path: str(path.absolute()),
        "unset": lambda _: False,
        "tried": lambda words: {key: tried_values(text) for key, text in pairs(words, option).items()},
        "ranges": lambda words: {key: searched_range(text) for key, text in pairs(words, option).items()},
    }
    if words == "":  # most often a variable of a script that is not set
        raise InvalidInput(f"{option} is empty", f"give it a value, or leave {option} out")
    if one.form in readers:
        return readers[one.form](words)
    if get_origin(kind) is Literal and words not in get_args(kind):
        *most, last = get_args(kind)
        raise InvalidInput(f"{option} {words!r} is not known", f"use {', '.join(most)} or {last}")
    if get_origin(kind) is not dict:
        return words
    inner, form = get_args(kind)[1], (one.metavar or "").strip("<>").upper()
    found = pairs(words, option, form, one.word)
    if inner is str:
        return found
    if inner is Any:
        return {key: parse_value(text) for key, text in found.items()}
    if empty := [key for key, text in found.items() if not all(part.strip() for part in text.split(","))]:
        raise InvalidInput(f"{option} {empty[0]}={found[empty[0]]}: a name is empty", f"write {form}, as in {one.word}")
    return {key: [part.strip() for part in text.split(",")] for key, text in found.items()}
