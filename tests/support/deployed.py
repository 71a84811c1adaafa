"""What tests of deployments share: everything of prefect.yaml on the session's server, and workers that run it.

Modules that use it carry `pytest.mark.xdist_group("deployments")`, or "postgres", so that it is made once. Automations
look at every run of a server, so they are switched off here, and on by those who test them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import debian
import postgres
import pytest
from prefect_server import PrefectServer
from prefect_tools import Api

ROOT = Path(__file__).parents[2]
# What of an automation can be written again.
KEPT = ("name", "description", "trigger", "actions", "actions_on_trigger", "actions_on_resolve", "tags")


def deploy(server: Any) -> str:
    """What `make deploy` does, and what it says."""
    words = [sys.executable, "-m", "prefect_tao.deployments"]
    done = subprocess.run(words, env=server.env, cwd=ROOT, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return done.stdout


def switch_off(api: Api) -> list[str]:
    """Leave no automation at work; the names of those that were."""
    on = [automation for automation in api.ask("POST", "/automations/filter", {}) if automation["enabled"]]
    for automation in on:
        api.ask("PATCH", f"/automations/{automation['id']}", {"enabled": False})
    return sorted(automation["name"] for automation in on)


@pytest.fixture(scope="session")
def deployed(server: Any) -> str:
    """All deployments, on the session's server; what was said while they were made."""
    told = deploy(server)
    assert len(switch_off(Api(server.api))) == 3
    return told


@pytest.fixture(scope="session")
def standing(server: Any, deployed: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A worker for the whole session; the home that its jobs are in."""
    folder = tmp_path_factory.mktemp("standing")
    with worker(server.env, folder, "standing", PREFECT_TAO_HOME=str(folder / "home")):
        yield folder / "home"


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Prefect server on Postgres, with all deployments."""
    try:
        with postgres.cluster() as address:
            server = PrefectServer(tmp_path_factory.mktemp("prefect"), PREFECT_API_DATABASE_CONNECTION_URL=address)
            server.start()
            try:
                deploy(server)
                switch_off(Api(server.api))
                yield server
            finally:
                server.stop()
    except debian.Missing as missing:
        pytest.skip(str(missing))


@contextmanager
def switched_on(api: Api, name: str, **trigger: Any) -> Iterator[None]:
    """The automation of this name at work, with some of its trigger changed, such as how long it waits."""
    (there,) = [one for one in api.ask("POST", "/automations/filter", {}) if one["name"] == name]
    path, kept = f"/automations/{there['id']}", {key: there[key] for key in KEPT}
    api.ask("PUT", path, {**kept, "enabled": True, "trigger": {**there["trigger"], **trigger}})
    try:
        yield
    finally:
        api.ask("PUT", path, {**kept, "enabled": False})


@contextmanager
def worker(
    env: dict[str, str], folder: Path, name: str, queue: str = "default", **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process worker of the pool `tao` for one of its queues, started as the docs say, in a group of its own."""
    prefect = ["nice", sys.executable, "-m", "prefect"]
    words = [*prefect, "worker", "start", "--pool", "tao", "--name", name, "--work-queue", queue]
    quick = {
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_LOGGING_TO_API_BATCH_INTERVAL": "0.5",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    }
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            words, env={**env, **quick, **more}, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    try:
        yield process
    finally:
        flows = _children(process.pid)  # in groups of their own; one that waits for a person would stay
        with suppress(ProcessLookupError):  # a test may have killed it, and what it had started
            os.killpg(process.pid, signal.SIGKILL)
        for flow in flows:
            with suppress(ProcessLookupError):
                os.kill(flow, signal.SIGKILL)
        process.wait()


def _children(parent: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def begin(
    api: Api, deployment: str, queue: str = "default", variables: dict[str, str] | None = None, **parameters: Any
) -> str:
    """Start a run of a deployment, as a person does in the UI, in one of the pool's queues; its id.

    `variables` are set in the environment of its process.
    """
    body = {
        "parameters": parameters,
        "work_queue_name": queue,
        "job_variables": {"env": variables} if variables else {},
    }
    return str(api.ask("POST", f"/deployments/{api.deployment(deployment)}/create_flow_run", body)["id"])


def flow_process(run: str) -> int | None:
    """The process that runs this flow run, by the variable that Prefect's worker sets."""
    wanted = f"PREFECT__FLOW_RUN_ID={run}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_flow = b"prefect.engine" in (folder / "cmdline").read_bytes()
            if is_flow and wanted in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
        except OSError:
            continue
    return None
