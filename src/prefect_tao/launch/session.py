"""A target in use: its driver and watcher, what is supplied for it, and what a launch has seen and drawn up there.

What a person has saved about a target is given to `open_session`; where that is kept is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.catalog.nouns import Catalog
from prefect_tao.environment import variables
from prefect_tao.jobs.launching import Launched, LookUp, launch, look_up
from prefect_tao.jobs.platform import Platform, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.retrying import PATIENCE_SECONDS
from prefect_tao.jobs.target import Target
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms import open_platform, shape_around

# How long an answer about what is there holds; a submission under a name that exists by then adopts it.
FRESH_SECONDS = 60.0


@dataclass(frozen=True)
class Saved:
    """What is saved about a target: its driver's settings, the usual shape of its jobs, credentials by name, limits."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    shape: Mapping[str, Any] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_jobs: int | None = None
    submits_per_second: float | None = None
    gpu_hour_price: float | None = None

    async def price(self, platform: Platform, request: JobRequest | None) -> float | None:
        """What one GPU of such a job costs in an hour: as saved, else as the platform says; None if not known."""
        if self.gpu_hour_price or request is None:
            return self.gpu_hour_price
        return await platform.gpu_hour_price(request)

    def catalog(self, catalog: Catalog, platform: str) -> Catalog:
        """The catalog with the saved shape in place of the platform's usual one."""
        entry = catalog.platforms.get(platform)
        if entry is None or not self.shape:
            return catalog
        entry = entry.model_copy(update={"defaults": {**entry.defaults, **self.shape}})
        return catalog.model_copy(update={"platforms": {**catalog.platforms, platform: entry}})

    @property
    def supplied(self) -> dict[str, str]:
        """Credentials by name: what is saved wins over the environment."""
        return {**surrounding_credentials(), **self.credentials}


@dataclass
class Session:
    """A target in use by one process. A launch looks its job up once here, and draws up once what it sends."""

    platform: Platform
    watcher: Watcher
    supplied: Mapping[str, str] = field(repr=False)
    _looks: dict[str, LookUp] = field(default_factory=dict, repr=False)
    _drawn: dict[str, Rendered] = field(default_factory=dict, repr=False)

    async def look(self, key: str, patience: float = PATIENCE_SECONDS) -> LookUp:
        """What there is under `key`; asked for once, as long as the answer is fresh. Raises Unreachable."""
        known = self._looks.get(key)
        if known is None or known.age > FRESH_SECONDS:
            known = self._looks[key] = await look_up(self.platform, key, patience)
        return known

    def keep(self, rendered: Rendered) -> None:
        """What the gates and a person have seen is what will be sent."""
        self._drawn[rendered.key] = rendered

    async def launch(self, request: JobRequest, key: str, secrets: Mapping[str, str]) -> Launched:
        """Attach to the job of `key`, or start its next attempt. Raises SubmitFailed, Unreachable."""
        looked = await self.look(key)
        del self._looks[key]  # what it says is about to change
        return await launch(self.platform, request, key, secrets, looked, self._drawn.pop(key, None))


def unsaved(platform: str) -> Saved:
    """What is known about a target without a block: the shape that variables give its jobs."""
    return Saved(shape=shape_around(platform))


def open_session(target: Target, saved: Saved | None = None) -> Session:
    """The session of a target, as saved or as the environment has it. Raises InvalidInput, MissingDependency."""
    saved = saved or Saved()
    platform = open_platform(str(target), saved.settings)
    supplied = saved.supplied
    platform.take_credentials(supplied)
    return Session(platform, Watcher(platform), supplied)


def surrounding_credentials() -> dict[str, str]:
    """What the environment supplies for any target, of the names that the catalog knows."""
    return {name: value for name, value in variables(None).items() if name in load_catalog().credentials}
