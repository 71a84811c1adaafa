"""Reads the files of a catalog. Whatever is wrong with one of them is told by file, key and reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from prefect_tao.catalog.nouns import Entry

E = TypeVar("E", bound=Entry)

# The C loader is some ten times faster; PyYAML is built without it on a few systems.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_REASONS = {"extra_forbidden": "this key is not known", "missing": "this key is missing"}


class CatalogError(ValueError):
    """A catalog or skill bank that cannot be used: which file, which key in it (may be empty), and why."""

    def __init__(self, file: str | Path, key: str, reason: str) -> None:
        self.file, self.key, self.reason = str(file), key, reason
        super().__init__(": ".join(part for part in (self.file, key, reason) if part))


def read_yaml(path: Path) -> dict[str, Any]:
    """The map in a YAML file; an empty file is an empty map. Raises CatalogError."""
    return _map(path, _parse(path, lambda text: yaml.load(text, Loader=_LOADER)))  # noqa: S506


def read_json(path: Path) -> dict[str, Any]:
    """The map in a JSON file. Raises CatalogError."""
    return _map(path, _parse(path, json.loads))


def map_at(path: Path, tree: Mapping[str, Any], key: str, name: str = "") -> dict[str, Any]:
    """The map under `key`, or an empty one where there is none. `name` is the key as a person sees it."""
    return _map(path, tree.get(key), name or key)


def entry_of(kind: type[E], values: Any, path: Path, key: str = "") -> E:
    """A checked entry. Raises CatalogError about the first thing in it that does not fit."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in ((key,) if key else ()) + first["loc"])
        raise CatalogError(path, where, _reason(first)) from None


@contextmanager
def expected_shape(path: Path, key: str) -> Iterator[None]:
    """Turns the stumble over a value of another shape, in a format that is not ours, into a CatalogError."""
    try:
        yield
    except CatalogError:
        raise
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise CatalogError(path, key, f"something in it has another shape than expected: {error}") from None


def _parse(path: Path, parser: Callable[[str], Any]) -> Any:
    try:
        return parser(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CatalogError(path, "", f"cannot be read: {error.strerror or error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f" in line {mark.line + 1}" if mark else ""
        raise CatalogError(path, "", f"not valid YAML{line}: {error.problem}") from None
    except json.JSONDecodeError as error:
        raise CatalogError(path, "", f"not valid JSON in line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise CatalogError(path, "", f"not readable text: {error}") from None


def _map(path: Path, value: Any, key: str = "") -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CatalogError(path, key, f"a map is expected here, not {_short(value)}")
    for name in value:
        if not isinstance(name, str):
            raise CatalogError(path, f"{key}.{name}" if key else str(name), "keys are text; put it in quotes")
    return value


def _reason(problem: Any) -> str:
    known = _REASONS.get(problem["type"])
    if known:
        return known
    text = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    return f"expected {text[:1].lower()}{text[1:]}, not {_short(problem['input'])}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
