"""Ctrl-C while a flow runs: once leaves its jobs alone and says how to come back, twice cancels them.

A SIGTERM, as a shutdown or a batch system sends it, leaves them alone too.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from prefect_tao.cli.screen import program
from prefect_tao.jobs.events import Event, RunBegan
from prefect_tao.jobs.listening import Listener

if TYPE_CHECKING:
    from rich.console import Console

    from prefect_tao.cli.screen import Screen
    from prefect_tao.jobs.handle import JobHandle
    from prefect_tao.jobs.state import Observation

CANCEL_WINDOW = 3.0
LEAVE_SECONDS = 10.0
INTERRUPTED = 130
TERMINATED = 143


class Leaving(Listener):
    """What Ctrl-C and SIGTERM mean as long as `screen` shows a flow.

    The handler of the signal only passes the key on to a thread, which says and does all else. The signal interrupts
    the main thread anywhere, also where that holds the terminal; what then needs the terminal would wait for ever.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._keys, self._pressed = os.pipe()
        self._began = False
        self._code = INTERRUPTED
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._leave, name="leaving", daemon=True)
        self._thread.start()
        signal.signal(signal.SIGINT, self._on_key)
        signal.signal(signal.SIGTERM, self._on_term)

    async def hear(self, event: Event) -> None:
        """Prefect takes SIGTERM for itself when a run begins, and would end the run as crashed: take it back."""
        if isinstance(event, RunBegan):
            signal.signal(signal.SIGTERM, self._on_term)

    def settle(self) -> None:
        """The flow is over. Raises typer.Exit when a person is just leaving, whatever became of it."""
        if not self._began:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return
        with suppress(KeyboardInterrupt):
            self._settled.set()
            self._thread.join()
        raise typer.Exit(self._code)

    def _on_key(self, *_: Any) -> None:
        self._began = True
        os.write(self._pressed, b"k")

    def _on_term(self, *_: Any) -> None:
        if not self._began:
            self._began, self._code = True, TERMINATED
            os.write(self._pressed, b"t")

    def _leave(self) -> None:
        """Wait for the key, leave the jobs or cancel them, and end the program, whatever Prefect still waits for."""
        from prefect_tao.tasks.detaching import detach_here

        is_key = os.read(self._keys, 1) == b"k"
        self._screen.leave()
        self._detach(_terminal(), is_key)
        # The server is told of it, within a bound.
        leave = threading.Timer(LEAVE_SECONDS, os._exit, (self._code,))
        leave.daemon = True
        leave.start()
        detach_here()

    def _detach(self, out: Console, may_cancel: bool) -> None:
        handles = list(self._screen.handles.values())
        one = len(handles) == 1
        if handles:
            what = "the job goes" if one else f"{len(handles)} jobs go"
            out.print(f"\nDetached: {what} on without this terminal. To come back:")
        else:
            out.print(f"\nInterrupted before any job was seen here; `{program()} jobs` lists what there is.")
        for command in self._screen.way_back():
            out.print(f"  {command}", soft_wrap=True, markup=False)
        if not handles or not may_cancel:
            return
        out.print(f"Ctrl-C again within {CANCEL_WINDOW:g} s cancels {'it' if one else 'them'}.")
        if select.select([self._keys], [], [], CANCEL_WINDOW)[0]:
            self._cancel_all(out)

    def _cancel_all(self, out: Console) -> None:
        """End the jobs, and let the flow see it and end by itself: then its run is cancelled, and has not crashed."""
        from prefect_tao.tasks.cancellation import cancel_here

        cancel_here()  # so that nothing else begins
        told: set[str] = set()
        # What was about to begin is there when the flow has ended.
        for wait in (0.0, LEAVE_SECONDS):
            self._settled.wait(wait)
            handles = [handle for handle in self._screen.handles.values() if handle.key not in told]
            told |= {handle.key for handle in handles}
            for target in dict.fromkeys(handle.target for handle in handles):
                _cancel(out, target, [handle for handle in handles if handle.target == target])


def _terminal() -> Console:
    """Standard error itself: what is drawn in place has its own in front of it."""
    from rich.console import Console

    return Console(file=sys.__stderr__, highlight=False)


def _cancel(out: Console, target: str, handles: list[JobHandle]) -> None:
    try:
        seen = asyncio.run(_ends(target, handles))
    except Exception as error:  # whatever it is, the program still has to end
        names = " ".join(handle.name for handle in handles)
        out.print(f"  {error}\nNot cancelled; try: {program()} cancel {names} --target {target}", markup=False)
        return
    for handle, end in seen.items():
        out.print(f"  {handle.name}  {end.state.value}")


async def _ends(target: str, handles: list[JobHandle]) -> Mapping[JobHandle, Observation]:
    from prefect_tao.cli.whereabouts import open_any

    platform = await open_any(target)
    try:
        return await platform.cancel(handles)
    finally:
        await platform.close()
