"""Runs a flow for the command line: its start made visible, live progress, and a Ctrl-C that does the right thing."""

from __future__ import annotations

import asyncio
import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from prefect_tao.cli.leaving import INTERRUPTED, Leaving
from prefect_tao.jobs.runfolder import RunFolder

if TYPE_CHECKING:
    from prefect_tao.cli.screen import Screen

# People at a terminal want their job's words, not the server's; the run's log is in the UI, and --verbose shows it.
QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
}
LOUD = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "NOTSET", "PREFECT_SERVER_LOGGING_LEVEL": "WARNING"}

EMBEDDED = "starting Prefect's embedded server (about 20 s; set PREFECT_API_URL to use a running one)"


@cache
def use_prefect() -> None:
    """Make Prefect ready for a command that runs no flow; whoever has to wait for its server is told so."""
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    hush()
    from prefect_tao.tasks.targets.servers import server_url

    if server_url() is None:
        typer.echo(EMBEDDED, err=True)


def hush(verbose: bool = False) -> None:
    """Say what Prefect may write on the terminal, before it is imported; the first word counts."""
    for key, value in (LOUD if verbose else QUIET).items():
        os.environ.setdefault(key, value)


def run_flow(name: str, screen: Screen, verbose: bool, run_dir: Path | None = None, **parameters: Any) -> Any:
    """The result of the flow `name`. Ctrl-C detaches from the job; a second one within a moment cancels it.

    With `run_dir` the run is kept as files below that folder too.
    """
    from prefect_tao.settings import prepare_prefect

    folder = None
    if run_dir:
        folder = RunFolder(run_dir, name, {"parameters": json.loads(json.dumps(parameters, default=str))})
        screen.note(f"keeping the run in {folder.folder}")

    prepare_prefect()
    hush(verbose)
    screen.note("starting Prefect (about 3 s)")
    from prefect_tao.flows.plain import plain_call
    from prefect_tao.tasks.reporting import listeners
    from prefect_tao.tasks.targets.servers import check_server, server_url

    if server_url():
        asyncio.run(check_server())
    else:
        screen.note(EMBEDDED)
    leaving = Leaving(screen)
    listeners.set((screen, leaving, folder) if folder else (screen, leaving))
    try:
        return plain_call(name)(**parameters)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if folder:
            folder.close()
        leaving.settle()
        screen.quiet()
