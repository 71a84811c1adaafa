"""Ctrl-C that comes while the terminal is being written to: it is obeyed all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from process_tools import LONG

# The main thread holds rich's lock of the terminal, as it does whenever it draws, when both keys come.
PROGRAM = f"""
import asyncio, os, signal, sys, time, typer
from prefect_tao.cli.leaving import Leaving
from prefect_tao.cli.screen import Screen, console
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform

async def launched():
    platform = open_platform("process")
    return await platform.submit(platform.render(JobRequest.build(command="{LONG}"), "0123456789abcdef", 1), {{}})

handle = asyncio.run(launched())
screen = Screen(console())
screen.handles[handle.key] = handle
leaving = Leaving(screen)
with screen.out._lock:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.5)
    os.write(2, b"still drawing")  # past the screen, which says nothing more once a person leaves
try:
    leaving.settle()
except typer.Exit as left:
    sys.exit(left.exit_code)
"""


def test_two_keys_that_come_while_the_screen_is_drawn_cancel_the_job(home: Path) -> None:
    env = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "still drawing" in done.stderr
    assert "Detached: the job goes on without this terminal." in done.stderr
    assert "tao-0123456789abcdef-1  Canceled" in done.stderr
