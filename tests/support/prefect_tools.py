"""What the flow tests share: calling a flow in a process of its own, and asking the server's API."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opened_platforms import process_at

from prefect_tao.jobs.naming import run_label
from prefect_tao.jobs.state import JobState

BUSY, BUSY_SECONDS = 503, 30.0
CALL = "import json, sys, prefect_tao; getattr(prefect_tao, sys.argv[1])(**json.loads(sys.argv[2]))"


def interrupt(process: subprocess.Popen[bytes]) -> None:
    """End a process as Ctrl-C does; one that does not hear is killed."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true answer of `condition`; an AssertionError when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {condition}")


def start(server: Any, home: Path, flow: str, api: str = "", **parameters: Any) -> subprocess.Popen[bytes]:
    """Call a flow as a script would, in a process of its own, and do not wait for it."""
    env = {**server.env, "PREFECT_TAO_HOME": str(home), "PREFECT_API_URL": api or server.api}
    words = [sys.executable, "-c", CALL, flow, json.dumps(parameters)]
    with open(home.parent / "call.log", "ab") as log:
        return subprocess.Popen(words, env=env, stdout=log, stderr=log)


def call(server: Any, flow: str, **parameters: Any) -> Any:
    """Call a flow in this process, against the test's server."""
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    import prefect_tao

    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        return getattr(prefect_tao, flow)(**parameters)


def job_states(home: Path, run: str | None = None) -> list[JobState]:
    """The states of all jobs below a home of the process platform, or of those of one flow run."""
    labels = {"run": run_label(run)} if run else {}

    async def look() -> list[JobState]:
        platform = process_at(home)
        return [seen.state for seen in (await platform.observe(await platform.jobs(labels))).values()]

    return asyncio.run(look())


class Api:
    """The few questions that tests ask of Prefect's API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers, method=method)
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                # SQLite lets a writer wait for up to a minute.
                with urllib.request.urlopen(request, timeout=90) as answer:
                    text = answer.read()
                return json.loads(text) if text else None
            except urllib.error.HTTPError as error:
                # A database that is locked for the moment; Prefect's own clients ask again too.
                if error.code != BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def newest_run(self, flow: str) -> dict[str, Any]:
        body = {"sort": "START_TIME_DESC", "limit": 1, "flows": {"name": {"any_": [flow]}}}
        found: list[dict[str, Any]] = self.ask("POST", "/flow_runs/filter", body)
        return found[0]

    def run_with(self, command: str) -> dict[str, Any] | None:
        """The run of the flow `run` that was given this command, once there is one."""
        body = {"sort": "EXPECTED_START_TIME_DESC", "limit": 50, "flows": {"name": {"any_": ["run"]}}}
        found: list[dict[str, Any]] = self.ask("POST", "/flow_runs/filter", body)
        return next((run for run in found if run["parameters"].get("command") == command), None)

    def run(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("GET", f"/flow_runs/{run_id}")
        return found

    def deployment(self, name: str) -> str | None:
        try:
            return str(self.ask("GET", f"/deployments/name/{name}")["id"])
        except urllib.error.HTTPError:
            return None

    def state(self, run_id: str) -> str:
        return str(self.run(run_id)["state"]["type"])

    def states(self, run_id: str) -> list[dict[str, Any]]:
        """All states that a run has had, the oldest first."""
        found: list[dict[str, Any]] = self.ask("GET", f"/flow_run_states/?flow_run_id={run_id}")
        return sorted(found, key=lambda state: state["timestamp"])

    def count(self) -> int:
        """How many runs there are of what people start; schedules and automations start theirs at any time."""
        people = {"deployments": {"name": {"any_": ["run", "chain", "sweep", "automl", "watch", "quickstart"]}}}
        return int(self.ask("POST", "/flow_runs/count", people))

    def set_state(self, run_id: str, state: str) -> None:
        self.ask("POST", f"/flow_runs/{run_id}/set_state", {"state": {"type": state}, "force": state == "SCHEDULED"})

    def retry(self, run_id: str) -> None:
        """What the button of Prefect's UI does; the server may refuse it."""
        body = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": False}
        answer = self.ask("POST", f"/flow_runs/{run_id}/set_state", body)
        assert answer["status"] == "ACCEPT", answer

    def task_runs(self, run_id: str) -> list[dict[str, Any]]:
        def settled() -> list[dict[str, Any]]:
            body = {"flow_runs": {"id": {"any_": [run_id]}}}
            found: list[dict[str, Any]] = self.ask("POST", "/task_runs/filter", body)
            return found if found and all(one["state"] and one["state"]["type"] != "PENDING" for one in found) else []

        found: list[dict[str, Any]] = wait_for(settled, 20)
        return found

    def page(self, kind: str, key: str) -> dict[str, Any]:
        """The newest page of this kind about the job, chain or sweep of this key."""
        body = {"artifacts": {"key": {"like_": f"-{key[:6]}"}}, "sort": "UPDATED_DESC"}
        found = [one for one in self.ask("POST", "/artifacts/filter", body) if one["key"].startswith(f"{kind}-")]
        assert found, f"there is no page {kind} of {key}"
        return dict(found[0])

    def logs(self, run_id: str) -> list[str]:
        def some() -> list[str]:
            body = {"logs": {"flow_run_id": {"any_": [run_id]}}, "limit": 200}
            return [line["message"] for line in self.ask("POST", "/logs/filter", body)]

        time.sleep(2.5)  # Prefect's clients send their logs in batches
        found: list[str] = wait_for(some, 20)
        return found
