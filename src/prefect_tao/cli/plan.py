"""`prefect-tao preflight | plan`: everything that can be known about a launch, with nothing launched or written."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from prefect_tao.cli import words
from prefect_tao.cli.catalog import emit

ModelArgument = Annotated[str, typer.Argument(help="Model, by name, alias, arch or hub id.", show_default=False)]
ActionArgument = Annotated[str, typer.Argument(help="Its action, such as train.", show_default=False)]
PREFLIGHT = """\b
Example:
  prefect-tao preflight tiny train --target process
  prefect-tao preflight dino train --target slurm/polar --train-root /lustre/data/train --automl-policy off
"""
PLAN = """\b
Example:
  prefect-tao plan tiny train --set num_epochs=3
"""


def preflight(
    model: ModelArgument,
    action: ActionArgument,
    target: words.Target = "process",
    train_root: words.TrainRoot = None,
    eval_root: words.EvalRoot = None,
    inference_root: words.InferenceRoot = None,
    calibration_root: words.CalibrationRoot = None,
    spec: words.Spec = None,
    set_: words.Set = None,
    path: Annotated[list[str] | None, typer.Option(help="LABEL=PATH to look at besides (repeat).")] = None,
    json_required_field: words.JsonField = None,
    mount_proof: words.MountProof = None,
    image: words.Image = None,
    confirm_image: words.ConfirmImage = False,
    gpus: words.Gpus = None,
    nodes: words.Nodes = None,
    time_limit: words.TimeLimit = None,
    secret: words.Secret = None,
    automl_policy: words.Policy = "on",
    skip_platform_access: Annotated[
        bool, typer.Option("--skip-platform-access", help="Ask nothing outside; only for a dry look at a set-up.")
    ] = False,
    skill_bank: words.SkillBank = None,
    json_: words.Json = False,
) -> None:
    """Check the seven gates of a launch. Ends with 0 when all pass, with 2 when one does not."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.examining import as_json, examine, print_findings, required_fields, resolved_from
    from prefect_tao.cli.options import pairs
    from prefect_tao.jobs.finding import blocking

    catalog = open_catalog(skill_bank)
    resolved = resolved_from(
        catalog,
        model=model,
        action=action,
        target=target,
        image=image,
        roots={"train": train_root, "eval": eval_root, "inference": inference_root, "calibration": calibration_root},
        spec=spec,
        overrides=set_ or [],
        secrets=secret or [],
        policy=automl_policy,
        gpus=gpus,
        nodes=nodes,
        time_limit=time_limit,
    )
    _, gates = asyncio.run(
        examine(
            catalog,
            resolved,
            target,
            image_confirmed=bool(image or confirm_image),
            mount_proof=pairs(mount_proof or [], "--mount-proof"),
            json_required_fields=required_fields(json_required_field or []),
            extra_paths=pairs(path or [], "--path"),
            skip_access=skip_platform_access,
        )
    )
    failed = [finding for findings in gates.values() for finding in blocking(findings)]
    if json_:
        emit({"passed": not failed, "model": resolved.model, "action": resolved.action, "gates": as_json(gates)})
    else:
        print_findings(gates)
        typer.echo(f"preflight {'failed: ' + str(len(failed)) + ' to mend' if failed else 'passed'}")
    raise typer.Exit(2 if failed else 0)


def plan(
    model: ModelArgument,
    action: ActionArgument,
    target: words.OpenTarget = None,
    train_root: words.TrainRoot = None,
    eval_root: words.EvalRoot = None,
    inference_root: words.InferenceRoot = None,
    calibration_root: words.CalibrationRoot = None,
    spec: words.Spec = None,
    set_: words.Set = None,
    image: words.Image = None,
    gpus: words.Gpus = None,
    nodes: words.Nodes = None,
    time_limit: words.TimeLimit = None,
    secret: words.Secret = None,
    automl_policy: words.Policy = "on",
    skill_bank: words.SkillBank = None,
    json_: words.Json = False,
) -> None:
    """Show what a launch would be: image, data, spec, findings and the text that would be sent. Changes nothing."""
    from prefect_tao.cli.asking import Wanted, complete
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.cli.examining import as_json, examine, print_findings, resolved_from
    from prefect_tao.jobs.finding import blocking
    from prefect_tao.runner.program import config_text

    catalog = open_catalog(skill_bank)
    wanted = complete(
        catalog,
        Wanted(
            model,
            action,
            target,
            image,
            roots={
                "train": train_root,
                "eval": eval_root,
                "inference": inference_root,
                "calibration": calibration_root,
            },
            spec=spec,
            sets=tuple(set_ or ()),
            gpus=gpus,
            nodes=nodes,
            secrets=tuple(secret or ()),
        ),
    )
    resolved = resolved_from(
        catalog,
        model=model,
        action=action,
        target=wanted.where,
        image=wanted.image,
        roots=wanted.roots,
        spec=spec,
        overrides=wanted.sets,
        secrets=wanted.secrets,
        policy=automl_policy,
        gpus=wanted.gpus,
        nodes=wanted.nodes,
        time_limit=time_limit,
    )
    platform, gates = asyncio.run(examine(catalog, resolved, wanted.where, image_confirmed=True))
    text = platform.render(resolved.request, "0" * 16, 1).text if platform and resolved.request else ""
    failed = [finding for findings in gates.values() for finding in blocking(findings)]
    if json_:
        emit({**resolved.model_dump(mode="json"), "gates": as_json(gates), "rendered": text, "passed": not failed})
    else:
        typer.echo(f"{resolved.model} {resolved.action} on {wanted.where}")
        typer.echo(f"image: {resolved.image or 'none'} (from {resolved.image_source})")
        for key, uri in resolved.datasets.items():
            typer.echo(f"data: {key} = {uri}")
        typer.echo("\nspec:\n" + config_text(resolved.spec, "yaml"))
        print_findings(gates)
        if text:
            typer.echo("\nwhat would be sent:\n" + text)
    raise typer.Exit(2 if failed else 0)
