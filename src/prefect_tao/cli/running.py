"""Runs a flow for the command line: its start made visible, live progress, and a Ctrl-C that does the right thing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from prefect_tao.cli.leaving import INTERRUPTED, Leaving
from prefect_tao.cli.ticking import interval
from prefect_tao.jobs.runfolder import RunFolder

if TYPE_CHECKING:
    from prefect_tao.cli.screen import Screen
    from prefect_tao.server.server_home import ServerHome

# People at a terminal want their job's words, not the server's; the run's log is in the UI, and --verbose shows it.
QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}
LOUD = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "NOTSET"}


@cache
def use_prefect() -> None:
    """Make Prefect and a server ready for a command that runs no flow; what takes a while is shown."""
    from prefect_tao.cli.screen import Screen, console

    screen = Screen(console())
    import_prefect(screen)
    start_server(screen)
    screen.quiet()


def import_prefect(screen: Screen, verbose: bool = False) -> None:
    """Prefect with our settings, and only with `verbose` with many words of its own."""
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    hush(verbose)
    if "prefect_tao.tasks.targets.servers" not in sys.modules:
        screen.note("starting Prefect (about 3 s)")
    import prefect_tao.tasks.targets.servers  # noqa: F401 - what takes the time


def join_shown(home: ServerHome) -> str:
    """The address of the server of this machine, once it answers."""
    from prefect_tao.cli.screen import Screen, console
    from prefect_tao.server.joining import join

    screen = Screen(console())
    found = join(home, screen.note, every=interval(screen))
    screen.quiet()
    return found


def start_server(screen: Screen) -> None:
    """The server that is set, the one of this machine, or one that is started now, with the seconds that takes."""
    from prefect_tao.tasks.targets.servers import use_server

    use_server(screen.note, every=interval(screen))


def hush(verbose: bool = False) -> None:
    """Say what Prefect may write on the terminal, before it is imported; the first word counts."""
    for key, value in (LOUD if verbose else QUIET).items():
        os.environ.setdefault(key, value)


def run_flow(name: str, screen: Screen, verbose: bool, run_dir: Path | None = None, **parameters: Any) -> Any:
    """The result of the flow `name`. Ctrl-C detaches from the job; a second one within a moment cancels it.

    With `run_dir` the run is kept as files below that folder too.
    """
    folder = None
    if run_dir:
        folder = RunFolder(run_dir, name, {"parameters": json.loads(json.dumps(parameters, default=str))})
        screen.note(f"keeping the run in {folder.folder}")

    import_prefect(screen, verbose)
    start_server(screen)
    from prefect_tao.flows.plain import plain_call
    from prefect_tao.tasks.reporting import listeners
    from prefect_tao.tasks.targets.servers import check_server

    asyncio.run(check_server())
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
