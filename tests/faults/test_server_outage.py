"""Prefect's server is out of reach while a job is watched, and when it ends: the run still ends right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import Api, start, wait_for
from proxy import Proxy

# Those who share the one server run one after the other.
pytestmark = pytest.mark.xdist_group("prefect-server")
OUTAGE_SECONDS = 30


def test_a_run_whose_job_ends_while_the_server_is_away_still_completes(server: Any, home: Path) -> None:
    marker = home.parent / "ran"
    with Proxy(server.port) as proxy:
        api = Api(server.api)
        running = start(
            server, home, "run", api=proxy.api, command=f"echo once >> {marker}; sleep 10", status_interval_minutes=0.05
        )
        wait_for(marker.exists, 60)
        run = api.newest_run("run")["id"]
        proxy.cut()
        time.sleep(OUTAGE_SECONDS)
        assert running.poll() is None, (home.parent / "call.log").read_text()
        assert api.state(run) == "RUNNING"
        proxy.mend()
        assert running.wait(90) == 0, (home.parent / "call.log").read_text()
    assert api.state(run) == "COMPLETED"
    assert marker.read_text() == "once\n"
