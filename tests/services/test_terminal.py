"""Ctrl-C at the terminal: once detaches from the job, twice cancels it. And a server that is not there is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import job_states, wait_for

from prefect_tao.jobs.state import JobState

pytestmark = pytest.mark.xdist_group("prefect-server")


def run(server: Any, home: Path, command: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "prefect_tao.cli", "run", "--", command]
    env = {**server.env, "PREFECT_TAO_HOME": str(home)}
    return subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)


def test_one_interrupt_detaches_and_says_how_to_come_back(server: Any, home: Path) -> None:
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
    cancel = [sys.executable, "-m", "prefect_tao.cli", "cancel", name]
    subprocess.run(cancel, env={**os.environ, "PREFECT_TAO_HOME": str(home)}, check=True, capture_output=True)
    assert job_states(home) == [JobState.CANCELED]


def test_a_second_interrupt_cancels_the_job(server: Any, home: Path) -> None:
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


def test_a_server_that_does_not_answer_is_told_with_the_next_step(home: Path) -> None:
    env = {**os.environ, "PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_TAO_HOME": str(home)}
    words = [sys.executable, "-m", "prefect_tao.cli", "run", "--", "true"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Prefect's server at http://127.0.0.1:9/api does not answer" in done.stderr
    assert "unset PREFECT_API_URL" in done.stderr
    assert "Traceback" not in done.stderr
    assert not home.exists()
