"""`prefect-tao run`: an action of a model, or any command, on one target."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_tao.cli.automl import begin
from prefect_tao.cli.options import Command, Given, Json, RunDir, SkillBank, Verbose, command_given, launches
from prefect_tao.launch.parameters.declared import RunParameters, SearchParameters
from prefect_tao.launch.parameters.derived import completed

if TYPE_CHECKING:
    from pydantic import BaseModel

    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.cli.examining import Look

EPILOG = """\b
Examples:
  prefect-tao run -- python train.py --epochs 3
  prefect-tao run --gpus 1 --time-limit 4h --output out -- ./train.sh
  prefect-tao run --spec spec.yaml --set train.num_epochs=20 \\
      --output results_dir -- 'mymodel train -e {config_path}'
  prefect-tao run --model tiny --action train --set num_epochs=3
"""


@launches(RunParameters)
def run(
    command: Command = None,
    *,
    given: Given,
    skill_bank: SkillBank = None,
    logs: Annotated[bool, typer.Option("--logs", help="Show the job's output while it runs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, show what would be sent, launch nothing.")] = False,
    verbose: Verbose = False,
    run_dir: RunDir = None,
    json_: Json = False,
) -> None:
    """Run an action of a model, or any command, launched exactly once. Ctrl-C detaches; the job goes on."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.prompts import complete
    from prefect_tao.preflight.resolve.policy import has_budget, is_search

    catalog = open_catalog(skill_bank)
    given |= command_given(command, given) if command else complete(catalog, given, launches=not dry_run)
    given = completed(RunParameters, given)
    _check_names(open_catalog(), given)
    if has_budget(given) and is_search(catalog, given):
        begin(catalog, _as_search(given), dry_run, None, verbose, run_dir, json_)
        return
    if dry_run:
        _show(_look(given), json_)
        return
    _check_here(given)
    _run(given, logs, verbose, run_dir, json_)


def _as_search(given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the search that a launch becomes. Raises InvalidInput for what no search can do."""
    from prefect_tao.jobs.errors import InvalidInput

    if not given["long_running_enabled"]:
        raise InvalidInput("a search stays with its trials to the end", "leave --detach out; Ctrl-C leaves it running")
    return completed(SearchParameters, given)


def _check_names(catalog: Catalog, given: dict[str, Any]) -> None:
    """Raises InvalidInput for what no target could run, before anything is started or reached."""
    from prefect_tao.preflight.resolve.model_launch import choose
    from prefect_tao.preflight.resolve.resolving import resolve_given
    from prefect_tao.preflight.resolve.translating import ask_from

    if given["command"] is None:
        choose(catalog, ask_from(given))
    else:
        resolve_given(given, catalog)


def _look(given: dict[str, Any]) -> Look:
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.examining import examine, looking_at
    from prefect_tao.preflight.resolve.resolving import resolve_given
    from prefect_tao.preflight.resolve.translating import proofs_from

    async def look() -> Look:
        async with looking_at(open_catalog(), given["target"]) as there:
            catalog = there.catalog(open_catalog())
            resolved = resolve_given(await there.with_count(given), catalog)
            return await examine(catalog, resolved, there, proofs_from(given))

    return asyncio.run(look())


def _check_here(given: dict[str, Any]) -> None:
    """Find what is wrong before Prefect is even started. What needs a saved block is checked by the flow."""
    from prefect_tao.jobs.errors import refusal
    from prefect_tao.jobs.target import Target

    if given["run_key"] is not None or Target.parse(given["target"]).block is not None:
        return
    if failed := _look(given).failed_here:
        raise refusal(failed)


def _show(look: Look, as_json: bool) -> None:
    """A dry run's answer: all of it for programs; for people what stands in the way, else what would be sent."""
    from prefect_tao.cli.catalog import emit
    from prefect_tao.cli.examining import print_passed
    from prefect_tao.jobs.errors import refusal
    from prefect_tao.jobs.finding import exit_code

    if as_json:
        emit(look.as_json())
        raise typer.Exit(exit_code(look.failed))
    if look.failed:
        raise refusal(look.failed)
    typer.echo(look.rendered)
    print_passed(look.gates)


def _run(given: dict[str, Any], logs: bool, verbose: bool, run_dir: Path | None, as_json: bool) -> None:
    from prefect_tao.cli.running import run_flow
    from prefect_tao.cli.screen import Screen, console, logs_command, print_outcome, program
    from prefect_tao.jobs.errors import JobFailed
    from prefect_tao.jobs.handle import JobHandle

    screen = Screen(console(), logs=logs)
    try:
        result = run_flow("run", screen, verbose, run_dir, **given)
    except JobFailed as error:
        if as_json and error.outcome:
            _write(error.outcome, error.outcome.handle.name, screen.flow_run_id)
        raise
    if as_json:
        _write(result, result.name if isinstance(result, JobHandle) else result.handle.name, screen.flow_run_id)
    elif not given["long_running_enabled"]:
        screen.out.print(f"launched {result.name}; it keeps running on its own", soft_wrap=True)
        screen.out.print(f"  {program()} watch {result.name} --target {given['target']}", soft_wrap=True)
    else:
        print_outcome(screen.out, result, with_words=not logs)
        screen.out.print(f"  {logs_command(result.handle)}", soft_wrap=True)


def _write(result: BaseModel, name: str, flow_run_id: str) -> None:
    """A result for programs, with the names by which job and run are found again."""
    from prefect_tao.cli.catalog import emit

    emit({"name": name, "flow_run_id": flow_run_id, **result.model_dump(mode="json")})
