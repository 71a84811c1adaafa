"""`prefect-tao jobs | logs | watch | cancel`: jobs by name, straight from their platform, without Prefect."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefect_tao.cli.whereabouts import find_job, open_any, search

if TYPE_CHECKING:
    from prefect_tao.jobs.handle import JobHandle
    from prefect_tao.jobs.listening import Listener
    from prefect_tao.jobs.outcome import Outcome
    from prefect_tao.jobs.platform import Platform
    from prefect_tao.jobs.request import JobRequest
    from prefect_tao.jobs.state import JobState, Observation

TargetOption = Annotated[
    str | None,
    typer.Option(
        help="Where the job is: process, or <platform>/<block name>; looked for when left out.", show_default=False
    ),
]
NameArgument = Annotated[
    str,
    typer.Argument(
        help="The job's name, as `prefect-tao jobs` lists it, or its handle: a file, - or JSON itself.",
        show_default=False,
    ),
]
JOBS = """\b
Examples:
  prefect-tao jobs
  prefect-tao jobs --target slurm/cluster --limit 5
  prefect-tao jobs --json
"""
LOGS = """\b
Examples:
  prefect-tao logs tao-0123456789abcdef-1 --tail 50
  prefect-tao logs tao-0123456789abcdef-1 --target slurm/cluster --follow
"""
WATCH = """\b
Examples:
  prefect-tao watch tao-0123456789abcdef-1 --target slurm/cluster
  prefect-tao watch handle.json
"""
CANCEL = """\b
Examples:
  prefect-tao cancel tao-0123456789abcdef-1 --target slurm/cluster
  prefect-tao cancel --run 3b0f7c1e-5d0a-4f6e-9a77-0c8f2b1d4e5a
"""
NARROWEST = 40  # what the other columns need to be of use
UNBROKEN = 10_000  # no line is as wide
STEP_WIDTH = 24  # what is longer goes on in the next line
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]


def jobs(
    target: Annotated[str, typer.Option(help="Where: process, or <platform>/<block name>.")] = "process",
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    json_: JsonOption = False,
) -> None:
    """List our jobs on a target, newest first."""
    found, count = asyncio.run(_jobs(target, limit))
    if count > limit:
        typer.echo(f"the newest {limit} of {count} jobs; --limit {count} lists all", err=True)
    if json_:
        rows = [
            {**h.model_dump(mode="json"), "name": h.name, "step": _step(h), "seen": s.model_dump(mode="json")}
            for h, s in found
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    _print_table(found, target)


def _print_table(found: list[tuple[JobHandle, Observation]], target: str) -> None:
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    from prefect_tao.jobs.describing import last_word

    out = Console(highlight=False)
    if not found:
        out.print(Text(f"no jobs on {target}"))
        return
    widest = max(len(handle.name) for handle, _ in found)
    # A name is there to be copied: it stays whole on one line, even where the other columns then leave the screen.
    job = Column("job", no_wrap=True, min_width=widest)
    broad = min(STEP_WIDTH, max(len(_step(handle)) for handle, _ in found))
    step = Column("step", min_width=broad)
    table = Table(job, step, "state", "started", "last word", box=None, pad_edge=False)
    for handle, seen in found:
        began = seen.started_at.astimezone().strftime("%d %b %H:%M:%S") if seen.started_at else ""
        words = (handle.name, _step(handle), seen.state.value, began, last_word(seen))
        table.add_row(*map(Text, words))  # not markup, whatever a job has said
    # What is no terminal gets a line for each job, for grep and the like.
    out.width = max(out.width, widest + broad + NARROWEST) if out.is_terminal else UNBROKEN
    out.print(table)


def _step(handle: JobHandle) -> str:
    """What the job is in its run; of a sweep the values of its point, because the name of that step is a hash."""
    return handle.labels.get("point") or handle.labels.get("step", "")


async def _jobs(target: str, limit: int) -> tuple[list[tuple[JobHandle, Observation]], int]:
    """The newest jobs, and how many there are in all."""
    from prefect_tao.jobs.waiting import saying

    platform = await open_any(target)
    async with saying(lambda: f"{target} has not said yet which jobs it has"):
        known = await platform.jobs()
        handles = known[:limit]
        seen = await platform.observe(handles)
    return [(handle, seen[handle]) for handle in handles if handle in seen], len(known)


def logs(
    name: NameArgument,
    target: TargetOption = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
) -> None:
    """Print a job's output."""
    from prefect_tao.cli.handles import named

    name, target = named(name, target)
    try:
        asyncio.run(_logs(name, target, tail, follow))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _logs(name: str, target: str | None, tail: int | None, follow: bool) -> None:
    from prefect_tao.jobs.byname import known_request
    from prefect_tao.jobs.redacting import LogRedactor

    async with find_job(name, target) as (platform, handle):
        log = LogRedactor(await hidden_values(await known_request(platform, handle), platform.target))
        cursor = None
        while True:
            chunk = await platform.logs(handle, tail=tail if cursor is None else None, since=cursor)
            sys.stdout.write(log.feed(chunk.text))
            if tail is not None or not chunk.text:
                cursor = chunk.cursor
                break
            cursor = chunk.cursor
        sys.stdout.flush()
        if follow:
            async for text in platform.follow(handle, since=cursor):
                sys.stdout.write(log.feed(text))
                sys.stdout.flush()
        sys.stdout.write(log.rest())


def watch(
    name: NameArgument,
    target: TargetOption = None,
    run_dir: Annotated[Path | None, typer.Option(help="Also keep what is seen as files below this folder.")] = None,
    json_: JsonOption = False,
) -> None:
    """Attach to a job and wait for its end, further attempts included. Ctrl-C detaches."""
    from prefect_tao.cli.handles import named
    from prefect_tao.cli.screen import Screen, console, print_outcome, program
    from prefect_tao.jobs.errors import JobFailed
    from prefect_tao.jobs.runfolder import RunFolder
    from prefect_tao.jobs.state import JobState

    name, target = named(name, target)
    screen = Screen(console())
    folder = RunFolder(run_dir, name, {"target": target}) if run_dir else None
    try:
        outcome = asyncio.run(_watch(name, target, [screen, folder] if folder else [screen], screen.note))
    except KeyboardInterrupt:
        screen.quiet()
        screen.out.print("\nDetached: the job goes on. To come back:")
        where = f" --target {target}" if target else ""
        screen.out.print(f"  {program()} watch {name}{where}", soft_wrap=True, markup=False)
        raise typer.Exit(130) from None
    finally:
        if folder:
            folder.close()
        screen.quiet()
    if json_:
        sys.stdout.write(outcome.model_dump_json(indent=2) + "\n")
    else:
        print_outcome(screen.out, outcome)
    if outcome.verdict and outcome.state is JobState.ERROR and not json_:
        raise JobFailed(outcome.verdict.cause, outcome.verdict.remedy, outcome.verdict, outcome)
    raise typer.Exit(0 if outcome.state is JobState.COMPLETE else 1)


async def _watch(name: str, target: str | None, listeners: Sequence[Listener], say: Callable[[str], None]) -> Outcome:
    from prefect_tao.catalog.loading import load_catalog
    from prefect_tao.jobs.byname import known_request
    from prefect_tao.jobs.events import JobEnded
    from prefect_tao.jobs.following import attend
    from prefect_tao.jobs.listening import Audience
    from prefect_tao.jobs.redacting import redacted
    from prefect_tao.jobs.watcher import Watcher
    from prefect_tao.preflight.checks.credentials import secret_values

    async with find_job(name, target) as (platform, handle):
        request = await known_request(platform, handle)
        secrets = await _secrets_of(request, platform.target) if request else {}
        hidden = secret_values(load_catalog(), secrets)
        audience = Audience(*listeners, secrets=hidden)
        outcome = redacted(await attend(Watcher(platform), request, handle, secrets, audience, say), hidden)
        await audience.hear(JobEnded(outcome))
        return outcome


async def hidden_values(request: JobRequest | None, target: str) -> dict[str, str]:
    """The secrets of a job that must not be shown, as far as they are known here."""
    from prefect_tao.catalog.loading import load_catalog
    from prefect_tao.jobs.errors import TaoError
    from prefect_tao.preflight.checks.credentials import secret_values

    try:
        return secret_values(load_catalog(), await _secrets_of(request, target)) if request else {}
    except TaoError:
        return {}


async def _secrets_of(request: JobRequest, target: str) -> dict[str, str]:
    """The secrets that a further attempt would need, as far as they can be found without starting Prefect for them."""
    from prefect_tao.catalog.loading import load_catalog
    from prefect_tao.environment import variables
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.checks.visibility import used_schemes

    parsed = Target.parse(target)
    if parsed.block is not None:
        from prefect_tao.tasks.targets.secret_values import job_secrets

        return await job_secrets(request, target)
    around = variables()
    entry = load_catalog().platforms.get(parsed.platform)
    schemes = used_schemes(request, entry, around) if entry else []
    wanted = {*request.secrets, *(name for scheme in schemes for name in (*scheme.keys, *scheme.settings))}
    return {name: value for name, value in around.items() if name in wanted}


def cancel(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of jobs, or their handles.", show_default=False)
    ] = None,
    target: TargetOption = None,
    run: Annotated[
        str | None, typer.Option(help="All jobs of a flow run, by its id, on all its targets; also of a dead one.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the platform's word.")] = 60.0,
    json_: JsonOption = False,
) -> None:
    """End jobs, and return when the platform says that they are over. Exits with 1 when one has failed instead."""
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.jobs.state import JobState

    if bool(names) == (run is not None):
        raise InvalidInput("name jobs, or a flow run with --run", "`prefect-tao jobs` lists the names of jobs")
    ends = asyncio.run(_cancel_run(run, timeout) if run else _cancel(names or [], target, timeout))
    for name, state in ends.items():
        typer.echo(json.dumps({"name": name, "state": state}) if json_ else f"{name}  {state}")
    if not ends and not json_:
        typer.echo("the run has no jobs that are known on its targets")
    if JobState.ERROR in ends.values():  # it was over before, or ended in another way than it was asked to
        raise typer.Exit(1)


async def _cancel(words: list[str], target: str | None, timeout: float) -> dict[str, JobState]:
    from prefect_tao.cli.handles import named

    jobs: dict[Platform, list[JobHandle]] = {}
    ends: dict[str, JobState] = {}
    async with search() as found:
        for word in words:
            platform, handle = await found.find(*named(word, target))
            jobs.setdefault(platform, []).append(handle)
        for platform, handles in jobs.items():
            seen = await platform.cancel(handles, timeout=timeout)
            ends |= {handle.name: end.state for handle, end in seen.items()}
    return ends


async def _cancel_run(run: str, timeout: float) -> dict[str, JobState]:
    from prefect_tao.cli.running import use_prefect

    use_prefect()
    from prefect_tao.tasks.cancellation import cancel_run

    return {handle.name: end.state for handle, end in (await cancel_run(run, timeout)).items()}
