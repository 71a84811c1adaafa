"""A job as people name it on the command line: by its name, or by the handle that `run --detach --json` has printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import is_our_name

STDIN = "-"


class JobAddress(NamedTuple):
    """A job's name, and where it is, if that was said."""

    name: str
    target: str | None


def named(word: str, target: str | None) -> JobAddress:
    """What `word` means; `target` is where a job is that was given by its name alone. Raises InvalidInput."""
    text = word
    if not is_our_name(word) and not word.lstrip().startswith("{"):
        if word != STDIN and not Path(word).is_file():
            return JobAddress(word, target)  # the look-up explains what a name is
        try:
            text = sys.stdin.read() if word == STDIN else Path(word).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"the handle {word} cannot be read: {error}", "check the path") from None
    if is_our_name(text.strip()):
        return JobAddress(text.strip(), target)
    try:
        handle = _handle(json.loads(text))
    except (ValueError, RecursionError):
        raise InvalidInput(
            "this is not the handle of a job", "give a name, or what `run --detach --json` has printed"
        ) from None
    return JobAddress(handle.name, handle.target)


def _handle(found: Any) -> JobHandle:
    """The handle in what one of our commands has printed: itself, or that of an outcome. Raises ValueError."""
    if isinstance(found, dict) and isinstance(found.get("handle"), dict):
        found = found["handle"]
    if not isinstance(found, dict):
        raise ValueError("no map")
    try:
        return JobHandle(**{key: value for key, value in found.items() if key in JobHandle.model_fields})
    except ValidationError as error:
        raise ValueError(str(error)) from None
