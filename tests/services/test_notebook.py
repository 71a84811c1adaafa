"""In a notebook, where an event loop runs already, the plain calls work as they do in a script."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

pytestmark = pytest.mark.xdist_group("prefect-server")
CONNECT = """
import asyncio, time
from prefect_tao import connect
assert asyncio.get_running_loop()
sdk = connect("process")
job = sdk.create_job(command="echo from a cell", key="cell")
while sdk.get_job_status(job.id).status not in ("Complete", "Error"):
    time.sleep(0.05)
print(sdk.get_job_status(job.id).status, sdk.get_job_logs(job.id))
"""
TWIN = "print((await sdk.aget_job_status(job.id)).status)"
RUN = """
from prefect_tao import run
outcome = run(command="echo from a run", run_key="cell-run")
print(outcome.state, outcome.handle.name)
"""
WRONG = """
from prefect_tao import InvalidInput
try:
    run(command="true", gpus="many")
except InvalidInput as error:
    print(error.cause)
"""


@pytest.fixture(scope="module")
def kernel(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingKernelClient]:
    """A Python kernel as notebooks have it."""
    folder = tmp_path_factory.mktemp("notebook")
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env={**server.env, "PREFECT_TAO_HOME": str(folder / "jobs")}, cwd=str(folder))
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def cell(kernel: BlockingKernelClient, code: str) -> str:
    """What a cell prints; fails with its traceback."""
    told: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        told.append(str(content.get("text") or "\n".join(content.get("traceback", ()))))

    reply = kernel.execute_interactive(code, timeout=120, output_hook=hear)
    assert reply["content"]["status"] == "ok", "".join(told)
    return "".join(told)


def test_connect_and_its_async_twins_work_in_cells(kernel: BlockingKernelClient) -> None:
    assert "Complete from a cell" in cell(kernel, CONNECT)
    assert cell(kernel, TWIN).strip() == "Complete"


def test_a_run_works_in_a_cell_and_wrong_parameters_are_told_plainly(kernel: BlockingKernelClient, home: Path) -> None:
    assert "Complete tao-" in cell(kernel, RUN)
    assert "gpus: expected a whole number (got 'many')" in cell(kernel, WRONG)
