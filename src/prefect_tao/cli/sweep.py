"""`prefect-tao sweep`: one action, or one command, with many combinations of values."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_tao.cli.options import Command, Given, Json, RunDir, SkillBank, Verbose, command_given, launches
from prefect_tao.launch.parameters.declared import SweepParameters
from prefect_tao.launch.parameters.derived import completed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.cli.boards import SweepScreen
    from prefect_tao.cli.examining import Look
    from prefect_tao.jobs.points import SweepOutcome
    from prefect_tao.preflight.plans.sweep_plan import Point

EPILOG = """\b
Examples:
  prefect-tao sweep --model tiny --action train --over learning_rate=0.1,0.01 --over batch_size=4,8
  prefect-tao sweep --model tiny --action train --mode random --samples 20 \\
      --over 'learning_rate={min: 0.001, max: 0.5, log: true}' --csv board.csv
  prefect-tao sweep --spec spec.yaml --over train.lr=0.1,0.01 -- python train.py --config {config_path}
"""
SHOWN = 10


@launches(SweepParameters)
def sweep(
    command: Command = None,
    *,
    given: Given,
    skill_bank: SkillBank = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the leaderboard to this file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, show the points, launch nothing.")] = False,
    verbose: Verbose = False,
    run_dir: RunDir = None,
    json_: Json = False,
) -> None:
    """Run an action, or a command, once per point and rank the points. Ctrl-C detaches; jobs go on."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.plans.sweep_plan import plan_points
    from prefect_tao.preflight.resolve.all_gpus import wants_all

    catalog = open_catalog(skill_bank)
    given = completed(SweepParameters, {**given, **(command_given(command, given) if command else {})})
    planned = plan_points(given["over"], given["mode"], given["points"], given["samples"], given["seed"])
    if dry_run:
        _show(planned, asyncio.run(_looks(catalog, given, planned, gates=True)), given, json_)
        return
    # Only the flow has the patience to wait for the count of a target that has jobs of ours and does not answer.
    if given["run_key"] is None or not wants_all(given):
        here = given["run_key"] is None and Target.parse(given["target"]).block is None
        _check_here(asyncio.run(_looks(catalog, given, planned, gates=here)))
    given["run_key"] = given["run_key"] or f"sweep-{token_hex(4)}"
    _run(given, csv, verbose, run_dir, json_)


async def _looks(catalog: Catalog, given: Given, planned: Sequence[Point], gates: bool) -> list[Look]:
    """What the gates find, once for all points that look alike to them. Raises InvalidInput for wrong points.

    Without `gates` the points are only resolved, and the target is asked for nothing but the number of its GPUs.
    """
    from prefect_tao.cli.examining import examine, looking_at
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.plans.sweep_plan import resolve_points, same_to_gates
    from prefect_tao.preflight.resolve.all_gpus import wants_all
    from prefect_tao.preflight.resolve.ask import Resolved
    from prefect_tao.preflight.resolve.resolving import named_platform
    from prefect_tao.preflight.resolve.translating import proofs_from

    platform = named_platform(catalog, Target.parse(given["target"]).platform)
    if not gates and not wants_all(given):
        resolve_points(given, planned, platform, catalog)
        return []
    async with looking_at(catalog, given["target"]) as there:
        known, alike = there.catalog(catalog), dict[str, Resolved]()
        for one in resolve_points(await there.with_count(given), planned, platform, known):
            alike.setdefault(same_to_gates(one), one)
        return [await examine(known, one, there, proofs_from(given)) for one in alike.values() if gates]


def _check_here(looks: Sequence[Look]) -> None:
    """Find what is wrong before Prefect is even started."""
    from prefect_tao.jobs.errors import refusal

    if failed := {one.message: one for look in looks for one in look.failed_here}:
        raise refusal(list(failed.values()))


def _show(planned: Sequence[Point], looks: Sequence[Look], given: Mapping[str, Any], as_json: bool) -> None:
    from prefect_tao.cli.catalog import emit
    from prefect_tao.cli.examining import print_passed
    from prefect_tao.jobs.errors import refusal
    from prefect_tao.jobs.finding import exit_code
    from prefect_tao.preflight.plans.sweep_plan import ranked_by

    failed = {one.message: one for look in looks for one in look.failed}
    metric, direction = ranked_by(given["metric"], given["direction"], looks[0].resolved)
    if as_json:
        points = [dict(point.overrides) for point in planned]
        told = [look.as_json() for look in looks]
        emit({"passed": not failed, "points": points, "metric": metric, "direction": direction, "launches": told})
        raise typer.Exit(exit_code(failed.values()))
    if failed:
        raise refusal(list(failed.values()))
    typer.echo(f"{len(planned)} points" + (f", ranked by {metric} ({direction})" if metric else ", not ranked"))
    for point in planned[:SHOWN]:
        typer.echo(f"  {point.label}")
    if len(planned) > SHOWN:
        typer.echo(f"  and {len(planned) - SHOWN} more")
    typer.echo("\nwhat would be sent for the first:\n" + looks[0].rendered)
    print_passed(looks[0].gates)


# -- the run -----------------------------------------------------------------------------------------------------------


def _run(given: Mapping[str, Any], csv: Path | None, verbose: bool, run_dir: Path | None, as_json: bool) -> None:
    from prefect_tao.cli.boards import SweepScreen
    from prefect_tao.cli.data_files import write_text
    from prefect_tao.cli.running import run_flow
    from prefect_tao.cli.screen import console
    from prefect_tao.jobs.chain_outcome import StepState
    from prefect_tao.jobs.errors import TaoError

    screen = SweepScreen(console(), str(given["run_key"]))
    if csv:
        write_text(csv, "")  # before anything costs, not after
    try:
        outcome: SweepOutcome = run_flow("sweep", screen, verbose, run_dir, **given)
    except TaoError:
        outcome = screen.outcome
        if outcome.points:
            print_board(screen.out, outcome)
            _print_way_on(screen)
        raise
    finally:
        if csv and screen.outcome.points:
            write_text(csv, screen.outcome.as_csv())
    if as_json:
        ranked = outcome.model_copy(update={"points": tuple(outcome.ranked)})
        sys.stdout.write(ranked.model_dump_json(indent=2) + "\n")
    else:
        print_board(screen.out, outcome)
    if outcome.count(StepState.COMPLETE) < len(outcome.points):
        _print_way_on(screen)


def _print_way_on(screen: SweepScreen) -> None:
    screen.out.print("To run what is not complete, and nothing else:")
    for command in screen.way_back():
        screen.out.print(f"  {command}", soft_wrap=True, markup=False)


def print_board(out: Console, outcome: SweepOutcome) -> None:
    """The best points, and how many others there are."""
    rows = outcome.rows()[:SHOWN]
    left_out = {"results"} if any(row["GPU hours"] for row in rows) else {"results", "GPU hours"}
    heads = [key for key in rows[0] if key not in left_out and any(row[key] != "" for row in rows)]
    table = _table(rows, heads)
    unbounded = out.options.update(max_width=10_000)
    fits = out.measure(table, options=unbounded).maximum <= out.width  # half of a job's name is of no use
    out.print(table if fits else _table(rows, [key for key in heads if key != "job"]))
    if len(outcome.points) > SHOWN:
        out.print(f"and {len(outcome.points) - SHOWN} more")
    if (best := outcome.best) is not None:
        out.print(f"best: {best.label}; results in {best.results}", soft_wrap=True, markup=False)
    if not fits:
        out.print("--csv FILE and --json, and a wider terminal, show the name of each point's job", soft_wrap=True)


def _table(rows: Sequence[Mapping[str, Any]], heads: Sequence[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(_cell(row[key])) for key in heads))
    return table


def _cell(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
