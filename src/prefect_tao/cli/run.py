"""`prefect-tao run`: one command on one target."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

EPILOG = """\b
Examples:
  prefect-tao run -- python train.py --epochs 3
  prefect-tao run --gpus 1 --time-limit 4h --output out -- ./train.sh
  prefect-tao run --spec spec.yaml --set train.num_epochs=20 \\
      --output results_dir -- 'mymodel train -e {config_path}'
"""


def run(
    command: Annotated[list[str], typer.Argument(help="What to run, after --.", show_default=False)],
    target: Annotated[str, typer.Option(help="Where: process, or <platform>/<block name>.")] = "process",
    spec: Annotated[Path | None, typer.Option(help="Spec file; {config_path} in the command names its copy.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Spec value: train.optim.lr=0.001 (repeat).")] = None,
    arg: Annotated[list[str] | None, typer.Option(help="Argument KEY=VALUE, appended as --KEY VALUE (repeat).")] = None,
    flag: Annotated[list[str] | None, typer.Option(help="Flag, appended as --FLAG (repeat).")] = None,
    input_: Annotated[
        list[str] | None, typer.Option("--input", help="PATH=LOCATION; with a spec KEY[:file|folder] (repeat).")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option(help="PATH to keep; with a spec KEY[:file|folder] (repeat).")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Pattern of output files not to keep (repeat).")] = None,
    config_format: Annotated[str, typer.Option(help="yaml, toml or json.")] = "yaml",
    image: Annotated[str | None, typer.Option(help="Container image.")] = None,
    gpus: Annotated[int, typer.Option(help="GPUs per node.")] = 0,
    nodes: Annotated[int, typer.Option(help="Number of nodes.")] = 1,
    cpus: Annotated[int | None, typer.Option(help="CPU cores per node.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory per node: 64G.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="Wall time of one attempt: 4h.")] = None,
    shm: Annotated[str | None, typer.Option(help="Size of /dev/shm: 8G.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the job; never a secret (repeat).")] = None,
    secret: Annotated[list[str] | None, typer.Option(help="NAME of a secret from your environment (repeat).")] = None,
    workdir: Annotated[Path | None, typer.Option(help="Folder to start in; here, for process.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name, for labels.")] = None,
    action: Annotated[str | None, typer.Option(help="Action name; a train is checked for real progress.")] = None,
    run_key: Annotated[str | None, typer.Option(help="Same key, same job: attach instead of launching again.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Launch, print the handle, leave.")] = False,
    interval: Annotated[float, typer.Option(help="Minutes between status lines in Prefect's log.")] = 5.0,
    logs: Annotated[bool, typer.Option("--logs", help="Show the job's output while it runs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, show what would be sent, launch nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Prefect's own log.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="The outcome as JSON on standard output.")] = False,
) -> None:
    """Run one command as a Prefect flow, launched exactly once. Ctrl-C detaches; the job goes on."""
    from prefect_tao.cli.options import build_inputs, build_outputs, build_spec, pairs, parse_value
    from prefect_tao.jobs.request import JobRequest

    specs = build_spec(spec, set_ or [])
    args = {key: parse_value(text) for key, text in pairs(arg or [], "--arg").items()} if arg or flag else None
    plain = specs is None and args is None
    fields: dict[str, Any] = {
        "command": command[0] if len(command) == 1 else shlex.join(command),
        "specs": specs,
        "args": args,
        "flags": flag or [],
        "inputs": build_inputs(input_ or [], plain),
        "outputs": build_outputs(output or [], plain),
        "upload_excludes": exclude or [],
        "config_format": config_format,
        "image": image,
        "env": pairs(env or [], "--env"),
        "secrets": secret or [],
        "workdir": str(workdir.absolute()) if workdir else os.getcwd() if target.startswith("process") else None,
        "model": model,
        "action": action,
    }
    resources = {"gpus": gpus, "nodes": nodes, "cpus": cpus, "memory": memory, "time_limit": time_limit, "shm": shm}
    request = JobRequest.build(**fields, resources=resources)
    asyncio.run(_check_here(request, target, attach=run_key is not None, show=dry_run))
    if not dry_run:
        _run(fields | resources, target, run_key, detach, interval, logs, verbose, json_)


async def _check_here(request: Any, target: str, attach: bool, show: bool) -> None:
    """Find what is wrong before Prefect is even started. What needs a saved block is checked by the flow."""
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.jobs.finding import blocking
    from prefect_tao.jobs.target import Target
    from prefect_tao.platforms import known, open_platform
    from prefect_tao.preflight import check_launch

    parsed = Target.parse(target)
    known(parsed.platform)
    if parsed.block is not None and not show:
        return
    platform = open_platform(target)
    if not attach and (failed := blocking(await check_launch(platform, request, []))):
        raise InvalidInput.of(failed)
    if show:
        typer.echo(platform.render(request, "0" * 16, 1).text)


def _run(
    fields: dict[str, Any],
    target: str,
    run_key: str | None,
    detach: bool,
    interval: float,
    logs: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    from prefect_tao.cli.running import run_flow
    from prefect_tao.cli.screen import Screen, console, print_outcome, program

    screen = Screen(console(), logs=logs)
    result = run_flow(
        "run",
        screen,
        verbose,
        **fields,
        target=target,
        run_key=run_key,
        long_running_enabled=not detach,
        status_interval_minutes=interval,
    )
    if as_json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    elif detach:
        screen.out.print(f"launched {result.name}; it goes on by itself", soft_wrap=True)
        screen.out.print(f"  {program()} watch {result.name} --target {target}", soft_wrap=True)
    else:
        print_outcome(screen.out, result)
