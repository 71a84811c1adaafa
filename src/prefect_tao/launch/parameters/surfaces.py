"""Options as parameters: `--gpus 8` is `gpus=8` to those who write Python or fill in a form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin

from prefect_tao.jobs.surface import written_by
from prefect_tao.launch.parameters.declared import (
    ChainParameters,
    RunParameters,
    SearchParameters,
    SweepParameters,
)
from prefect_tao.launch.parameters.derived import parameters
from prefect_tao.launch.parameters.parameter import Parameter

# What follows an option and is no value of it.
_OWN_WORDS = re.compile("or|and|to|for|is|are|with|of|in|on|as|if|unless|out|set|asks|starts|confirms|accepts")
_VALUE = r"""(?:[ =]('[^']*'|"[^"]*"|(?:[^\s,;()'"`]|,(?=\S))+))?"""
# Commands for a shell stay as they are, up to the end of the clause.
_COMMAND = (
    r"(?:prefect-tao|prefect|docker|kubectl|sudo|ssh[\w-]*|nvidia-\w+|journalctl|pip|python3?|srun|sbatch|scontrol)\b"
    r"[^;,\n]*"
)
_typed_here = False


def speak_options() -> None:
    """This process is the command line: options are written as they are typed, whatever it runs."""
    global _typed_here
    _typed_here = True


def as_parameters_here() -> AbstractContextManager[None]:
    """Within the block errors and findings name parameters, unless a person is at the command line."""
    return nullcontext() if _typed_here else written_by(as_parameters)


def as_parameters(text: str) -> str:
    """The text with every option of a launch as the parameter that it stands for."""
    if "--" not in text:
        return text
    return _pattern().sub(_written, text).replace("a command after --", "a command")


@cache
def _known() -> Mapping[str, Parameter]:
    """The parameters by their option."""
    kinds = (SearchParameters, SweepParameters, ChainParameters, RunParameters)
    return {str(one.spelling): one for kind in kinds for one in parameters(kind).values() if one.spelling}


@cache
def _pattern() -> re.Pattern[str]:
    options = "|".join(sorted(map(re.escape, _known()), key=len, reverse=True))
    # Where both are named the parameter stands behind the option, in brackets.
    return re.compile(
        rf"(?P<command>{_COMMAND})|(?P<option>{options})(?![\w-]){_VALUE}(?P<twice> \([a-z_]+(?:=[^)]*)?\))?"
    )


def _written(found: re.Match[str]) -> str:
    if found["command"]:
        return found[0]
    one, value, rest = _known()[found["option"]], found[3] or "", ""
    kind = _kind(one)
    if value and (kind is bool or _OWN_WORDS.fullmatch(value)):
        value, rest = "", f" {value}"
    end = value[len(value.rstrip(".:")) :]
    value = value.removesuffix(end) if end != "..." else value
    if not value:
        return (f"{one.name}=True" if kind is bool else one.name) + rest
    key, equals, inner = value.strip("'\"").partition("=")
    if get_origin(kind) is dict and equals:
        written = f"{{{_literal(key, str)}: {_many(inner, one)}}}"
    elif get_origin(kind) is list:
        written = f"[{_literal(value, str)}]"
    else:
        written = _literal(value, kind)
    return f"{one.name}={written}{'' if end == '...' else end}"


def _kind(one: Parameter) -> Any:
    hint = get_args(one.type)[0]
    kinds = [kind for kind in get_args(hint) if kind is not NoneType] if NoneType in get_args(hint) else [hint]
    return next((kind for kind in kinds if get_origin(kind) in (dict, list)), kinds[0])


def _many(text: str, one: Parameter) -> str:
    if one.form != "tried":
        return _literal(text, Any)
    return f"[{', '.join(_literal(word, Any) for word in text.split(','))}]"


def _literal(text: str, kind: Any) -> str:
    """A value as Python writes it; what only stands for one stays as it is."""
    bare = text.strip("'\"")
    if bare in ("...", "True", "False") or (kind is not str and re.fullmatch(r"-?\d+(\.\d+)?", bare)):
        return bare
    return f'"{bare}"'
