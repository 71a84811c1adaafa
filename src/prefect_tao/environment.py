"""Variables by name: from the environment, else from the settings file that TAO's tools share."""

from __future__ import annotations

import os
from collections.abc import Mapping

FILE = ".config/tao/.env"
_ESCAPABLE = '"\\$`'


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """All that is set and not blank; `environ`, else the process's environment, wins over the file in its HOME.

    Raises ValueError when the file is there and cannot be read.
    """
    given = os.environ if environ is None else environ
    home = given.get("HOME")
    stored = parse(_text(f"{home}/{FILE}")) if home else {}
    return {**_present(stored), **_present(given)}


def parse(text: str) -> dict[str, str]:
    """The KEY=VALUE lines of `text`. Values are taken as they stand: a `$` in a password expands to nothing else."""
    found = {}
    for line in text.split("\n"):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name.strip().isidentifier():
            found[name.strip()] = _value(value.strip())
    return found


def _value(text: str) -> str:
    if text[:1] in ("'", '"'):
        return _quoted(text)
    return "" if text.startswith("#") else text.partition(" #")[0].rstrip()


def _quoted(text: str) -> str:
    """What stands between the quotes; the text itself when the closing one is missing."""
    quote, found, escaped = text[0], "", False
    for char in text[1:]:
        if escaped:
            found += char if char in _ESCAPABLE else f"\\{char}"
            escaped = False
        elif char == "\\" and quote == '"':
            escaped = True
        elif char == quote:
            return found
        else:
            found += char
    return text


def _present(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value.strip() for name, value in given.items() if value.strip()}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}; correct its permissions or remove it") from None
