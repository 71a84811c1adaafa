"""`prefect-tao doctor`: what to look at when something does not work, each line with its remedy."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from prefect_tao.cli.catalog import emit
from prefect_tao.cli.options import Json, Target

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from prefect_tao.jobs.finding import Finding

EPILOG = """\b
Example:
  prefect-tao doctor --target process
"""
GIB = 1 << 30
LITTLE, TOO_LITTLE = 10 * GIB, GIB


def doctor(target: Target = "process", json_: Json = False) -> None:
    """Look at versions, server, folders, GPUs, catalog, drivers and a target. Ends with 1 when something is broken."""
    from prefect_tao.cli.examining import as_json, print_findings
    from prefect_tao.cli.screen import Screen, console
    from prefect_tao.jobs.errors import to_fix
    from prefect_tao.jobs.finding import blocking

    screen, checks = Screen(console()), {}
    for name, check in CHECKS.items():
        screen.note(f"looking at {name if name != 'target' else target}")
        checks[name] = check(target)
    screen.quiet()
    broken = [finding for findings in checks.values() for finding in blocking(findings)]
    if json_:
        emit({"ok": not broken, "checks": as_json(checks)})
    else:
        print_findings(checks)
        typer.echo(to_fix(len(broken)) if broken else "nothing is broken")
    raise typer.Exit(1 if broken else 0)


# -- this installation -------------------------------------------------------------------------------------------------


def _versions(target: str) -> list[Finding]:
    """Python, this product and what it requires, each within the bounds that its own metadata tell."""
    import platform
    from importlib.metadata import PackageNotFoundError, metadata, requires

    from packaging.requirements import Requirement

    try:
        about = metadata("prefect-tao")
    except PackageNotFoundError:
        return [
            _fail("prefect-tao", "prefect-tao is not installed, only its files are there", "pip install prefect-tao")
        ]
    bounds = Requirement(f"python{about['Requires-Python']}")
    needed = [Requirement(text) for text in requires("prefect-tao") or []]
    return [
        _bounded(bounds, platform.python_version(), "make a virtual environment with another Python"),
        _ok("prefect-tao", f"prefect-tao {about['Version']}"),
        *(_installed(one) for one in needed if one.marker is None or one.marker.evaluate({"extra": ""})),
    ]


def _installed(needed: Requirement) -> Finding:
    from importlib.metadata import PackageNotFoundError, version

    remedy = f"pip install '{needed}'"
    try:
        return _bounded(needed, version(needed.name), remedy)
    except PackageNotFoundError:
        return _fail(needed.name, f"{needed.name} is not installed; {needed} is needed", remedy)


def _bounded(needed: Requirement, version: str, remedy: str) -> Finding:
    if needed.specifier.contains(version, prereleases=True):
        return _ok(needed.name, f"{needed.name} {version}")
    return _fail(needed.name, f"{needed.name} {version} is there, but {needed} is needed", remedy)


def _server(target: str) -> list[Finding]:
    """The server that Prefect is told to use answers, or it starts its own."""
    from prefect_tao.jobs.errors import TaoError

    try:
        _start_prefect()
        from prefect_tao.tasks.targets.servers import check_server, server_url

        url = server_url()
        asyncio.run(check_server())
    except TaoError as error:
        return [_fail("server", error.cause, error.remedy)]
    except Exception as error:  # whatever keeps Prefect from being imported is what a person wants to know here
        return [_fail("server", f"Prefect cannot be imported: {type(error).__name__}: {error}", "install it again")]
    if url:
        return [_ok("server", f"Prefect's server at {url} answers")]
    return [_ok("server", "no server runs here: each command starts one for itself; `prefect-tao ui` one that stays")]


def _start_prefect() -> None:
    from prefect_tao.cli.running import hush
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    hush()


# -- this machine ------------------------------------------------------------------------------------------------------


def _folders(target: str) -> list[Finding]:
    """Home and results can be written, and there is room."""
    from prefect_tao.platforms import open_platform

    platform = open_platform("process")
    findings = asyncio.run(platform.probe())
    folders = {Path(platform.settings()[name]) for name in ("root", "results_root")}
    return findings + [_room(path) for path in sorted({_existing(folder) for folder in folders})]


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _room(path: Path) -> Finding:
    free = shutil.disk_usage(path).free
    message = f"{free / GIB:.1f} GiB free at {path}"
    remedy = "free some space, or set PREFECT_TAO_HOME and TAO_RESULTS_ROOT to folders on a larger disk"
    if free < TOO_LITTLE:
        return _fail("disk", message, remedy)
    return _warn("disk", message, remedy) if free < LITTLE else _ok("disk", message)


def _gpus(target: str) -> list[Finding]:
    from prefect_tao.platforms.gpus import inventory

    if found := inventory():
        return [_ok("gpus", f"{len(found)} GPUs seen: {', '.join(found)}")]
    remedy = "for jobs with GPUs here, install the NVIDIA driver so that nvidia-smi -L lists them; else nothing"
    return [_warn("gpus", "no GPU is seen on this machine", remedy)]


# -- the product -------------------------------------------------------------------------------------------------------


def _catalog(target: str) -> list[Finding]:
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.jobs.errors import InvalidInput

    try:
        catalog = open_catalog()
    except InvalidInput as error:
        return [_fail("catalog", error.cause, error.remedy)]
    counts = f"{len(catalog.models)} models, {len(catalog.platforms)} platforms"
    return [_ok("catalog", f"{counts}, from {', then '.join(catalog.sources)}")]


def _drivers(target: str) -> list[Finding]:
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.platforms.registry import registered

    try:
        names = dict.fromkeys(registered())
        names |= dict.fromkeys(open_catalog().platforms)
    except InvalidInput as error:
        return [_fail("drivers", error.cause, error.remedy)]
    return [_driver(name) for name in names]


def _driver(name: str) -> Finding:
    from prefect_tao.jobs.errors import MissingDependency
    from prefect_tao.platforms import has_driver
    from prefect_tao.platforms.registry import registered

    if not has_driver(name):
        return _warn(f"driver {name}", _no_driver(name), "choose another platform")
    try:
        registered()[name].load_driver()
    except MissingDependency as error:
        return _warn(f"driver {name}", f"{name}: {error.cause}", error.remedy)
    return _ok(f"driver {name}", f"the driver for {name} is there")


def _target(target: str) -> list[Finding]:
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.jobs.errors import TaoError
    from prefect_tao.jobs.finding import REACHABLE
    from prefect_tao.jobs.target import Target
    from prefect_tao.platforms import has_driver
    from prefect_tao.preflight.checked_launch import error_findings
    from prefect_tao.preflight.resolve.resolving import named_platform

    try:
        parsed = Target.parse(target)
        if not has_driver(parsed.platform):
            parsed = parsed._replace(platform=named_platform(open_catalog(), parsed.platform))
        if not has_driver(parsed.platform):
            return [_fail(REACHABLE, _no_driver(parsed.platform), "choose another platform")]
        if parsed.block:
            _start_prefect()
        return asyncio.run(_probe(str(parsed))) or [_ok(REACHABLE, f"{target} answers")]
    except TaoError as error:
        return error_findings(error, REACHABLE, target)


async def _probe(target: str) -> list[Finding]:
    """What the driver finds; whether the server answers is asked before, because loading a block tries for minutes."""
    from prefect_tao.cli.whereabouts import open_any
    from prefect_tao.jobs.target import Target

    if Target.parse(target).block:
        from prefect_tao.tasks.targets.servers import check_server

        await check_server()
    platform = await open_any(target)
    try:
        return await platform.probe()
    finally:
        await platform.close()


CHECKS: dict[str, Callable[[str], list[Finding]]] = {
    "versions": _versions,
    "prefect": _server,
    "folders": _folders,
    "gpus": _gpus,
    "catalog": _catalog,
    "drivers": _drivers,
    "target": _target,
}


def _no_driver(platform: str) -> str:
    return f"the driver for {platform} is not there yet"


def _ok(subject: str, message: str) -> Finding:
    from prefect_tao.jobs.finding import Finding, Level

    return Finding(level=Level.OK, subject=subject, message=message)


def _warn(subject: str, message: str, remedy: str) -> Finding:
    from prefect_tao.preflight.resolve.problems import warn

    return warn(subject, message, remedy)


def _fail(subject: str, message: str, remedy: str) -> Finding:
    from prefect_tao.preflight.resolve.problems import fail

    return fail(subject, message, remedy)
