"""Reads the files of a catalog. Whatever is wrong with one of them is told by file, key and reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import ValidationError

from prefect_tao.catalog.nouns import Entry

E = TypeVar("E", bound=Entry)

# The C loader is some ten times faster; PyYAML is built without it on a few systems.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_REASONS = {"extra_forbidden": "this key is not known", "missing": "this key is missing"}


class Fault(NamedTuple):
    """One thing that is wrong: which file, which key in it (may be empty), and why."""

    file: str
    key: str
    reason: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class CatalogError(ValueError):
    """A catalog or skill bank that cannot be used: all that is wrong with it, the first of it in `fault`."""

    def __init__(self, file: str | Path, key: str, reason: str, others: Sequence[Fault] = ()) -> None:
        self.fault = Fault(str(file), key, reason)
        self.faults = (self.fault, *others)
        super().__init__("\n".join(map(str, self.faults)))


class Faults:
    """Gathers what is wrong with a catalog, so that a person can fix it in one go."""

    def __init__(self) -> None:
        self._found: list[Fault] = []

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Keeps the faults of what is done inside."""
        try:
            yield
        except CatalogError as error:
            self._found += error.faults

    def tell(self) -> None:
        """Raises CatalogError when something was gathered; the same is told once."""
        if self._found:
            first, *others = dict.fromkeys(self._found)
            raise CatalogError(*first, others)


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
    """A checked entry. Raises CatalogError about all that does not fit."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first, *others = (_fault(path, key, problem) for problem in error.errors(include_url=False))
        raise CatalogError(*first, others) from None


def _fault(path: Path, key: str, problem: Any) -> Fault:
    where = ".".join(str(part) for part in ((key,) if key else ()) + problem["loc"])
    return Fault(str(path), where, _reason(problem))


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
