"""Files that people write for us: YAML, JSON, TOML, and CSV for rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from prefect_tao.jobs.errors import InvalidInput


def read_data(path: Path, what: str) -> Any:
    """What is in the file; the rows of a CSV file as maps. Raises InvalidInput when it cannot be read or is broken."""
    import tomllib

    import yaml

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidInput(f"{what} {path} cannot be read: {said}", "check the path") from None
    try:
        if path.suffix == ".csv":
            return _rows(text)
        if path.suffix == ".toml":
            return tomllib.loads(text)
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (ValueError, RecursionError, csv.Error, yaml.YAMLError) as error:
        where, said = _fault(error)
        raise InvalidInput(f"{what} {path}{where} is not valid: {said}", "correct the file and try again") from None


def _fault(error: Exception) -> tuple[str, str]:
    """Which line is wrong, where that is known, and in what way."""
    import yaml

    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        said = ", ".join(word for word in (error.context, error.problem) if word)
        return f", line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1},", said
    if isinstance(error, json.JSONDecodeError):
        return f", line {error.lineno}, column {error.colno},", error.msg
    return "", str(error)


def read_spec(path: Path) -> dict[str, Any]:
    """The spec in a file. Raises InvalidInput when it cannot be read or is not a map."""
    spec = read_data(path, "the spec")
    if not isinstance(spec, dict):
        raise InvalidInput(f"the spec {path} is not a map of keys", "write key: value lines, nested as the model wants")
    return spec


def read_points(path: Path) -> list[Any]:
    """The points of a sweep in a file. Raises InvalidInput when it cannot be read or is not a list."""
    points = read_data(path, "the file of points")
    if not isinstance(points, list):
        raise InvalidInput(f"{path} is not a list of points", "write one map of values per point")
    return points


def _rows(text: str) -> list[dict[str, Any]]:
    from prefect_tao.cli.parsing import parse_value

    rows = csv.DictReader(text.splitlines(), strict=True)
    return [{key: parse_value(value) for key, value in row.items() if key and value is not None} for row in rows]


def write_text(path: Path, text: str) -> None:
    """Write a result. Raises InvalidInput when there is no room for it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}", "name another file") from None
