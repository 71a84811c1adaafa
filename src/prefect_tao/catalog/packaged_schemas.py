"""The packaged schemas of models: which keys an action's spec has, of which type, range and choice.

One file a model, read when a launch of that model is checked: the command line starts without them.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "data" / "schemas"
# The TensorRT variant of an action reads the spec of the action itself.
_VARIANTS = {"trt_evaluate": "evaluate", "trt_inference": "inference"}
# Our files' words, and those of a JSON Schema.
_WORDS = {
    "type": "type",
    "min": "minimum",
    "max": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
    "choices": "enum",
    "condition": "math_cond",
    "default": "default",
}


def has_schemas(model: str) -> bool:
    """Whether there is a file of schemas for `model`, a model of the packaged catalog."""
    return (FOLDER / f"{model}.json").is_file()


@cache
def packaged_schema(model: str, action: str) -> dict[str, Any] | None:
    """The schema of an action, in the form that skill banks have too; None where there is none."""
    tree = _file(model)
    own = tree["actions"].get(_VARIANTS.get(action, action))
    if own is None:
        return None
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    for pointer, rule in {**tree["every action"], **own}.items():
        node = schema
        *parents, name = pointer.split(".")
        for parent in parents:
            node = node["properties"].setdefault(parent, {"type": "object"})
            node.setdefault("properties", {})
        leaf = node["properties"].setdefault(name, {})
        leaf |= {_WORDS[word]: value for word, value in rule.items() if word in _WORDS}
    return schema


@cache
def _file(model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{model}.json").read_text(encoding="utf-8"))
    return found
