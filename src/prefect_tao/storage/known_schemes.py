"""The storage schemes: ours, and those that other distributions register as entry points `prefect_tao.storage`.

A scheme is one module. It is written against `prefect_tao.runner.inside.stores`, imports nothing at its top that an
image may lack, and has its `Scheme` as SCHEME. The launcher uses it as it is, and it travels into every job.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from prefect_tao.runner.inside import schemes, stores
from prefect_tao.runner.inside.stores import Scheme

GROUP = "prefect_tao.storage"
_HERE, _IN_A_JOB = b"prefect_tao.runner.inside", b"inside"


def register(module: ModuleType) -> None:
    """Let the module's scheme be one of those that launcher and jobs know."""
    schemes.REGISTERED[module.SCHEME.name] = module


@cache
def _take_entry_points() -> None:
    for entry in entry_points(group=GROUP):
        if entry.name not in schemes.REGISTERED:
            schemes.REGISTERED[entry.name] = entry.load()


def find(name: str) -> Scheme | None:
    """The scheme of this name, or None when nothing knows it."""
    found: Scheme | None = schemes.find_scheme(name)
    if found is None:
        _take_entry_points()
        found = schemes.find_scheme(name)
    return found


def scheme_for(uri: str) -> Scheme | None:
    """The scheme of a location; None of a path and of what nothing knows."""
    return None if schemes.is_local(uri) else find(schemes.scheme_of(uri))


def everything() -> list[Scheme]:
    """All schemes there are."""
    _take_entry_points()
    own = {module.name for module in pkgutil.iter_modules(stores.__path__)}
    return [found for name in sorted(own | set(schemes.REGISTERED)) if (found := find(name))]


def is_seen(uri: str) -> bool:
    """Whether the location is in a storage that can be looked into from here."""
    scheme = scheme_for(uri)
    return scheme is not None and scheme.is_seen


def opening(uris: Iterable[str]) -> list[Scheme]:
    """The schemes of these locations that credentials open."""
    found = {scheme.name: scheme for uri in uris if (scheme := scheme_for(uri)) and (scheme.keys or scheme.settings)}
    return list(found.values())


def travelling() -> dict[str, bytes]:
    """The modules of registered schemes as they lie in a job: {path in the program: source}."""
    _take_entry_points()
    return {
        f"stores/{name}.py": Path(str(module.__file__)).read_bytes().replace(_HERE, _IN_A_JOB)
        for name, module in sorted(schemes.REGISTERED.items())
    }
