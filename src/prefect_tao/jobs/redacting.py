"""Takes secret values out of what a job has said: a program may print them, but they are neither shown nor kept.

Out of its log also what would steer the terminal of the person who reads it: titles, cursor movements, answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from pydantic import BaseModel

from prefect_tao.jobs.events import Event, LogWritten, StateChanged
from prefect_tao.jobs.handle import JobHandle

SHORTEST = 4  # a shorter value would blank out ordinary words
LONGEST_ESCAPE = 4096  # a longer one is none
# Of ECMA-48: sequences with parameters, strings such as a window's title, short ones, and single control characters.
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|[\x1b\x7f-\x9f]")
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[]PX^_][^\x07\x1b]*\x1b?|[ -/]*)$")
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


class EventRedactor:
    """Redacts events; what may be the first half of a secret in a log is held back until more of the log comes."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = secrets
        self._logs: dict[str, LogRedactor] = {}

    def __call__(self, event: Event) -> Iterator[Event]:
        """The event without secret values; before the end of a job, what was held back of its log."""
        if isinstance(event, LogWritten):
            if shown := self._log(event.handle).feed(event.text):
                yield LogWritten(event.handle, shown)
            return
        if isinstance(event, StateChanged) and event.seen.state.terminal and (rest := self._log(event.handle).rest()):
            yield LogWritten(event.handle, rest)
        yield self._redacted(event)

    def _redacted(self, event: Event) -> Event:
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        said: dict[str, Any] = {
            name: redacted(value, self._secrets)
            for name, value in values.items()
            if isinstance(value, BaseModel) and not isinstance(value, JobHandle)
        }
        return replace(event, **said) if self._secrets else event

    def _log(self, handle: JobHandle) -> LogRedactor:
        return self._logs.setdefault(handle.name, LogRedactor(self._secrets))


class LogRedactor:
    """A log that comes in pieces, as it may be shown: without secrets, and with no escapes but those for colours."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self._secrets = {name: value for name, value in secrets.items() if len(value) >= SHORTEST}
        self._held = ""
        self._escape = ""  # one that is not whole yet

    def feed(self, text: str) -> str:
        """What can be shown of all that came so far."""
        text = self._escape + text
        begun = _UNFINISHED.search(text)
        whole = begun.start() if begun and len(text) - begun.start() <= LONGEST_ESCAPE else len(text)
        self._escape = text[whole:]
        text = redact(self._held + without_escapes(text[:whole]), self._secrets)
        longest = max((_begun(text, value) for value in self._secrets.values()), default=0)
        self._held = text[len(text) - longest :]
        return text[: len(text) - longest]

    def rest(self) -> str:
        """What was held back, when nothing more comes."""
        held, self._held, self._escape = self._held + without_escapes(self._escape), "", ""
        return redact(held, self._secrets)


def without_escapes(text: str) -> str:
    """`text` without what steers a terminal; colours stay."""
    return _ESCAPE.sub(lambda found: found[0] if _COLOUR.fullmatch(found[0]) else "", text)


def _begun(text: str, secret: str) -> int:
    """How many characters at the end of `text` are the beginning of `secret`."""
    return next((size for size in range(min(len(secret) - 1, len(text)), 0, -1) if text.endswith(secret[:size])), 0)
