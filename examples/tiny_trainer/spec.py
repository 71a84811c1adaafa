"""Reads a spec file and hands out its values with the type and default the trainer expects."""

import json
import math
from pathlib import Path
from typing import Any

SECTIONS = ("train", "dataset", "evaluate", "export")


class TrainerError(Exception):
    """Something the user can put right; its text is the whole message."""


class Section:
    """One part of the spec, asked by key."""

    def __init__(self, name: str, values: Any) -> None:
        if values is not None and not isinstance(values, dict):
            raise TrainerError(f"{name} must be a mapping, not {values!r}")
        self.name = name
        self.values: dict[str, Any] = values or {}

    def section(self, key: str) -> "Section":
        return Section(f"{self.name}.{key}", self.values.get(key))

    def number(self, key: str, default: float, least: float | None = None) -> float:
        value = self.values.get(key)
        number = default if value is None else _number(value)
        if not math.isfinite(number) or (least is not None and number < least):
            bound = "" if least is None else f" of at least {least:g}"
            raise TrainerError(f"{self.name}.{key} must be a number{bound}, not {value!r}")
        return number

    def whole(self, key: str, default: int, least: int | None = None) -> int:
        number = self.number(key, default, least)
        if number != int(number):
            raise TrainerError(f"{self.name}.{key} must be a whole number, not {self.values[key]!r}")
        return int(number)

    def path(self, key: str) -> Path | None:
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise TrainerError(f"{self.name}.{key} must be a path, not {value!r}")
        return Path(value) if value else None


class Spec:
    """The whole spec: where results go, and its sections."""

    def __init__(self, values: Any) -> None:
        root = Section("spec", values)
        unknown = [key for key in root.values if key not in ("results_dir", *SECTIONS)]
        if unknown:
            raise TrainerError(f"unknown key in the spec: {', '.join(map(str, unknown))}")
        results_dir = root.path("results_dir")
        if results_dir is None:
            raise TrainerError("results_dir is missing from the spec")
        self.results_dir = results_dir
        self.train, self.dataset, self.evaluate, self.export = (Section(key, root.values.get(key)) for key in SECTIONS)


def read_spec(path: Path) -> Spec:
    try:
        return Spec(_load(path))
    except OSError as error:
        raise TrainerError(f"cannot read the spec {path}: {error.strerror}") from error


def _load(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix not in (".yaml", ".yml"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise TrainerError(f"the spec {path} is not valid JSON: {error}") from error
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TrainerError(f"the spec {path} is not valid YAML: {error}") from error


def _number(value: Any) -> float:
    """The value as a number, also from text because YAML takes 1e-3 for a string; NaN for anything else."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
