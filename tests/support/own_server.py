"""The server of a machine as `prefect-tao ui` starts it, with a home of its own, and commands that find it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefect_server import _free_port
from prefect_tools import Api, wait_for

from prefect_tao.server.server_home import ServerHome

START_SECONDS = 240


def environment(home: Path, **more: str) -> dict[str, str]:
    """A person without any setting of Prefect's; all that is kept, is kept below `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return {**kept, "PREFECT_HOME": str(home), "PREFECT_TAO_HOME": str(home / "tao"), "HOME": str(home), **more}


def command(home: Path, *words: str, **more: str) -> str:
    """What a command says that ends well."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect_tao.cli", *words],
        env=environment(home, **more),
        cwd=home,
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def ended(home: Path) -> bool:
    """Whether no server of this home runs, and no process of one."""
    return not ServerHome(home).is_served() and not processes(home)


def processes(home: Path) -> list[str]:
    """The command lines of all that a server of this home has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            here = os.readlink(folder / "cwd").startswith(str(home))
            is_ours = here or f"PREFECT_HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if is_ours and ("postgres" in words or "prefect.server" in words):
            found.append(words)
    return found


@contextmanager
def ui(home: Path, stop: signal.Signals = signal.SIGTERM, **more: str) -> Iterator[Api]:
    """`prefect-tao ui`, until the block ends; then it is asked to stop, and has to."""
    words = [sys.executable, "-m", "prefect_tao.cli", "ui", "--port", str(_free_port())]
    with open(home / "ui.log", "ab") as log:
        process = subprocess.Popen(words, env=environment(home, **more), cwd=home, stdout=log, stderr=log)
    try:
        url = wait_for(lambda: process.poll() is not None or ServerHome(home).running(), START_SECONDS)
        assert process.poll() is None, (home / "ui.log").read_text()
        yield Api(str(url))
    finally:
        process.send_signal(stop)
        try:
            process.wait(30)
        finally:
            process.kill()


def runs(api: Api) -> list[tuple[str, str]]:
    """Name and state of all runs."""
    found = api.ask("POST", "/flow_runs/filter", {})
    return sorted((run["name"], run["state"]["type"]) for run in found)


def secret(api: Api, slug: str, name: str) -> dict[str, object]:
    """What a saved block holds, secrets in clear."""
    found = api.ask("GET", f"/block_types/slug/{slug}/block_documents/name/{name}?include_secrets=true")
    return dict(json.loads(json.dumps(found["data"])))
