"""`prefect-tao run`: an action of a model, or any command, on one target."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_tao.cli import options as words
from prefect_tao.cli.spread import spread

if TYPE_CHECKING:
    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.cli.examining import Look
    from prefect_tao.preflight.resolve.ask import Resolved

EPILOG = """\b
Examples:
  prefect-tao run -- python train.py --epochs 3
  prefect-tao run --gpus 1 --time-limit 4h --output out -- ./train.sh
  prefect-tao run --spec spec.yaml --set train.num_epochs=20 \\
      --output results_dir -- 'mymodel train -e {config_path}'
  prefect-tao run --model tiny --action train --set num_epochs=3
"""


@dataclass(frozen=True)
class CommandOptions:
    """What the catalog tells of an action, and a person of a command."""

    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="<key=value>", help="Argument KEY=VALUE, appended as --KEY VALUE (repeat)."),
    ] = None
    flag: Annotated[list[str] | None, typer.Option(metavar="<flag>", help="Flag, appended as --FLAG (repeat).")] = None
    input_: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="<path=location>", help="PATH=LOCATION; with a spec KEY[:file|folder] (repeat)."
        ),
    ] = None
    output: Annotated[
        list[str] | None, typer.Option(metavar="<path>", help="PATH to keep; with a spec KEY[:file|folder] (repeat).")
    ] = None
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="<pattern>", help="Pattern of output files not to keep (repeat).")
    ] = None
    config_format: Annotated[str, typer.Option(help="yaml, toml or json.")] = "yaml"
    workdir: Annotated[Path | None, typer.Option(help="Folder to start in; here, for process.")] = None

    def parameters(self, has_spec: bool) -> dict[str, Any]:
        """As the flow takes them; beside a spec or arguments, inputs and outputs are keys. Raises InvalidInput."""
        from prefect_tao.cli.parsing import build_inputs, build_outputs, pairs, parse_value

        args = {key: parse_value(text) for key, text in pairs(self.arg or [], "--arg").items()}
        plain = not has_spec and not self.arg and not self.flag
        return {
            "args": args if self.arg or self.flag else None,
            "flags": self.flag or [],
            "inputs": build_inputs(self.input_ or [], plain),
            "outputs": build_outputs(self.output or [], plain),
            "upload_excludes": self.exclude or [],
            "config_format": self.config_format,
            "workdir": str(self.workdir.absolute()) if self.workdir else None,
        }


@spread
def run(
    command: Annotated[list[str] | None, typer.Argument(help="What to run, after --.", show_default=False)] = None,
    *,
    model: words.Model = None,
    action: words.Action = None,
    options: words.Options,
    own: CommandOptions,
    run_key: Annotated[str | None, typer.Option(help="Same key, same job: attach instead of launching again.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Launch, print the handle, leave.")] = False,
    interval: Annotated[float, typer.Option(help="Minutes between status lines in Prefect's log.")] = 5.0,
    logs: Annotated[bool, typer.Option("--logs", help="Show the job's output while it runs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, show what would be sent, launch nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Prefect's own log.")] = False,
    run_dir: words.RunDir = None,
    json_: words.Json = False,
) -> None:
    """Run an action of a model, or any command, launched exactly once. Ctrl-C detaches; the job goes on."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.examining import parameters
    from prefect_tao.cli.prompts import Wanted, complete

    catalog = open_catalog(options.skill_bank)
    if not command:
        attached = None if dry_run else not detach
        wanted = complete(catalog, Wanted(model or "", action or "", options, attached, interval))
        options, interval, detach = wanted.options, wanted.minutes, detach or wanted.attached is False
    has_spec = options.spec is not None or bool(options.set_)
    given = {"model": model, "action": action, **parameters(options), **own.parameters(has_spec)}
    if command:
        given["command"] = command[0] if len(command) == 1 else shlex.join(command)
        if options.where.startswith(words.HERE):
            given["workdir"] = given["workdir"] or os.getcwd()
    _resolved(open_catalog(), given)  # raises for what no target could run
    if dry_run:
        _show(_look(given), json_)
        return
    _check_here(given, attach=run_key is not None)
    given |= {"run_key": run_key, "long_running_enabled": not detach, "status_interval_minutes": interval}
    _run(given, detach, logs, verbose, run_dir, json_)


def _resolved(catalog: Catalog, given: dict[str, Any]) -> Resolved:
    from prefect_tao.cli.examining import resolved_from
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.resolve.command_launch import plain_launch
    from prefect_tao.preflight.resolve.parameters import request_from
    from prefect_tao.preflight.resolve.resolving import named_platform

    if given.get("command") is None:
        return resolved_from(catalog, given)
    request = request_from(given)
    return plain_launch(request, named_platform(catalog, Target.parse(given["target"]).platform))


def _look(given: dict[str, Any]) -> Look:
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.examining import catalog_for, examine, with_count
    from prefect_tao.preflight.resolve.parameters import proofs_from

    async def look() -> Look:
        catalog = await catalog_for(open_catalog(), given["target"])
        resolved = _resolved(catalog, await with_count(given))
        return await examine(catalog, resolved, given["target"], proofs_from(given))

    return asyncio.run(look())


def _check_here(given: dict[str, Any], attach: bool) -> None:
    """Find what is wrong before Prefect is even started. What needs a saved block is checked by the flow."""
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.jobs.target import Target

    if attach or Target.parse(given["target"]).block is not None:
        return
    if failed := _look(given).failed_here:
        raise InvalidInput.of(failed)


def _show(look: Look, as_json: bool) -> None:
    """A dry run's answer: all of it for programs; for people what stands in the way, else what would be sent."""
    from prefect_tao.cli.catalog import emit
    from prefect_tao.cli.examining import print_passed
    from prefect_tao.jobs.errors import InvalidInput

    if as_json:
        emit(look.as_json())
        raise typer.Exit(2 if look.failed else 0)
    if look.failed:
        raise InvalidInput.of(look.failed)
    typer.echo(look.rendered)
    print_passed(look.gates)


def _run(given: dict[str, Any], detach: bool, logs: bool, verbose: bool, run_dir: Path | None, as_json: bool) -> None:
    from prefect_tao.cli.running import run_flow
    from prefect_tao.cli.screen import Screen, console, logs_command, print_outcome, program
    from prefect_tao.jobs.errors import JobFailed

    screen = Screen(console(), logs=logs)
    try:
        result = run_flow("run", screen, verbose, run_dir, **given)
    except JobFailed as error:
        if as_json and error.outcome:
            sys.stdout.write(error.outcome.model_dump_json(indent=2) + "\n")
        raise
    if as_json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    elif detach:
        screen.out.print(f"launched {result.name}; it goes on by itself", soft_wrap=True)
        screen.out.print(f"  {program()} watch {result.name} --target {given['target']}", soft_wrap=True)
    else:
        print_outcome(screen.out, result)
        screen.out.print(f"  {logs_command(result.handle)}", soft_wrap=True)
