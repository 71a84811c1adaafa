"""Annotations: files that name the media of a dataset."""

from __future__ import annotations

import json

from .failures import RunnerError
from .packages import package
from .pointers import leaf, walk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def references(path: str, form: str, keys: Sequence[str]) -> set[str]:
    """The files that an annotation names under one of `keys`."""
    form = form if form and not path.endswith(".jsonl") else path.rpartition(".")[2]
    try:
        if form == "parquet":
            return _table_references(path, keys)
        with open(path, encoding="utf-8-sig", newline="") as file:
            if form == "csv":
                import csv

                records: Any = list(csv.DictReader(file))
            elif form == "jsonl":
                records = [json.loads(line) for line in file if line.strip()]
            else:
                records = json.load(file)
    except ValueError as error:
        raise RunnerError("inputs", "the annotation %s is not %s: %s" % (path, form, error))
    return {value for spot, value in walk(records) if value and leaf(spot) in keys and isinstance(value, str)}


def _table_references(path: str, keys: Sequence[str]) -> set[str]:
    pandas = package("pandas")
    if pandas is None:
        raise RunnerError("inputs", "%s needs pandas in the image, and it has none; use a JSON annotation" % path)
    try:
        table = pandas.read_parquet(path)
    except ImportError as error:
        raise RunnerError("inputs", "%s cannot be read with the image's pandas: %s" % (path, error))
    return {str(name) for key in keys if key in table for name in table[key].dropna()}
