"""Config files: a spec as YAML, TOML or JSON."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def quote(text: str) -> str:
    """A double-quoted string that YAML 1.1, TOML 1.0 and JSON all read back as `text`."""
    if text.isascii() and text.isprintable():
        return json.dumps(text)
    return "".join(
        char
        if " " <= char <= "~" or ("\xa0" <= char <= "\ud7ff" and char not in "\u2028\u2029")
        else "\\u%04x" % ord(char)
        if ord(char) < 0x10000 and not "\ue000" <= char <= "\ufffd"
        else char
        for char in json.dumps(text, ensure_ascii=False)
    )


def scalar(value: Any) -> str:
    """A value that is neither map nor list, as YAML and TOML both write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = float.__repr__(value)
        mantissa, letter, exponent = text.partition("e")
        # YAML 1.1 readers take 1e-05 for text; with a point in it, every reader sees the number.
        return mantissa + ".0e" + exponent if letter and "." not in mantissa else text
    return str(value) if isinstance(value, int) else quote(value)


def to_yaml(value: Any, depth: int = 0) -> str:
    """`value` as block-style YAML."""
    pad = "  " * depth
    if isinstance(value, dict) and value:
        return "".join("%s%s:%s" % (pad, quote(key), _yaml_child(inner, depth)) for key, inner in value.items())
    if isinstance(value, list) and value:
        return "".join("%s-%s" % (pad, _yaml_child(inner, depth)) for inner in value)
    return "%s%s\n" % (pad, _yaml_leaf(value))


def _yaml_child(value: Any, depth: int) -> str:
    if isinstance(value, (dict, list)) and value:
        return "\n" + to_yaml(value, depth + 1)
    return " %s\n" % _yaml_leaf(value)


def _yaml_leaf(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return "{}" if isinstance(value, dict) else "[]"
    return scalar(value)


def to_toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """`table` as TOML: its own values first, then its tables. A null has no form in TOML and is left out."""
    lines, below = [], []
    for key, value in table.items():
        name = key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else quote(key)
        inner = path + (name,)
        if isinstance(value, dict):
            below.append("\n[%s]\n%s" % (".".join(inner), to_toml(value, inner)))
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            below.extend("\n[[%s]]\n%s" % (".".join(inner), to_toml(item, inner)) for item in value)
        elif value is not None:
            lines.append("%s = %s\n" % (name, _toml_value(value)))
    return "".join(lines + below)


def _toml_value(value: Any) -> str:
    if isinstance(value, list):
        return "[%s]" % ", ".join(_toml_value(item) for item in value if item is not None)
    if isinstance(value, dict):
        pairs = ("%s = %s" % (quote(key), _toml_value(item)) for key, item in value.items() if item is not None)
        return "{%s}" % ", ".join(pairs)
    return scalar(value)


def config_text(spec: Mapping[str, Any], config_format: str) -> str:
    """The spec file's text."""
    if config_format == "json":
        return json.dumps(spec, indent=2, ensure_ascii=False) + "\n"
    return to_toml(spec) if config_format == "toml" else to_yaml(spec)
