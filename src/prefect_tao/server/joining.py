"""Finds the server of this machine, or starts one that runs as long as anyone uses it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from typing import IO

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.server.hosting import START_SECONDS, STARTING, Tell
from prefect_tao.server.server_home import ServerHome, take

TAKEN = 75  # how a server ends that finds another
LOOK_SECONDS = 0.2
_USED: list[IO[str]] = []  # given back when this process ends, however it ends


def join_running(home: ServerHome) -> str | None:
    """The API's address of the server that runs here, if one does; it stays as long as this process does."""
    if not home.running():
        return None
    users = home.open("users.lock")
    if take(users, fcntl.LOCK_SH) and (url := home.running()):
        _USED.append(users)
        return url
    users.close()
    return None


def join(home: ServerHome, tell: Tell, every: float = 1.0) -> str:
    """The API's address of the server that runs here; where none does, one is started, and ends with its last user.

    `tell` hears every so many seconds what is waited for, and for how long now. Raises Unreachable.
    """
    users = home.open("users.lock")
    _USED.append(users)
    began, told, started, used = time.monotonic(), -every, None, False
    while (waited := time.monotonic() - began) < START_SECONDS:
        used = used or take(users, fcntl.LOCK_SH)  # not at once where the one before is just ending
        if used and (url := home.running()):
            return url
        if used and not home.is_served() and (started is None or started.poll() is not None):
            if started and started.returncode != TAKEN:
                break
            started = _start(home)
        if waited - told >= every:
            told = waited
            tell(f"{home.doing() or STARTING} ({waited:.0f} s)")
        time.sleep(LOOK_SECONDS)
    raise Unreachable(
        f"Prefect's server did not start: {(home.folder / 'start.log').read_text(errors='replace').strip()[-2000:]}",
        f"see {home.log}, or set PREFECT_API_URL to use a server that runs",
    )


def _start(home: ServerHome) -> subprocess.Popen[bytes]:
    with open(home.folder / "start.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "prefect_tao.server"],
            env={**os.environ, "PREFECT_HOME": str(home.prefect)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
