"""Places that jobs write to: under which name each is known, and whether one lies in another. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prefect_tao.runner.inside.schemes import LOCAL_SCHEMES

RESULTS_DIR = "results_dir"


class Place(NamedTuple):
    """A location and its writer; `machine` keeps equal paths on two machines apart, and is empty for a URI."""

    owner: str
    machine: str
    path: str


class Clash(NamedTuple):
    """Two owners that write to one place: `inner` is the same location as `outer`, or lies in it."""

    outer: Place
    inner: Place

    def told(self, noun: str) -> str:
        """Which owners clash, and where; `noun` is what the owners are."""
        inner, outer = self.inner, self.outer
        if outer.path == inner.path:
            return f"the {noun}s {outer.owner} and {inner.owner} both write to {inner.path}"
        return f"the {noun} {inner.owner} writes to {inner.path}, inside of {outer.path}, which {outer.owner} writes to"


def is_fixed(value: object) -> bool:
    """Whether a value names a location by itself, and not one below the folder of its reader."""
    return isinstance(value, str) and (value.startswith("/") or "://" in value)


def is_results(key: str) -> bool:
    """Whether a spec key is a folder for results, which the sections of a spec have besides the spec itself."""
    return key.rpartition(".")[2] == RESULTS_DIR


def place(owner: str, target: str, text: str) -> Place:
    """The place that `text` names for a job at `target`, the same for every spelling of it."""
    scheme, marker, rest = text.partition("://")
    if not marker:
        return Place(owner, target, _normal(text))
    if scheme in LOCAL_SCHEMES:
        return Place(owner, target, _normal(f"/{rest}"))
    return Place(owner, "", f"{scheme}://{_normal(rest)}")


def clashes(places: Iterable[Place]) -> Iterator[Clash]:
    """Every place that another owner writes to as well, or above it; each with the outermost of those above."""
    known: dict[tuple[str, str], Place] = {}
    # The shortest first: what is above a place is known before it, and no two have to be compared.
    for one in sorted(places, key=lambda one: len(one.path)):
        for path in _from_above(one.path):
            other = known.get((one.machine, path))
            if other is not None and other.owner != one.owner:
                yield Clash(other, one)
                break
        known.setdefault((one.machine, one.path), one)


def _normal(path: str) -> str:
    """Without `..`, `.` and slashes too many; normpath alone keeps two slashes at the beginning."""
    return posixpath.normpath(f"/{path.lstrip('/')}" if path.startswith("/") else path)


def _from_above(path: str) -> list[str]:
    """The path and all that it lies in, the outermost first."""
    found = [path]
    while (above := posixpath.dirname(found[-1])) not in ("", found[-1]) and not above.endswith(":"):
        found.append(above)
    return found[::-1]
