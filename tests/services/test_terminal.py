"""Ctrl-C at the terminal: once detaches from the job, twice cancels it. And what went wrong is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from opened_platforms import process_at
from prefect_tools import Api, interrupt, job_states, start, wait_for

from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState

pytestmark = pytest.mark.xdist_group("prefect-server")


def run(server: Any, home: Path, command: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "prefect_tao.cli", "run", "--", command]
    env = {**server.env, "PREFECT_TAO_HOME": str(home)}
    return subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)


def test_one_interrupt_detaches_and_says_how_to_come_back(server: Any, api: Api, home: Path) -> None:
    running = run(server, home, "sleep 60")
    wait_for(lambda: job_states(home) == [JobState.RUNNING], 60)
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Detached: the job goes on" in told
    assert "Traceback" not in told
    (name,) = (path.name for path in (home / "jobs").iterdir())
    assert f"watch {name} --target process" in told
    assert job_states(home) == [JobState.RUNNING]
    left = api.newest_run("run")
    assert (left["state"]["type"], left["state"]["name"]) == ("CANCELLED", "Detached")
    assert f"{name} on process goes on: prefect-tao watch {name} --target process" in left["state"]["message"]
    assert not [line for line in api.logs(left["id"]) if "Crash" in line]
    cancel = [sys.executable, "-m", "prefect_tao.cli", "cancel", name]
    subprocess.run(cancel, env={**os.environ, "PREFECT_TAO_HOME": str(home)}, check=True, capture_output=True)
    assert job_states(home) == [JobState.CANCELED]


def test_a_terminated_run_is_detached_and_says_how_to_come_back(server: Any, home: Path) -> None:
    running = run(server, home, "sleep 60")
    wait_for(lambda: job_states(home) == [JobState.RUNNING], 60)
    time.sleep(1)
    running.send_signal(signal.SIGTERM)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 143, told
    assert "Detached: the job goes on" in told
    assert "Ctrl-C again" not in told
    assert "Traceback" not in told
    (name,) = (path.name for path in (home / "jobs").iterdir())
    assert f"watch {name} --target process" in told
    assert job_states(home) == [JobState.RUNNING]
    cancel = [sys.executable, "-m", "prefect_tao.cli", "cancel", name]
    subprocess.run(cancel, env={**os.environ, "PREFECT_TAO_HOME": str(home)}, check=True, capture_output=True)


def test_whoever_leaves_a_watched_job_is_told_how_to_come_back(home: Path) -> None:
    started = asyncio.run(launch(process_at(home), JobRequest(command="sleep 60"), "0123456789abcdef", {}))
    name, env = started.handle.name, {**os.environ, "PREFECT_TAO_HOME": str(home)}
    words = [sys.executable, "-m", "prefect_tao.cli", "watch", name]
    watching = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)
    assert watching.stderr is not None
    assert any("Running" in line for line in watching.stderr)
    watching.send_signal(signal.SIGINT)
    _, told = watching.communicate(timeout=60)
    assert watching.returncode == 130
    assert f"watch {name}\n" in told  # found by its name alone, as before
    assert job_states(home) == [JobState.RUNNING]
    subprocess.run([*words[:3], "cancel", name], env=env, check=True, capture_output=True)


def test_a_job_that_failed_is_told_with_the_way_to_its_log_and_kept_when_asked_for_otherwise(
    server: Any, home: Path
) -> None:
    env = {**server.env, "PREFECT_TAO_HOME": str(home)}
    words = [sys.executable, "-m", "prefect_tao.cli", "run", "--json", "--run-key", "one"]
    failed = subprocess.run([*words, "--", "echo no such class; exit 3"], env=env, capture_output=True, text=True)
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["state"] == "Error"
    (name,) = (path.name for path in (home / "jobs").iterdir())
    assert failed.stderr.rstrip().endswith(f"logs {name} --target process")
    subprocess.run([*words, "--", "true"], env=env, check=True, capture_output=True)
    changed = subprocess.run([*words, "--", "echo other"], env=env, check=True, capture_output=True, text=True)
    assert "was launched with another request" in changed.stderr
    assert "use another run_key" in changed.stderr
    assert len(job_states(home)) == 2


def test_a_second_interrupt_cancels_the_job(server: Any, api: Api, home: Path) -> None:
    running = run(server, home, "sleep 60")
    wait_for(lambda: job_states(home) == [JobState.RUNNING], 60)
    time.sleep(1)
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    for line in running.stderr:
        if "Ctrl-C again" in line:
            break
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert job_states(home) == [JobState.CANCELED]
    (name,) = (path.name for path in (home / "jobs").iterdir())
    state = api.newest_run("run")["state"]
    assert (state["name"], state["message"]) == ("Cancelled", f"sleep on process: {name} was cancelled and is over")


def test_an_interrupted_script_leaves_its_job_and_one_command_ends_the_run(server: Any, api: Api, home: Path) -> None:
    running = start(server, home, "run", command="sleep 60")
    wait_for(lambda: job_states(home) == [JobState.RUNNING], 60)
    wait_for(lambda: "is Running" in (home.parent / "call.log").read_text(), 30)
    interrupt(running)
    assert running.returncode == -signal.SIGINT
    left = api.newest_run("run")
    assert (left["state"]["name"], job_states(home)) == ("Detached", [JobState.RUNNING])
    cancel = [sys.executable, "-m", "prefect_tao.cli", "cancel", "--run", left["id"]]
    subprocess.run(cancel, env={**server.env, "PREFECT_TAO_HOME": str(home)}, check=True, capture_output=True)
    assert job_states(home) == [JobState.CANCELED]
    assert api.run(left["id"])["state"]["name"] == "Cancelled"


def test_a_missing_secret_is_one_error_and_no_traceback(server: Any, home: Path) -> None:
    env = {**server.env, "PREFECT_TAO_HOME": str(home)}
    words = [sys.executable, "-m", "prefect_tao.cli", "run", "--secret", "NO_SUCH", "--", "true"]
    refused = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    told = [line for line in refused.stderr.splitlines() if "starting Prefect" not in line]
    assert told == [
        "error: NO_SUCH is missing: the job asks for it",
        "  what to do: set NO_SUCH where the launch runs, or save it as a Prefect Secret block named no-such",
    ]


def test_a_server_that_does_not_answer_is_told_with_the_next_step(home: Path) -> None:
    env = {**os.environ, "PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_TAO_HOME": str(home)}
    words = [sys.executable, "-m", "prefect_tao.cli", "run", "--", "true"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Prefect's server at http://127.0.0.1:9/api does not answer" in done.stderr
    assert "unset PREFECT_API_URL" in done.stderr
    assert "Traceback" not in done.stderr
    assert not home.exists()
