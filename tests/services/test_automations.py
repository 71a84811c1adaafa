"""Runs whose process died are taken care of, and people are told of failures, by real automations of a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deployed import begin, deploy, flow_process, worker
from prefect_tools import Api, job_states, wait_for

from prefect_tao.jobs.state import JobState

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("prefect-pages"), pytest.mark.timeout(400)]
SAVE = """
import sys
from prefect.blocks.notifications import CustomWebhookNotificationBlock as Webhook
told = {"subject": "{{subject}}", "body": "{{body}}"}
Webhook(name="alerts", url=sys.argv[1], json_data=told).save("tao-alerts", overwrite=True)
"""


@pytest.fixture
def received() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Somebody who listens for notifications: the address, and what came."""
    told: list[dict[str, Any]] = []

    class Listener(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            """Nothing: the test looks at what came."""

    listening = HTTPServer(("127.0.0.1", 0), Listener)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}/alerts", told
    listening.shutdown()
    listening.server_close()


def test_a_failed_run_is_told_with_its_cause_and_remedy(
    server: Any, api: Api, deployed: str, home: Path, received: tuple[str, list[dict[str, Any]]]
) -> None:
    address, told = received
    subprocess.run([sys.executable, "-c", SAVE, address], env=server.env, check=True, timeout=60)
    assert "tao: tell of failures" in deploy(server.env)
    named = {one["name"]: one["id"] for one in api.ask("POST", "/automations/filter", {})}
    try:
        with worker(server.env, home.parent, PREFECT_TAO_HOME=str(home)):
            begin(api, "run/run", command="echo 'CUDA out of memory'; exit 1")
            wait_for(lambda: told, 120)
    finally:
        api.ask("DELETE", f"/automations/{named['tao: tell of failures']}")
    assert told[0]["subject"].endswith(": Failed")
    assert "do not fit into the GPU's memory" in told[0]["body"]
    assert "what to do: Lower the batch size" in told[0]["body"]


def orphan(server: Any, api: Api, home: Path) -> str:
    """A run whose worker and process are gone, while its job runs; its id."""
    started = home.parent / "started"
    with worker(server.env, home.parent, "dies", PREFECT_TAO_HOME=str(home)) as process:
        run = begin(api, "run/run", command=f"echo x > {started}; sleep 300")
        wait_for(started.exists, 120)
        flow = wait_for(lambda: flow_process(run), 30)
        os.kill(process.pid, signal.SIGKILL)
        os.kill(flow, signal.SIGKILL)
        process.wait()
    assert job_states(home) == [JobState.RUNNING]
    return run


def test_recover_ends_the_jobs_of_a_cancelled_run_that_nobody_listens_for(
    server: Any, api: Api, deployed: str, home: Path
) -> None:
    run = orphan(server, api, home)
    api.set_state(run, "CANCELLING")
    with worker(server.env, home.parent, "comes", PREFECT_TAO_HOME=str(home)):
        begin(api, "recover/recover", flow_run_id=run)
        wait_for(lambda: api.state(run) == "CANCELLED", 120)
    assert job_states(home) == [JobState.CANCELED]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_without_a_person_the_cancellation_is_finished_after_two_minutes(
    server: Any, api: Api, deployed: str, home: Path
) -> None:
    run = orphan(server, api, home)
    api.set_state(run, "CANCELLING")
    with worker(server.env, home.parent, "comes", PREFECT_TAO_HOME=str(home)):
        wait_for(lambda: api.state(run) == "CANCELLED", 300)
    assert job_states(home) == [JobState.CANCELED]


def test_a_run_that_keeps_crashing_is_left_to_a_person(server: Any, api: Api, deployed: str, home: Path) -> None:
    run = begin(api, "recover/recover", flow_run_id=str(uuid4()))  # a run that no automation looks after
    for state in ("PENDING", "RUNNING", "CRASHED"):
        api.set_state(run, state)
    with worker(server.env, home.parent, PREFECT_TAO_HOME=str(home)):
        care = begin(api, "recover/recover", flow_run_id=run, most_attempts=1)
        wait_for(lambda: api.state(care) == "COMPLETED", 120)
        assert any("it has crashed 1 times" in line for line in api.logs(care))
