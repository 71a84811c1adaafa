"""Which target has a job, where a person names none: this machine, what the environment names, then saved blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from prefect_tao.jobs.errors import Elsewhere, TaoError
    from prefect_tao.jobs.handle import JobHandle
    from prefect_tao.jobs.platform import Platform

HERE = "process"


async def open_any(target: str) -> Platform:
    """The driver of a target, for the caller to close; Prefect is needed only to load a saved block."""
    from prefect_tao.catalog.loading import load_catalog
    from prefect_tao.catalog.lookup import find_platform
    from prefect_tao.jobs.target import Target
    from prefect_tao.platforms import known, open_platform

    parsed = Target.parse(target)
    parsed = parsed._replace(platform=find_platform(load_catalog(), parsed.platform) or parsed.platform)
    known(parsed.platform)
    if parsed.block is None:
        return open_platform(str(parsed))
    from prefect_tao.cli.running import use_prefect

    use_prefect()
    from prefect_tao.tasks.targets.opening import open_apart

    return await open_apart(target)


@asynccontextmanager
async def find_job(name: str, target: str | None) -> AsyncIterator[tuple[Platform, JobHandle]]:
    """The job of that name and the driver it is under. Raises InvalidInput when no target knows it."""
    async with search() as found:
        yield await found.find(name, target)


@asynccontextmanager
async def search() -> AsyncIterator[JobSearch]:
    """A search for jobs, whose drivers are closed at its end."""
    found = JobSearch()
    try:
        yield found
    finally:
        for platform in found.opened.values():
            await platform.close()


class JobSearch:
    """Looks for jobs by name. Each target is opened once."""

    def __init__(self) -> None:
        self.opened: dict[str, Platform] = {}
        self._saved: list[str] | None = None

    async def find(self, name: str, target: str | None) -> tuple[Platform, JobHandle]:
        """The job, on `target` or, where that is None, on whichever target has it. Raises InvalidInput, Unreachable."""
        from prefect_tao.environment import variables
        from prefect_tao.jobs.byname import find_by_name
        from prefect_tao.jobs.errors import Elsewhere, TaoError
        from prefect_tao.jobs.naming import JobName

        JobName.parse(name)
        if target is not None:
            platform = await self._open(target)
            return platform, await find_by_name(platform, name)
        variables()  # where those cannot be read no target can be opened, and none has denied the job
        said: dict[str, TaoError] = {}
        async for one in self._targets(said):
            if one != HERE:
                typer.echo(f"looking for {name} on {one}", err=True)
            try:
                platform = await self._open(one)
                return platform, await find_by_name(platform, name)
            except TaoError as error:
                said[one] = error
        raise _nowhere(name, said, next((error for error in said.values() if isinstance(error, Elsewhere)), None))

    async def _open(self, target: str) -> Platform:
        if target not in self.opened:
            self.opened[target] = await open_any(target)
        return self.opened[target]

    async def _targets(self, said: dict[str, TaoError]) -> AsyncIterator[str]:
        """Where to look, the nearest first; what a record here has named comes before the others."""
        from prefect_tao.jobs.errors import Elsewhere
        from prefect_tao.jobs.target import Target

        yield HERE
        named = {error.handle.target for error in said.values() if isinstance(error, Elsewhere)}
        platforms = {Target.parse(one).platform for one in named}
        for target in sorted(_around(), key=lambda one: one not in platforms):
            yield target
        if self._saved is None:
            self._saved = await _saved_targets(bool(named))
        for target in sorted(self._saved, key=lambda one: one not in named):
            yield target


def _around() -> list[str]:
    """The platforms that the environment alone sets up, besides this machine."""
    from prefect_tao.jobs.errors import TaoError
    from prefect_tao.platforms import drivers, open_platform

    found: dict[str, dict[str, Any]] = {}
    for name in drivers():
        try:
            settings = {**open_platform(name).settings(), "target": ""}
        except TaoError:
            continue
        if name != HERE and settings not in found.values():  # the same engine may be meant by two names
            found[name] = settings
    return list(found)


async def _saved_targets(is_hinted: bool) -> list[str]:
    """The targets of all saved blocks. A server is started for that only where a record hints at one of them."""
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    from prefect_tao.tasks.targets.servers import has_own_data, server_url

    if server_url() is None and not (is_hinted and has_own_data()):
        return []
    from prefect_tao.cli.running import use_prefect

    use_prefect()
    from prefect_tao.tasks.targets.opening import saved_targets

    return await saved_targets()


def _nowhere(name: str, said: dict[str, TaoError], far: Elsewhere | None) -> TaoError:
    """What there is to say about a job that no target has, with those that could not tell."""
    from prefect_tao.jobs.errors import Elsewhere, InvalidInput

    silent = [f"{target} ({error.cause})" for target, error in said.items() if not isinstance(error, InvalidInput)]
    unsure = f"; no answer from {', '.join(silent)}" if silent else ""
    looked = f"looked on {', '.join(said)}{unsure}"
    if far:
        return Elsewhere(far.handle, f"name its target with --target, set up for that site; {looked}")
    return InvalidInput(
        f"no target knows the job {name}: {looked}",
        "say where it is, for example --target slurm/polar; prefect-tao jobs --target TARGET lists what is there",
    )
