"""`prefect-tao automl`: search for the values with which an action, or a command, does best."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_tao.cli.options import Command, Given, Json, RunDir, SkillBank, Verbose, command_given, launches
from prefect_tao.launch.parameters.declared import SearchParameters
from prefect_tao.launch.parameters.derived import completed

if TYPE_CHECKING:
    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.cli.examining import Look
    from prefect_tao.jobs.search_outcome import SearchOutcome
    from prefect_tao.preflight.plans.searches import PlannedSearch

RUN = """\b
Examples:
  prefect-tao automl run --model tiny --action train --max-trials 12 --max-concurrent 4
  prefect-tao automl run --model tiny --action train --parameter learning_rate --algorithm asha --max-epochs 9
  prefect-tao automl run --spec spec.yaml --range lr=0.0001..1 --metric loss --direction minimize \\
      --metric-file metrics.json -- python train.py --config {config_path}
"""
STATUS = """\b
Example:
  prefect-tao automl status my-search --json
"""
BEST = """\b
Example:
  prefect-tao automl best my-search
"""
STOP = """\b
Example:
  prefect-tao automl stop my-search
"""
EXPORT = """\b
Example:
  prefect-tao automl export my-search --output best.yaml
"""
app = typer.Typer(
    help="Search for the values with which an action, or a command, does best.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Key = Annotated[
    str | None,
    typer.Argument(help="Run key or flow run of the search; the newest one when left out."),
]


@launches(SearchParameters)
def run(
    command: Command = None,
    *,
    given: Given,
    skill_bank: SkillBank = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the leaderboard to this file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, show the search, launch nothing.")] = False,
    verbose: Verbose = False,
    run_dir: RunDir = None,
    json_: Json = False,
) -> None:
    """Search, many trials at once, within a budget. Ctrl-C detaches; jobs go on, and the same command goes on too."""
    from prefect_tao.cli.catalog import open_catalog

    catalog = open_catalog(skill_bank)
    given = completed(SearchParameters, {**given, **(command_given(command, given) if command else {})})
    begin(catalog, given, dry_run, csv, verbose, run_dir, json_)


def begin(
    catalog: Catalog,
    given: Given,
    dry_run: bool = False,
    csv: Path | None = None,
    verbose: bool = False,
    run_dir: Path | None = None,
    as_json: bool = False,
) -> None:
    """Check a search, show it, and run it once a person at a terminal agrees. Raises InvalidInput."""
    from prefect_tao.jobs.errors import refusal
    from prefect_tao.jobs.target import Target

    gates = dry_run or (given["run_key"] is None and Target.parse(given["target"]).block is None)
    search, look = asyncio.run(_look(catalog, given, gates))
    failed = [] if look is None else look.failed if dry_run else look.failed_here
    if dry_run:
        _show(search, look, as_json)
        return
    if failed:
        raise refusal(failed)
    if given["run_key"] is None:
        _confirm(search, given, as_json)
        given["run_key"] = f"search-{token_hex(4)}"
    _run(given, csv, verbose, run_dir, as_json)


async def _look(catalog: Catalog, given: Given, gates: bool) -> tuple[PlannedSearch, Look | None]:
    """The search, and what the gates find about its trials. Raises InvalidInput, MissingDependency."""
    from prefect_tao.cli.examining import examine, looking_at
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.plans.searches import plan_search
    from prefect_tao.preflight.resolve.resolving import named_platform
    from prefect_tao.preflight.resolve.translating import proofs_from

    platform = named_platform(catalog, Target.parse(given["target"]).platform)
    if not gates and not _is_asked(given):
        return plan_search(given, platform, catalog), None
    async with looking_at(catalog, given["target"]) as there:
        known = there.catalog(catalog)
        search = await there.with_price(plan_search(await there.with_count(given), platform, known))
        return search, await examine(known, search.base, there, proofs_from(given)) if gates else None


def _is_asked(given: Mapping[str, Any]) -> bool:
    """Whether a person sees the search before it begins."""
    from prefect_tao.cli.prompts import at_terminal

    return given["run_key"] is None and not given["yes"] and at_terminal()


def _confirm(search: PlannedSearch, given: Mapping[str, Any], as_json: bool) -> None:
    """Show the search to a person at a terminal, who may leave it at that."""
    from prefect_tao.preflight.plans.search_words import review_lines

    if as_json or not _is_asked(given):
        return
    typer.echo("\n".join(review_lines(search)), err=True)
    if not typer.confirm("begin the search?", default=True, err=True):
        typer.echo("Nothing was launched.", err=True)
        raise typer.Exit(0)


def _show(search: PlannedSearch, look: Look | None, as_json: bool) -> None:
    """A dry run's answer: what stands in the way, else the search and what would be sent for its first trial."""
    from prefect_tao.cli.catalog import emit
    from prefect_tao.cli.examining import print_passed
    from prefect_tao.jobs.errors import refusal
    from prefect_tao.jobs.finding import exit_code
    from prefect_tao.preflight.plans.search_words import as_json as told
    from prefect_tao.preflight.plans.search_words import review_lines

    assert look is not None  # noqa: S101 - a dry run asks the gates
    if as_json:
        emit({"passed": not look.failed, **told(search), "launch": look.as_json()})
        raise typer.Exit(exit_code(look.failed))
    if look.failed:
        raise refusal(look.failed)
    typer.echo("\n".join(review_lines(search)))
    typer.echo("\nwhat would be sent for the first, with its values:\n" + look.rendered)
    print_passed(look.gates)


def _run(given: Mapping[str, Any], csv: Path | None, verbose: bool, run_dir: Path | None, as_json: bool) -> None:
    from prefect_tao.cli.data_files import write_text
    from prefect_tao.cli.running import run_flow
    from prefect_tao.cli.screen import console
    from prefect_tao.cli.search_screen import SearchScreen
    from prefect_tao.cli.sweep import print_board

    screen = SearchScreen(console(), str(given["run_key"]))
    if csv:
        write_text(csv, "")  # before anything costs, not after
    try:
        outcome: SearchOutcome = run_flow("automl", screen, verbose, run_dir, **given)
    finally:
        if csv and screen.outcome.points:
            write_text(csv, screen.outcome.as_csv())
    if as_json:
        sys.stdout.write(outcome.model_dump_json(indent=2) + "\n")
        return
    print_board(screen.out, outcome)
    for name, said in outcome.evaluations.items():
        screen.out.print(f"{name}: {said}", soft_wrap=True, markup=False)
    if outcome.stopped:
        screen.out.print(f"ended early: {outcome.stopped}", soft_wrap=True, markup=False)
    screen.out.print(f"  prefect-tao automl export {given['run_key']} --output best.yaml", soft_wrap=True, markup=False)


# -- a look at a search ------------------------------------------------------------------------------------------------


def status(key: Key = None, json_: Json = False) -> None:
    """How a search stands, wherever it is led: its trials, the best so far, what it has spent."""
    from prefect_tao.cli.screen import console
    from prefect_tao.cli.search_screen import SearchScreen
    from prefect_tao.cli.sweep import print_board

    found = _board(key)
    if json_:
        sys.stdout.write(found.model_dump_json(indent=2) + "\n")
        return
    screen = SearchScreen(console(), "")
    screen.take(found)
    for line in screen.lines():
        screen.out.print(line, soft_wrap=True)
    if found.points:
        print_board(screen.out, found)
    screen.out.print(f"study {found.study} in {found.storage}", soft_wrap=True, markup=False)


def best(key: Key = None, json_: Json = False) -> None:
    """The best trial of a search: its values, its metric, and where its results are."""
    from prefect_tao.cli.catalog import emit
    from prefect_tao.jobs.errors import InvalidInput

    found = _board(key)
    trial = found.best
    if trial is None:
        raise InvalidInput("no trial of this search has a score yet", "prefect-tao automl status shows how it stands")
    if json_:
        emit({**trial.model_dump(mode="json"), "metric": found.metric, "spec": found.spec, "final": found.final})
        return
    typer.echo(f"trial {trial.number}: {found.metric} {found.score(trial):.5g}")
    for name, value in trial.overrides.items():
        typer.echo(f"  {name}: {value}")
    for name, said in found.evaluations.items():
        typer.echo(f"{name}: {said}")
    typer.echo(f"results in {trial.results}")


def export(
    key: Key = None,
    output: Annotated[Path | None, typer.Option("--output", help="The file to write; else it is printed.")] = None,
    json_: Json = False,
) -> None:
    """The best spec as a file that --spec takes, without what only set the length of trials."""
    from prefect_tao.cli.catalog import emit
    from prefect_tao.cli.data_files import write_text
    from prefect_tao.jobs.errors import InvalidInput

    found = _board(key)
    if not found.spec:
        raise InvalidInput("no trial of this search has a score yet", "prefect-tao automl status shows how it stands")
    if output:
        write_text(output, found.spec_yaml())
        typer.echo(f"wrote {output}", err=True)
    elif json_:
        emit(found.spec)
    else:
        typer.echo(found.spec_yaml().rstrip())


def stop(key: Key = None, json_: Json = False) -> None:
    """End a search early: trials that run are ended, and the best so far is kept."""
    from prefect_tao.cli.catalog import emit
    from prefect_tao.cli.running import use_prefect

    found = _board(key)
    use_prefect()
    from prefect_tao.tasks.stopping import ask_to_stop

    asyncio.run(ask_to_stop(found.flow_run_id, "a person stopped it"))
    if json_:
        emit({"flow_run_id": found.flow_run_id, "asked": True})
    else:
        typer.echo("the search was asked to stop; it ends its trials within seconds and keeps the best")


def _board(key: str | None) -> SearchOutcome:
    """The board of a search: of this machine, else as Prefect has it. Raises InvalidInput."""
    from prefect_tao.cli.running import use_prefect
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.jobs.search_board import SearchFolder, newest_board

    found = newest_board(key) if key is None else SearchFolder(key).read() or newest_board(key)
    if found is None:
        use_prefect()
        from prefect_tao.tasks.artifacts.kept_board import board_in_prefect

        found = asyncio.run(board_in_prefect(key))
    if found is None:
        raise InvalidInput(
            f"there is no search {key}, neither on this machine nor in Prefect" if key else "there was no search yet",
            "give the run key or the flow run's id; PREFECT_API_URL names the server that knows it",
        )
    return found


app.command("run", epilog=RUN)(run)
app.command("status", epilog=STATUS)(status)
app.command("best", epilog=BEST)(best)
app.command("stop", epilog=STOP)(stop)
app.command("export", epilog=EXPORT)(export)
