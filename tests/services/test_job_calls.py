"""The core API with Prefect: as tasks of a person's own flow, and on a saved block; the samples of its page run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import Api, wait_for

pytestmark = pytest.mark.xdist_group("prefect-server")
PAGE = Path(__file__).parents[2] / "docs" / "python.md"
SAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
TWICE = """
import asyncio, json
from prefect.runtime import flow_run
from prefect_tao.tasks import check_path
from prefect_tao.tasks.cancellation import cancel_run

@flow
async def twice() -> list[str]:
    await mine()
    first = await create_job(command="echo same", step="once")
    again = await create_job(command="echo same", step="once")
    long = await create_job(command="sleep 300", key="of my own")
    return [first.id, again.id, again.attached, await check_path("/no/such/path"), long.id, str(flow_run.id)]

*seen, long, run = asyncio.run(twice())
ends = {handle.name: end.state for handle, end in asyncio.run(cancel_run(run)).items()}
print("told " + json.dumps([*seen, ends[long]]))
"""
BLOCK = """
from prefect_tao.blocks.process import TaoProcess
from prefect_tao import connect
TaoProcess(max_jobs=1).save("here", overwrite=True)
sdk = connect("process/here")
job = sdk.create_job(command="echo on a block", key="saved")
print("told", job.target, connect("process/here").create_job(command="echo on a block", key="saved").attached)
"""


def script(server: Any, home: Path, text: str) -> str:
    env = {**server.env, "PREFECT_API_URL": server.api, "PREFECT_TAO_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_calls_are_tasks_of_a_flow_and_a_step_is_launched_once(server: Any, api: Api, home: Path) -> None:
    told = script(server, home, SAMPLES[1] + TWICE)
    first, again, attached, found, end = json.loads(told.split("told ")[1])
    assert (first, attached, found, end) == (again, True, False, "Canceled")
    run = api.newest_run("mine")
    names = {"create job on process", "get_job_status", "get_job_logs"}
    wait_for(lambda: names <= {re.sub(r"-\w{3}$", "", task["name"]) for task in api.task_runs(run["id"])}, 60)


def test_a_saved_block_is_connected_to(server: Any, home: Path) -> None:
    assert script(server, home, BLOCK).split("told ")[1].split() == ["process/here", "True"]


def test_the_first_sample_of_the_page_runs(home: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SAMPLES[0]], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["Complete", "hello"]
