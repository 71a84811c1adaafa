"""`prefect-tao ls | check | replicas | why`: paths as jobs see them, the parts of a job, and why one failed."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_tao.cli.jobs import JsonOption, NameArgument, TargetOption, hidden_values
from prefect_tao.cli.whereabouts import find_job

if TYPE_CHECKING:
    from prefect_tao.jobs.verdict import Verdict

LocationArgument = Annotated[
    str, typer.Argument(help="A path there, or a location such as s3://bucket/folder.", show_default=False)
]
PlaceOption = Annotated[str, typer.Option("--target", help="Where to look from: process, or <platform>/<block name>.")]
LS = """\b
Examples:
  prefect-tao ls /lustre/team/coco --target slurm/cluster
  prefect-tao ls s3://bucket/coco/train
"""
CHECK = """\b
Examples:
  prefect-tao check /lustre/team/coco --target slurm/cluster
  prefect-tao check s3://bucket/coco/train.json || echo upload it first
"""
REPLICAS = """\b
Example:
  prefect-tao replicas tao-0123456789abcdef-1 --target slurm/cluster
"""
WHY = """\b
Examples:
  prefect-tao why tao-0123456789abcdef-1
  prefect-tao why tao-0123456789abcdef-1 --target slurm/cluster --json
"""


def ls(uri: LocationArgument, target: PlaceOption = "process", json_: JsonOption = False) -> None:
    """List a folder as jobs on a target see it."""
    found = asyncio.run(_ask("list_path", uri, target))
    sys.stdout.write(json.dumps(found, indent=2) + "\n" if json_ else "".join(f"{entry}\n" for entry in found))


def check(uri: LocationArgument, target: PlaceOption = "process", json_: JsonOption = False) -> None:
    """Look whether a path or location is there, as jobs on a target see it. Ends with 0 if it is, else with 1."""
    found = asyncio.run(_ask("check_path", uri, target))
    if json_:
        sys.stdout.write(json.dumps({"uri": uri, "target": target, "exists": found}) + "\n")
    else:
        typer.echo(f"{uri} is {'' if found else 'not '}there, seen from {target}")
    raise typer.Exit(0 if found else 1)


async def _ask(question: str, uri: str, target: str) -> Any:
    from prefect_tao.jobs.target import Target
    from prefect_tao.jobs.waiting import saying
    from prefect_tao.sdk.core_api import open_verbs

    if Target.parse(target).block is not None:
        from prefect_tao.cli.running import use_prefect

        use_prefect()
    verbs = await open_verbs(target)
    try:
        async with saying(lambda: f"{target} has not answered yet"):
            return await getattr(verbs, question)(uri)
    finally:
        await verbs.platform.close()


def replicas(name: NameArgument, target: TargetOption = None, json_: JsonOption = False) -> None:
    """Show the parts of a job, and what keeps each from running."""
    from prefect_tao.cli.handles import named

    found = asyncio.run(_replicas(*named(name, target)))
    if json_:
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return
    for one in found:
        issue = one["status"]["readiness_issue"]
        words = (one["name"], one["status"]["state"], *(dict.fromkeys(issue.values()) if issue else ()))
        typer.echo("  ".join(word for word in words if word))
    if not found:
        typer.echo("the platform shows no parts of this job")


async def _replicas(name: str, target: str | None) -> list[dict[str, Any]]:
    from prefect_tao.launch.verbs import replicas_of

    async with find_job(name, target) as (platform, handle):
        return await replicas_of(platform, handle)


def why(name: NameArgument, target: TargetOption = None, json_: JsonOption = False) -> None:
    """Explain why a job failed, and what to do about it."""
    from prefect_tao.cli.handles import named

    address = named(name, target)
    verdict = asyncio.run(_why(*address))
    if json_:
        sys.stdout.write(json.dumps(verdict and verdict.as_failure_analysis(), indent=2) + "\n")
    elif verdict is None:
        typer.echo(f"{address.name} has not failed: it goes on, or ended well")
    else:
        typer.echo(f"{verdict.category.value}: {verdict.cause}\n  what to do: {verdict.remedy}")
        for event in verdict.node_events:
            typer.echo(f"  {event.name}: {event.message}")
        if verdict.log_excerpt:
            typer.echo(f"  last log lines:\n{verdict.log_excerpt.rstrip()}")


async def _why(name: str, target: str | None) -> Verdict | None:
    from prefect_tao.jobs.byname import known_request
    from prefect_tao.jobs.redacting import redacted
    from prefect_tao.launch.verbs import why_failed

    async with find_job(name, target) as (platform, handle):
        verdict = await why_failed(platform, handle)
        return (
            redacted(verdict, await hidden_values(await known_request(platform, handle), platform.target))
            if verdict
            else None
        )
