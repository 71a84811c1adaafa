"""The platforms there are: ours and those of other packages, all by entry point `prefect_tao.platforms`.

One line of a package's metadata names a platform and what describes it; beside that module lies `platform.yaml`, the
catalog's entry. What a line leads to is loaded by its name, so the catalog imports nothing of the engine; it only asks
it for the defaults that the platform's settings declare.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from prefect_tao.catalog.yaml_files import CatalogError

GROUP = "prefect_tao.platforms"
FILE = "platform.yaml"
OURS = "prefect-tao"


class PlatformPackage(NamedTuple):
    """One platform: its name, the package that brings it, its file for the catalog, and its PlatformInfo."""

    name: str
    package: str
    file: Path
    info: Any


@cache
def platform_packages() -> tuple[PlatformPackage, ...]:
    """All there are, by name. Raises CatalogError for one that cannot be loaded or that two packages bring."""
    found: dict[str, PlatformPackage] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        package = point.dist.name if point.dist else point.module
        if point.name in found:
            reason = f"{found[point.name].package} brings a platform of this name too; uninstall one of them"
            raise CatalogError(package, point.name, reason)
        found[point.name] = PlatformPackage(point.name, package, *_loaded(point, package))
    return tuple(found.values())


def _loaded(point: EntryPoint, package: str) -> tuple[Path, Any]:
    try:
        info = point.load()
    except Exception as error:  # whatever a package of somebody else does when it is imported
        reason = f"{point.value} cannot be loaded: {type(error).__name__}: {error}"
        raise CatalogError(package, point.name, reason) from error
    return Path(str(sys.modules[point.module].__file__)).parent / FILE, info
