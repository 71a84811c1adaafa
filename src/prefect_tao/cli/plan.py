"""`prefect-tao preflight | plan`: everything that can be known about a launch, with nothing launched or written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefect_tao.cli.catalog import emit
from prefect_tao.cli.options import Given, Json, SkillBank, SkipAccess, launches
from prefect_tao.launch.parameters.declared import StepParameters
from prefect_tao.launch.parameters.derived import completed

if TYPE_CHECKING:
    from prefect_tao.cli.examining import Look

ModelArgument = Annotated[str, typer.Argument(help="Model, by name, alias, arch or hub id.", show_default=False)]
ActionArgument = Annotated[str, typer.Argument(help="Its action, such as train.", show_default=False)]
PREFLIGHT = """\b
Examples:
  prefect-tao preflight tiny train --target process
  prefect-tao preflight dino train --target slurm/polar --train-root /lustre/data/train --automl-policy off
"""
PLAN = """\b
Example:
  prefect-tao plan tiny train --set num_epochs=3
"""


@launches(StepParameters)
def preflight(
    model: ModelArgument,
    action: ActionArgument,
    given: Given,
    skill_bank: SkillBank = None,
    skip_platform_access: SkipAccess = False,
    json_: Json = False,
) -> None:
    """Check the seven gates of a launch. Ends with 0 when all pass, with 2 when one does not."""
    from prefect_tao.cli.examining import print_findings
    from prefect_tao.jobs.errors import to_fix
    from prefect_tao.jobs.finding import causes, exit_code

    given |= {"model": model, "action": action}
    look = _look(given, skill_bank, bool(given.get("image") or given.get("confirm_image")), skip_platform_access)
    if json_:
        told = look.as_json()
        emit({key: told[key] for key in ("passed", "model", "action", "gates")})
    else:
        print_findings(look.gates)
        typer.echo(f"preflight {f'failed: {to_fix(len(causes(look.failed)))}' if look.failed else 'passed'}")
    raise typer.Exit(exit_code(look.failed))


@launches(StepParameters)
def plan(
    model: ModelArgument,
    action: ActionArgument,
    given: Given,
    skill_bank: SkillBank = None,
    skip_platform_access: SkipAccess = False,
    json_: Json = False,
) -> None:
    """Show what a launch would be: image, data, spec, findings and the text that would be sent. Changes nothing."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.prompts import complete
    from prefect_tao.jobs.finding import exit_code

    given = complete(open_catalog(skill_bank), {**given, "model": model, "action": action})
    look = _look(given, skill_bank, True, skip_platform_access)
    if json_:
        emit(look.as_json())
    else:
        _show(look, given["target"])
    raise typer.Exit(exit_code(look.failed))


def _look(given: Given, skill_bank: Path | None, confirmed: bool, skip_access: bool) -> Look:
    from dataclasses import replace

    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.examining import examine, looking_at, resolved_from
    from prefect_tao.preflight.resolve.translating import proofs_from

    catalog, given = open_catalog(skill_bank), completed(StepParameters, given)
    proofs = replace(proofs_from(given), image_confirmed=confirmed)

    async def look() -> Look:
        async with looking_at(catalog, given["target"]) as there:
            known = there.catalog(catalog)
            resolved = resolved_from(known, given if skip_access else await there.with_count(given))
            return await examine(known, resolved, there, proofs, skip_access)

    return asyncio.run(look())


def _show(look: Look, target: str) -> None:
    from prefect_tao.cli.examining import print_findings
    from prefect_tao.runner.inside.configs import config_text

    resolved = look.resolved
    typer.echo(f"{resolved.model} {resolved.action} on {target}")
    typer.echo(f"image: {resolved.image} (from {resolved.image_source})" if resolved.image else "image: none")
    for key, uri in resolved.datasets.items():
        typer.echo(f"data: {key} = {uri}")
    typer.echo("\nspec:\n" + config_text(resolved.spec, "yaml"))
    print_findings(look.gates)
    if look.rendered:
        typer.echo("\nwhat would be sent:\n" + look.rendered)
