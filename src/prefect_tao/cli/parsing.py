"""What people type on the command line, turned into the fields of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect_tao.jobs.errors import InvalidInput


def pairs(words: Sequence[str], option: str, form: str = "", example: str = "") -> dict[str, str]:
    """`KEY=VALUE` words as a map. Raises InvalidInput for a word without a key or without `=`.

    `form` is what the two halves are called, `example` a word that would do.
    """
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            cause = f"{option} {word!r} is not {form or 'KEY=VALUE'}"
            raise InvalidInput(cause, f"write for example {option} {example or 'NAME=value'}")
        found[key] = value
    return found


def parse_value(text: str) -> Any:
    """A value as YAML reads it: 20 is a number, true is a truth, [1, 2] is a list, everything else is text."""
    import yaml

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    if isinstance(value, str) or value is None:
        try:
            return float(text)  # 1e-5 is text for YAML 1.1, and a number for everybody else
        except ValueError:
            return None if value is None and text else value if value is not None else ""
    return value if isinstance(value, (bool, int, float, list, dict)) else text


def tried_values(text: str) -> Any:
    """The values of a key to try: a range or list as YAML has it, else words between commas."""
    return parse_value(text) if text.startswith(("{", "[")) else [parse_value(word) for word in text.split(",")]


def searched_range(text: str) -> Any:
    """The range of a key to search: 0.001..0.5, values between commas, or a map as YAML has it."""
    low, dots, high = text.partition("..")
    if text.startswith("{"):
        return parse_value(text)
    if dots:
        return {"valid_min": parse_value(low), "valid_max": parse_value(high)}
    return {"valid_options": [parse_value(word) for word in text.split(",")]}


def build_inputs(words: Sequence[str], plain: bool) -> dict[str, Any]:
    """Declared inputs: `/path/in/job=location` for a plain command, `spec.key[:file|folder]` beside a spec or args."""
    if plain:
        return pairs(words, "--input")
    rules: dict[str, Any] = {}
    for word in words:
        key, colon, kind = word.rpartition(":")
        if colon and kind not in ("file", "folder", "list"):
            raise InvalidInput(f"--input {word!r}: {kind!r} is not a kind of input", "write KEY:file or KEY:folder")
        rules[key if colon else word] = {"type": kind} if colon else {}
    return rules


def build_outputs(words: Sequence[str], plain: bool) -> dict[str, Any] | list[str]:
    """Declared outputs: paths for a plain command, `spec.key[:file|folder]` beside a spec or args."""
    if plain:
        return list(words)
    return {
        key.rpartition(":")[0] or key: {"type": key.rpartition(":")[2] if ":" in key else "folder"} for key in words
    }
