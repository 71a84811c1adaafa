"""Takes secret values out of what a job has said: a program may print them, but nobody else may keep them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel

SHORTEST = 4  # a shorter value would blank out ordinary words
M = TypeVar("M", bound=BaseModel)


def redact(text: str, secrets: Mapping[str, str]) -> str:
    """`text` with every secret value replaced by its name."""
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        if len(value) >= SHORTEST:
            text = text.replace(value, f"***{name}***")
    return text


def redacted(model: M, secrets: Mapping[str, str]) -> M:
    """A copy of `model` in which no text holds a secret value."""
    if not secrets:
        return model
    inside = {name: json.dumps(value)[1:-1] for name, value in secrets.items()}
    return type(model).model_validate_json(redact(model.model_dump_json(), {**secrets, **inside}))
