"""Results that follow from code and a seed alone, kept below .bench: to measure them again would give the same."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

from benchmarks.measure import ROOT

# What searches and problems are made of besides the code here.
LIBRARIES = ("optuna", "scikit-learn", "scipy", "numpy")


def kept(name: str, code: Iterable[Path], work: Callable[[], float]) -> float:
    """The result of `work`, measured anew where the files in `code` or the libraries have changed since."""
    path = ROOT / ".bench" / "kept" / f"{hashlib.sha256(f'{name} {_digest(tuple(code))}'.encode()).hexdigest()}.json"
    if path.exists():
        return float(json.loads(path.read_text())["result"])
    result = work()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": name, "result": result}))
    return result


@functools.cache
def _digest(code: tuple[Path, ...]) -> str:
    found = hashlib.sha256(" ".join(f"{library} {version(library)}" for library in LIBRARIES).encode())
    for path in sorted(code):
        found.update(path.read_bytes())
    return found.hexdigest()
