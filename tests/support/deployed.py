"""What tests of deployments share: everything of prefect.yaml on the session's server, and workers that run it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import Api

ROOT = Path(__file__).parents[2]


def deploy(env: dict[str, str]) -> str:
    """What `make deploy` does, and what it says."""
    words = [sys.executable, "-m", "prefect_tao.deployments"]
    done = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def deployed(server: Any) -> str:
    """All deployments, on the session's server; what was said while they were made."""
    return deploy(server.env)


@contextmanager
def worker(env: dict[str, str], folder: Path, name: str = "worker", **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process worker of the pool `tao`, with everything that it starts in a process group of its own."""
    words = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "tao", "--name", name]
    own = {**env, "PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.5", **more}
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(words, env=own, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def begin(api: Api, deployment: str, **parameters: Any) -> str:
    """Start a run of a deployment, as a person does in the UI; its id."""
    body = {"parameters": parameters}
    return str(api.ask("POST", f"/deployments/{api.deployment(deployment)}/create_flow_run", body)["id"])


def flow_process(run: str) -> int | None:
    """The process that runs this flow run, by the variable that Prefect's worker sets."""
    wanted = f"PREFECT__FLOW_RUN_ID={run}".encode()
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:
            continue
    return None
