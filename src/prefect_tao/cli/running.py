"""Runs a flow for the command line: its start made visible, live progress, and a Ctrl-C that does the right thing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from prefect_tao.jobs.errors import JobFailed
from prefect_tao.jobs.runfolder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from prefect_tao.cli.screen import Screen
    from prefect_tao.jobs.handle import JobHandle

CANCEL_WINDOW = 3.0
LEAVE_SECONDS = 10.0
INTERRUPTED = 130

# People at a terminal want their job's words, not the server's; the run's log is in the UI, and --verbose shows it.
QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
}


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
    if not verbose:
        for key, value in QUIET.items():
            os.environ.setdefault(key, value)
    screen.note("starting Prefect (about 3 s)")
    from prefect_tao.flows.plain import plain_call
    from prefect_tao.tasks.reporting import audience, recorder
    from prefect_tao.tasks.servers import check_server, server_url

    if server_url():
        asyncio.run(check_server())
    else:
        screen.note("starting Prefect's embedded server (about 20 s; set PREFECT_API_URL to use a running one)")
    audience.set(screen)
    recorder.set(folder)
    signal.signal(signal.SIGINT, lambda *_: _interrupted(screen))
    try:
        return plain_call(name)(**parameters)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except JobFailed as error:
        if folder and error.verdict:
            folder.failed(name, error.verdict)
        raise
    finally:
        screen.quiet()


def _interrupted(screen: Screen) -> None:
    """Ctrl-C: say at once what happens to the job, then leave, whatever Prefect still waits for.

    The terminal's Ctrl-C reaches Prefect's embedded server too, so there is nobody left to tell of the run's end; a
    server that stays up is told, within a bound.
    """
    from prefect_tao.tasks.servers import server_url, stop_embedded

    signal.signal(signal.SIGINT, signal.default_int_handler)
    screen.quiet()
    _detached(screen)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if server_url() is None:
        stop_embedded()
        os._exit(INTERRUPTED)
    leave = threading.Timer(LEAVE_SECONDS, os._exit, (INTERRUPTED,))
    leave.daemon = True
    leave.start()
    raise KeyboardInterrupt


def _detached(screen: Screen) -> None:
    """Say that the jobs go on and how to come back; cancel them when Ctrl-C comes again within a moment."""
    from prefect_tao.cli.screen import program

    out, handles = screen.out, list(screen.handles.values())
    if not handles:
        out.print(f"\nInterrupted before any job was seen here; `{program()} jobs` lists what there is.")
        _print_way_back(screen)
        return
    one = len(handles) == 1
    try:
        what = "the job goes" if one else f"{len(handles)} jobs go"
        out.print(f"\nDetached: {what} on without this terminal. To come back:")
        _print_way_back(screen)
        out.print(f"Ctrl-C again within {CANCEL_WINDOW:g} s cancels {'it' if one else 'them'}.")
        time.sleep(CANCEL_WINDOW)
    except KeyboardInterrupt:
        # In a thread of its own, because the flow's event loop is still there in this one.
        canceling = threading.Thread(target=lambda: asyncio.run(_cancel(out, handles)))
        canceling.start()
        canceling.join()


def _print_way_back(screen: Screen) -> None:
    for command in screen.way_back():
        screen.out.print(f"  {command}", soft_wrap=True, markup=False)


async def _cancel(out: Console, handles: list[JobHandle]) -> None:
    from prefect_tao.cli.jobs import open_any

    for target in dict.fromkeys(handle.target for handle in handles):
        platform = await open_any(target)
        seen = await platform.cancel([handle for handle in handles if handle.target == target])
        for handle, end in seen.items():
            out.print(f"  {handle.name}  {end.state.value}")
