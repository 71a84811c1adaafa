"""What a platform brings, ours or another package's: its entry point leads to a `PlatformInfo`.

Nothing of a driver is imported before it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from prefect_tao.catalog.platform_packages import platform_packages
from prefect_tao.catalog.yaml_files import CatalogError
from prefect_tao.jobs.errors import InvalidInput, MissingDependency
from prefect_tao.jobs.platform import Platform
from prefect_tao.platforms.fields import Fields, InShape


@dataclass(frozen=True)
class PlatformInfo:
    """What belongs to a platform. `driver` and `block` are classes as `module:Class`, imported when they are used.

    A platform without a driver can be planned and saved, but not launched on. `install` is what pip needs for the
    packages that the driver imports.
    """

    settings: type[Fields]
    block: str
    driver: str | None = None
    install: str = "prefect-tao"

    def load_driver(self) -> type[Platform]:
        """The driver's class. Raises MissingDependency."""
        if self.driver is None:
            raise InvalidInput("this platform has no driver yet", "choose another platform")
        try:
            found: type[Platform] = _load(self.driver)
        except ModuleNotFoundError as error:
            raise MissingDependency(
                f"the driver needs the package {error.name}", f"pip install '{self.install}'"
            ) from None
        return found

    def load_block(self) -> Any:
        """The block's class. Prefect is imported here, so this is for those who use it anyway."""
        return _load(self.block)

    @property
    def defaults(self) -> dict[str, Any]:
        """What holds where nothing is said, by the catalog's names where it has one, else by field."""
        names = {field: mark.name for field, mark in self.settings.marked(InShape).items()}
        declared = {
            field: info.get_default(call_default_factory=True)
            for field, info in self.settings.model_fields.items()
            if not info.is_required()
        }
        return {names.get(field, field): value for field, value in declared.items() if value not in (None, {}, [])}


@cache
def registered() -> dict[str, PlatformInfo]:
    """Every platform by name. Raises InvalidInput for one that cannot be loaded, or that two packages bring."""
    try:
        packages = platform_packages()
    except CatalogError as error:
        raise InvalidInput(str(error), f"correct or uninstall {error.fault.file}") from error
    for one in packages:
        if not isinstance(one.info, PlatformInfo):
            raise InvalidInput(
                f"the entry point of the platform {one.name} does not lead to a PlatformInfo",
                f"correct or uninstall {one.package}",
            )
    return {one.name: one.info for one in packages}


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
