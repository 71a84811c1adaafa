"""Fifty runs within ten seconds on the server that `make ui` starts: all end right, and it always answers in time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import prefect_tools
import pytest
from deployed import ROOT, begin, switch_off, worker
from own_server import ended, environment, ui
from prefect_tools import Api, wait_for

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("own-server"), pytest.mark.timeout(1500)]
RUNS, WITHIN_SECONDS, SLOWEST_SECONDS = 50, 10.0, 2.0
OVER = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]}}}}


class Health:
    """Asks the server twice a second how it is: how long each answer took, and what was no answer."""

    def __init__(self, url: str) -> None:
        self.url, self.seconds, self.faults = url, list[float](), list[str]()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Health:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        while not self._over.wait(0.5):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=60) as answer:
                    answer.read()
            except OSError as error:
                self.faults.append(str(error))
            self.seconds.append(time.monotonic() - began)


def begin_once(api: Api, number: int) -> str:
    """Without a second try where the server is too busy, as a form has none."""
    try:
        return begin(api, "run/run", command=f"echo {number}")
    except urllib.error.HTTPError as error:
        raise AssertionError(f"the server refused run {number}: {error}") from error


def test_fifty_runs_at_once_end_right_and_the_server_always_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect_tools, "BUSY", None)  # a 503 is a failure here
    with ui(tmp_path) as api:
        env = environment(tmp_path, PREFECT_API_URL=api.url)
        deploying = [sys.executable, "-m", "prefect_tao.deployments"]
        told = subprocess.run(deploying, env=environment(tmp_path), cwd=ROOT, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        assert "at most 10 runs at once" in told.stdout
        switch_off(api)
        with worker(env, tmp_path, "many"), Health(api.url) as health:
            began = time.monotonic()
            with ThreadPoolExecutor(10) as people:
                started = list(people.map(lambda number: begin_once(api, number), range(RUNS)))
            took = time.monotonic() - began
            wait_for(lambda: api.ask("POST", "/flow_runs/count", OVER) == RUNS, 1200)
            states = {run: api.state(run) for run in started}
        print(f"created in {took:.1f} s, slowest answer {max(health.seconds):.2f} s of {len(health.seconds)}")
        assert took < WITHIN_SECONDS
        assert set(states.values()) == {"COMPLETED"}, states
        assert health.faults == []
        assert max(health.seconds) < SLOWEST_SECONDS, sorted(health.seconds)[-5:]
        assert len(health.seconds) > RUNS
    assert ended(tmp_path)
