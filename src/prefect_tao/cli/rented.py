"""`prefect-tao brev sweep`: rented instances that no one waits for any more, shown and given back."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from prefect_tao.cli.jobs import JsonOption

if TYPE_CHECKING:
    from prefect_tao.platforms.brev.driver import BrevPlatform
    from prefect_tao.platforms.brev.leftovers import Leftover

brev = typer.Typer(help="Instances that were rented on Brev.", no_args_is_help=True, rich_markup_mode=None)
SWEEP = """\b
Examples:
  prefect-tao brev sweep --target brev/spot
  prefect-tao brev sweep --target brev/spot --yes --json
"""


@brev.callback()
def _group() -> None:
    """Instances that were rented on Brev."""


@brev.command("sweep", epilog=SWEEP)
def sweep(
    target: Annotated[str, typer.Option(help="The block whose instances are meant: brev/<block name>.")] = "brev",
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show every instance that was made for a job of yours, and delete those whose job is over or never began.

    What runs, what is being launched and what others have made is left alone. Exits with 1 when one could not be
    deleted.
    """
    rows = asyncio.run(_sweep(target, yes, json_))
    if json_:
        typer.echo(json.dumps(rows, indent=2))
    if any(row["deleted"] is False for row in rows):
        raise typer.Exit(1)


async def _sweep(target: str, yes: bool, json_: bool) -> list[dict[str, object]]:
    from prefect_tao.cli.whereabouts import open_any
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.platforms.brev.driver import BrevPlatform
    from prefect_tao.platforms.brev.leftovers import leftovers

    platform = await open_any(target)
    try:
        if not isinstance(platform, BrevPlatform):
            raise InvalidInput(f"{target} rents no instances of Brev", "name a target such as brev/spot")
        found = await leftovers(platform)
        if not json_:
            _show(found)
        idle = [one for one in found if one.may_go]
        wanted = bool(idle) and (yes or (not json_ and _agreed(len(idle))))
        return [
            {**one.as_row(), "deleted": await _deleted(platform, one, json_) if wanted and one.may_go else None}
            for one in found
        ]
    finally:
        await platform.close()


def _show(found: list[Leftover]) -> None:
    if not found:
        typer.echo("no instance was made for a job of yours")
    for one in found:
        price = f", ${one.price:.2f} an hour" if one.price else ""
        typer.echo(f"{one.instance}  {one.status}{price}  {'can go' if one.may_go else 'stays'}: {one.why}")


def _agreed(count: int) -> bool:
    from prefect_tao.cli.prompts import at_terminal

    what = "1 instance" if count == 1 else f"{count} instances"
    if not at_terminal():
        typer.echo(f"{what} can be deleted: add --yes", err=True)
        return False
    return typer.confirm(f"Delete {what}?", err=True)


async def _deleted(platform: BrevPlatform, one: Leftover, json_: bool) -> bool:
    from prefect_tao.jobs.errors import TaoError
    from prefect_tao.platforms.brev.leftovers import give_back

    try:
        await give_back(platform, one)
    except TaoError as error:
        typer.echo(f"error: {error}", err=True)
        return False
    if not json_:
        typer.echo(f"{one.instance} is deleted")
    return True
