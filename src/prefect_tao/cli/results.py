"""`prefect-tao results`: the files that a job has left, and copies of them here."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefect_tao.cli.jobs import JsonOption, NameArgument, TargetOption
from prefect_tao.cli.whereabouts import find_job

if TYPE_CHECKING:
    from rich.console import Console

    from prefect_tao.jobs.handle import JobHandle
    from prefect_tao.storage.locations import Stored

EPILOG = """Results in S3 are opened with the target's block, else with ACCESS_KEY and SECRET_KEY of your environment.

\b
Examples:
  prefect-tao results tao-0123456789abcdef-1
  prefect-tao results tao-0123456789abcdef-1 --target slurm/cluster --download copies
"""


def results(
    name: NameArgument,
    target: TargetOption = None,
    download: Annotated[Path | None, typer.Option(help="Copy the files into this folder.", show_default=False)] = None,
    json_: JsonOption = False,
) -> None:
    """List the files that a job has left, or download them."""
    from prefect_tao.cli.handles import named
    from prefect_tao.cli.screen import console

    name, target = named(name, target)
    out = console()
    handle, files = asyncio.run(_results(name, target, download, out))
    if json_:
        rows = [{"name": file.name, "size": file.size, "uri": file.uri} for file in files]
        told = {"name": handle.name, "results": handle.results, "files": rows}
        sys.stdout.write(json.dumps({**told, "downloaded": str(download) if download else None}, indent=2) + "\n")
    elif download:
        out.print(f"{_summary(files)} in {download}", soft_wrap=True, markup=False)
    else:
        _print_files(files)
        out.print(f"{_summary(files)} in {handle.results}", soft_wrap=True, markup=False)


async def _results(
    name: str, target: str | None, folder: Path | None, out: Console
) -> tuple[JobHandle, Sequence[Stored]]:
    from prefect_tao.storage.result_files import Results

    async with find_job(name, target) as (platform, handle):
        found = Results(platform, handle, await _credentials(platform.target))
        files = await found.files()
        if folder:
            with _progress(out, files) as done:
                await found.download(files, folder, done)
        return handle, files


async def _credentials(target: str) -> Mapping[str, str]:
    """What opens storage: the target's block where it has one, else what is around us."""
    from prefect_tao.jobs.target import Target

    if Target.parse(target).block is not None:
        from prefect_tao.tasks.targets.opening import supplied_credentials

        return await supplied_credentials(target)
    from prefect_tao.environment import variables

    return variables()


@contextmanager
def _progress(out: Console, files: Sequence[Stored]) -> Iterator[Callable[[Stored], None]]:
    """A bar on a terminal; elsewhere nothing, until all is done."""
    if not out.is_terminal:
        yield lambda file: None
        return
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TransferSpeedColumn

    is_sized = all(file.size is not None for file in files)
    columns = [DownloadColumn(), TransferSpeedColumn()] if is_sized else [MofNCompleteColumn()]
    with Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=out, transient=True) as bar:
        total = sum(file.size or 0 for file in files) if is_sized else len(files)
        task = bar.add_task(f"{len(files)} files", total=total)
        yield lambda file: bar.advance(task, (file.size or 0) if is_sized else 1)


def _print_files(files: Sequence[Stored]) -> None:
    sizes = ["" if file.size is None else _human(file.size) for file in files]
    width = max(map(len, sizes), default=0)
    for size, file in zip(sizes, files, strict=True):
        typer.echo(f"{size:>{width}}  {file.name}" if width else file.name)


def _summary(files: Sequence[Stored]) -> str:
    count = f"{len(files)} file{'' if len(files) == 1 else 's'}"
    known = [file.size for file in files if file.size is not None]
    return f"{count}, {_human(sum(known))}," if known and len(known) == len(files) else count


def _human(size: int) -> str:
    from prefect_tao.runner.inside.sizes import human

    return human(size)
