"""The docker work pool: every flow runs in a container of its own, started by a real worker on a real engine."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deployed import ROOT
from docker_engine import PYTHON, Engine
from prefect_tools import Api, wait_for

# Those who share the one server and the one engine run one after the other.
pytestmark = [pytest.mark.xdist_group("prefect-server"), pytest.mark.timeout(300)]
POOL = "boxes"
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


@pytest.fixture
def worker(server: Any, engine: Engine, tmp_path: Path) -> Iterator[None]:
    """A docker worker, for a pool made from our template."""
    template = json.loads((ROOT / "deployments" / "work_pools" / "docker.json").read_text())
    pool = {"name": POOL, "type": "docker", "base_job_template": template}
    Api(server.api).ask("POST", "/work_pools/", pool)
    env = {**server.env, "DOCKER_HOST": engine.host, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    words = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "docker"]
    with open(tmp_path / "worker.log", "wb") as log:
        process = subprocess.Popen(words, env=env, stdout=log, stderr=log, cwd=tmp_path)
    yield
    process.kill()
    process.wait()
    engine.clear()
    Api(server.api).ask("DELETE", f"/work_pools/{POOL}")


def deployment(server: Any) -> str:
    """The flow `run`, deployed to that pool; its id."""
    from prefect import get_client
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from prefect_tao.flows import run

    async def make() -> str:
        async with get_client() as client:
            flow = await client.create_flow(run)
            made = await client.create_deployment(
                flow, POOL, work_pool_name=POOL, entrypoint="prefect_tao.flows.action.run", pull_steps=[]
            )
        return str(made)

    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        return asyncio.run(make())


def test_a_flow_runs_in_a_container_and_keeps_its_results_in_the_mounted_folder(
    server: Any, api: Api, worker: None, tmp_path: Path
) -> None:
    """The image has python3; this very installation is mounted, where a person would have it in the image."""
    results = tmp_path / "results"
    results.mkdir()
    libraries = f"/lib/{sysconfig.get_config_var('MULTIARCH')}"
    installed = dict.fromkeys((sys.prefix, sys.base_prefix, str(ROOT), libraries))
    variables = {
        "image": PYTHON,
        "image_pull_policy": "Never",
        "network_mode": "host",
        "command": f"{sys.executable} -m prefect.engine",
        "volumes": [f"{results}:/results", *(f"{path}:{path}:ro" for path in installed)],
    }
    command = "test -e /.dockerenv && echo boxed > $TAO_RESULTS_DIR/where"
    body = {"parameters": {"command": command}, "job_variables": variables}
    run = str(api.ask("POST", f"/deployments/{deployment(server)}/create_flow_run", body)["id"])
    wait_for(lambda: api.state(run) in ENDED, 180)
    told = (tmp_path / "worker.log").read_text()[-3000:]
    assert api.state(run) == "COMPLETED", f"{api.run(run)['state']} {told}"
    (where,) = (results / "prefect-tao" / "results").rglob("where")
    assert where.read_text() == "boxed\n"
