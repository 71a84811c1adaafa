"""`prefect-tao setup`: the block of a platform, made from the environment and a few answers, saved and tried."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_tao.cli.catalog import emit
from prefect_tao.cli.options import Json

if TYPE_CHECKING:
    from prefect_tao.blocks.tao_block import TaoBlock
    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.jobs.finding import Finding
    from prefect_tao.jobs.target import Target
    from prefect_tao.platforms.fields import Variable
    from prefect_tao.preflight.checks.credentials import Need

DEFAULT_NAME = "default"
EPILOG = """\b
Examples:
  prefect-tao setup process --name workstation
  prefect-tao setup slurm --name cluster --from-env
"""


def setup(
    platform: Annotated[str, typer.Argument(help="Platform, by name or alias.", show_default=False)],
    name: Annotated[str, typer.Option(help="Name of the block: lower case, digits, hyphens.")] = DEFAULT_NAME,
    from_env: Annotated[bool, typer.Option("--from-env", help="Ask nothing; variables only.")] = False,
    json_: Json = False,
) -> None:
    """Save what a platform needs as a block, asking only for what your variables do not have, and try it."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.prompts import at_terminal
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.jobs.finding import blocking
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.checks.credentials import need_findings
    from prefect_tao.preflight.resolve.resolving import named_platform

    catalog = open_catalog()
    target = Target.parse(f"{named_platform(catalog, platform)}/{name}")
    kind = _block_type(target.platform)
    needs = _needs(catalog, target.platform, kind)
    values = _values(kind)
    if at_terminal() and not from_env:
        values = _ask_for_missing(catalog, target.platform, kind, needs, values)
    # A key may also be named by ssh's own configuration; the probe says whether one opens the login.
    demanded = [need for need in needs if not need.is_ssh or need.met(values)]
    if missing := blocking(need_findings(demanded, values, lambda one: f"set the variable {one} and run this again")):
        if not json_:
            raise InvalidInput.of(missing, "nothing was saved")
        emit({"target": str(target), "saved": False, "missing": [one.model_dump(mode="json") for one in missing]})
        raise typer.Exit(2)
    block = _build(kind, target.platform, values)
    findings = asyncio.run(_save_and_probe(block, target))
    _report(target, kind.get_block_type_slug(), findings, json_)
    raise typer.Exit(2 if blocking(findings or []) else 0)


# -- what the block needs ----------------------------------------------------------------------------------------------


def _block_type(platform: str) -> Any:
    """The class of the platform's block. Prefect is imported here."""
    from prefect_tao.cli.running import import_prefect
    from prefect_tao.cli.screen import Screen, console
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.platforms.registry import registered

    screen = Screen(console())
    import_prefect(screen)
    screen.quiet()
    if platform not in registered():
        raise InvalidInput(f"no package brings a block for {platform}", "see `prefect-tao platforms`")
    return registered()[platform].load_block()


def _marks(kind: type[TaoBlock]) -> dict[str, Variable]:
    """The variable of each field that has one."""
    from prefect_tao.platforms.fields import Variable

    return kind.marked(Variable)


def _values(kind: type[TaoBlock]) -> dict[str, str]:
    """All variables; what others call a variable of the block is there under our name too."""
    from prefect_tao.environment import variables

    values = variables()
    for mark in _marks(kind).values():
        for other in mark.others:
            if other in values:
                values.setdefault(mark.name, values[other])
    return values


def _needs(catalog: Catalog, platform: str, kind: type[TaoBlock]) -> list[Need]:
    """Required fields first, then what the catalog requires besides: its own required names and its groups."""
    from prefect_tao.preflight.checks.credentials import Need, platform_needs

    known = {need.preferred: need for need in platform_needs(catalog, platform)}
    found = {}
    for field, mark in _marks(kind).items():
        if kind.model_fields[field].is_required():
            entry = catalog.credentials.get(mark.name)
            about = (entry.description, entry.how_to_get) if entry else (kind.model_fields[field].description or "", "")
            found[mark.name] = known.get(mark.name) or Need((mark.name,), f"{platform} requires it", *about)
    return list((found | known).values())


def _ask_for_missing(
    catalog: Catalog, platform: str, kind: type[TaoBlock], needs: list[Need], values: Mapping[str, str]
) -> dict[str, str]:
    from prefect_tao.cli.prompts import ask, prompts, say
    from prefect_tao.preflight.checks.credentials import missing

    fields = {mark.name: kind.model_fields[field] for field, mark in _marks(kind).items()}
    answers: dict[str, str] = {}
    with prompts("Nothing was saved."):
        for need in missing(needs, values):
            name, entry = need.preferred, catalog.credentials.get(need.preferred)
            say(f"{name}: {need.description} {need.how_to_get}".rstrip())
            hidden = entry is None or entry.secret
            question = f"{name} (not shown)" if hidden else name
            answers[name] = ask(question, partial(_fit, name, fields.get(name)), hidden=hidden)
    return {**values, **answers}


def _fit(name: str, field: Any, text: str) -> str:
    """`text` if the block would take it for this field. Raises ValueError otherwise."""
    from pydantic import TypeAdapter, ValidationError

    from prefect_tao.preflight.checks.credentials import SSH_KEY

    if not text:
        raise ValueError("it is needed; Ctrl-C leaves without saving anything")
    if name == SSH_KEY and not Path(text).expanduser().is_file():
        raise ValueError("there is no such file here")
    if field is not None:
        try:
            TypeAdapter(field.rebuild_annotation()).validate_python(text)
        except ValidationError as error:
            raise ValueError(error.errors(include_input=False)[0]["msg"]) from None
    return text


# -- saving ------------------------------------------------------------------------------------------------------------


def _build(kind: type[TaoBlock], platform: str, values: Mapping[str, str]) -> TaoBlock:
    from pydantic import ValidationError

    from prefect_tao.jobs.errors import InvalidInput

    try:
        block = kind.from_env(values)
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False))
        raise InvalidInput(f"the block cannot be made: {told}", "correct the variables it is made from") from None
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    local = getattr(block, "local", None)
    if local is not None and local != (platform == "local-docker"):
        fitting = "local-docker" if local else "remote-docker"
        raise InvalidInput(
            f"DOCKER_HOST names an engine {'on this machine' if local else 'elsewhere'}, which is not {platform}",
            f"run prefect-tao setup {fitting}, or change DOCKER_HOST",
        )
    return block


async def _save_and_probe(block: Any, target: Target) -> list[Finding] | None:
    """What the driver finds, once the block is saved; None where there is no driver yet."""
    from prefect_tao.cli.running import use_prefect
    from prefect_tao.jobs.errors import TaoError
    from prefect_tao.jobs.finding import REACHABLE
    from prefect_tao.platforms import has_driver
    from prefect_tao.preflight.checked_launch import error_findings
    from prefect_tao.tasks.targets.probing import probe_target
    from prefect_tao.tasks.targets.servers import check_server

    use_prefect()
    await check_server()
    block = await _onto_saved(block, str(target))
    await block.asave(target.block, overwrite=True)
    if not has_driver(target.platform):
        return None
    try:
        return await probe_target(str(target))
    except TaoError as error:
        return error_findings(error, REACHABLE, str(target))


async def _onto_saved(block: Any, target: str) -> Any:
    """`block` with what one saved before under the same name says about the rest, so that setup never loses it."""
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.tasks.targets.opening import load_block

    try:
        saved = await load_block(target)
    except InvalidInput:
        return block
    kept = {name: getattr(saved, name) for name in type(block).model_fields if name not in block.model_fields_set}
    return block.model_copy(update=kept)


def _report(target: Target, slug: str, findings: list[Finding] | None, as_json: bool) -> None:
    from prefect_tao.cli.examining import print_findings
    from prefect_tao.cli.screen import program
    from prefect_tao.jobs.finding import blocking

    lacking = f"the driver for {target.platform} is not there yet"
    if as_json:
        told = [one.model_dump(mode="json") for one in findings or []]
        emit(
            {
                "target": str(target),
                "block": f"{slug}/{target.block}",
                "saved": True,
                "driver": findings is not None,
                "passed": not blocking(findings or []),
                "findings": told if findings is not None else [{"level": "warn", "message": lacking}],
            }
        )
        return
    typer.echo(f"saved {slug}/{target.block}")
    if findings is None:
        typer.echo(lacking)
    else:
        print_findings({"probe": findings})
    if blocking(findings or []):
        again = f"{program()} setup {target.platform} --name {target.block}"
        typer.echo(f"fix that before you launch there, then try it: {again}")
    else:
        typer.echo(f"use it with --target {target}")
