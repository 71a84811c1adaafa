"""`prefect-tao run`: an action of a model, or any command, on one target."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_tao.cli import words

if TYPE_CHECKING:
    from prefect_tao.preflight.ask import Resolved

EPILOG = """\b
Examples:
  prefect-tao run -- python train.py --epochs 3
  prefect-tao run --gpus 1 --time-limit 4h --output out -- ./train.sh
  prefect-tao run --spec spec.yaml --set train.num_epochs=20 \\
      --output results_dir -- 'mymodel train -e {config_path}'
  prefect-tao run --model tiny --action train --set num_epochs=3
"""


def run(
    command: Annotated[list[str] | None, typer.Argument(help="What to run, after --.", show_default=False)] = None,
    target: words.OpenTarget = None,
    model: words.Model = None,
    action: words.Action = None,
    train_root: words.TrainRoot = None,
    eval_root: words.EvalRoot = None,
    inference_root: words.InferenceRoot = None,
    calibration_root: words.CalibrationRoot = None,
    spec: words.Spec = None,
    set_: words.Set = None,
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
    image: words.Image = None,
    confirm_image: words.ConfirmImage = False,
    gpus: words.Gpus = None,
    nodes: words.Nodes = None,
    cpus: Annotated[int | None, typer.Option(help="CPU cores per node.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory per node: 64G.")] = None,
    time_limit: words.TimeLimit = None,
    shm: Annotated[str | None, typer.Option(help="Size of /dev/shm: 8G.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for the job; never a secret (repeat).")] = None,
    secret: words.Secret = None,
    workdir: Annotated[Path | None, typer.Option(help="Folder to start in; here, for process.")] = None,
    automl_policy: words.Policy = "on",
    mount_proof: words.MountProof = None,
    json_required_field: words.JsonField = None,
    run_key: Annotated[str | None, typer.Option(help="Same key, same job: attach instead of launching again.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Launch, print the handle, leave.")] = False,
    interval: Annotated[float, typer.Option(help="Minutes between status lines in Prefect's log.")] = 5.0,
    logs: Annotated[bool, typer.Option("--logs", help="Show the job's output while it runs.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, show what would be sent, launch nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show Prefect's own log.")] = False,
    json_: words.Json = False,
) -> None:
    """Run an action of a model, or any command, launched exactly once. Ctrl-C detaches; the job goes on."""
    from prefect_tao.cli.asking import HERE, Wanted, complete
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.examining import required_fields
    from prefect_tao.cli.options import build_inputs, build_outputs, build_spec, pairs, parse_value

    here = (target or HERE).startswith(HERE)
    args = {key: parse_value(text) for key, text in pairs(arg or [], "--arg").items()} if arg or flag else None
    plain = spec is None and not set_ and args is None
    given: dict[str, Any] = {
        "target": target or HERE,
        "model": model,
        "action": action,
        "image": image,
        "env": pairs(env or [], "--env"),
        "secrets": secret or [],
        "gpus": gpus,
        "nodes": nodes,
        "cpus": cpus,
        "memory": memory,
        "time_limit": time_limit,
        "shm": shm,
    }
    roots = {"train": train_root, "eval": eval_root, "inference": inference_root, "calibration": calibration_root}
    proofs = {
        "mount_proof": pairs(mount_proof or [], "--mount-proof"),
        "json_required_fields": required_fields(json_required_field or []),
    }
    if command:
        given |= {
            "command": command[0] if len(command) == 1 else shlex.join(command),
            "specs": build_spec(spec, set_ or []),
            "args": args,
            "flags": flag or [],
            "inputs": build_inputs(input_ or [], plain),
            "outputs": build_outputs(output or [], plain),
            "upload_excludes": exclude or [],
            "config_format": config_format,
            "workdir": str(workdir.absolute()) if workdir else os.getcwd() if here else None,
        }
        resolved = _resolve_command(given)
    else:
        wanted = complete(
            open_catalog(),
            Wanted(
                model or "",
                action or "",
                target,
                image,
                image_confirmed=confirm_image,
                roots=roots,
                spec=spec,
                sets=tuple(set_ or ()),
                gpus=gpus,
                nodes=nodes,
                secrets=tuple(secret or ()),
                attached=None if dry_run else not detach,
                minutes=interval,
            ),
        )
        confirm_image, roots = wanted.image_confirmed, dict(wanted.roots)
        detach, interval = detach or wanted.attached is False, wanted.minutes
        given |= {"target": wanted.where, "image": wanted.image, "gpus": wanted.gpus, "nodes": wanted.nodes}
        resolved, overrides = _resolve_model(given, roots, spec, wanted.sets, automl_policy)
        given |= overrides | {f"{source}_root": root for source, root in roots.items() if root}
        given |= {"automl_policy": automl_policy}
    confirmed = bool(given["image"] or confirm_image or command)
    asyncio.run(
        _check_here(
            resolved, given["target"], attach=run_key is not None, show=dry_run, confirmed=confirmed, proofs=proofs
        )
    )
    if not dry_run:
        given |= {"run_key": run_key, "long_running_enabled": not detach, "status_interval_minutes": interval}
        _run({**given, **proofs, "confirm_image": confirm_image}, detach, logs, verbose, json_)


def _resolve_command(given: dict[str, Any]) -> Resolved:
    from prefect_tao.cli.catalog import named_platform, open_catalog
    from prefect_tao.jobs.request import JobRequest
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.plain import plain_launch

    shape = ("gpus", "nodes", "cpus", "memory", "time_limit", "shm")
    resources = {name: given[name] for name in shape if given[name] is not None}
    fields = {name: value for name, value in given.items() if name not in (*shape, "target")}
    request = JobRequest.build(**fields, resources=resources)
    return plain_launch(request, named_platform(open_catalog(), Target.parse(given["target"]).platform))


def _resolve_model(
    given: dict[str, Any], roots: dict[str, list[str] | None], spec: Path | None, sets: Sequence[str], policy: str
) -> tuple[Resolved, dict[str, Any]]:
    """What the ask resolves to, and the spec parameters with which the flow resolves it again."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.examining import resolved_from
    from prefect_tao.cli.options import pairs, parse_value, read_spec

    rest = {
        name: value for name, value in given.items() if name not in ("model", "action", "target", "image", "secrets")
    }
    resolved = resolved_from(
        open_catalog(),
        model=given["model"],
        action=given["action"],
        target=given["target"],
        image=given["image"],
        roots=roots,
        spec=spec,
        overrides=sets,
        secrets=given["secrets"],
        policy=policy,
        **rest,
    )
    overrides = {key: parse_value(text) for key, text in pairs(sets, "--set").items()}
    return resolved, {"specs": read_spec(spec) if spec else None, "overrides": overrides}


async def _check_here(
    resolved: Resolved, target: str, attach: bool, show: bool, confirmed: bool, proofs: dict[str, Any]
) -> None:
    """Find what is wrong before Prefect is even started. What needs a saved block is checked by the flow."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.examining import examine
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.jobs.finding import blocking
    from prefect_tao.jobs.target import Target

    if Target.parse(target).block is not None and not show:
        return
    if attach and not show:
        return
    platform, gates = await examine(open_catalog(), resolved, target, image_confirmed=confirmed, **proofs)
    # A secret may still come from a Prefect Secret block, which only the flow can look up.
    failed = [one for name, findings in gates.items() if name != "model_credentials" for one in blocking(findings)]
    if failed:
        raise InvalidInput.of(failed)
    for finding in blocking(gates["model_credentials"]) if show else ():
        typer.echo(f"not found here: {finding.message}; {finding.remedy}", err=True)
    if show and platform is not None and resolved.request is not None:
        typer.echo(platform.render(resolved.request, "0" * 16, 1).text)


def _run(given: dict[str, Any], detach: bool, logs: bool, verbose: bool, as_json: bool) -> None:
    from prefect_tao.cli.running import run_flow
    from prefect_tao.cli.screen import Screen, console, print_outcome, program

    screen = Screen(console(), logs=logs)
    result = run_flow("run", screen, verbose, **given)
    if as_json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    elif detach:
        screen.out.print(f"launched {result.name}; it goes on by itself", soft_wrap=True)
        screen.out.print(f"  {program()} watch {result.name} --target {given['target']}", soft_wrap=True)
    else:
        print_outcome(screen.out, result)
