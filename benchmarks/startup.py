"""How long it takes until the command line answers and the first gate has spoken, against Prefect's own start."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from datetime import datetime

from benchmarks.measure import Row, in_turn, ms, times
from benchmarks.prefect_service import prefect_server

ROUNDS = 7
RUNS = 5
BARE = """
from prefect import flow, task

@task
def nothing():
    pass

@flow
def bare():
    nothing()

bare()
"""
OURS = "import prefect_tao; prefect_tao.run(command='true')"
ENGINE = "import prefect_tao.jobs.following, prefect_tao.preflight, prefect_tao.platforms.process.driver"


def _python(*words: str) -> None:
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)


def measure() -> list[Row]:
    found = in_turn(
        {
            "prefect": lambda: _python("-c", "import prefect"),
            "help": lambda: _python("-m", "prefect_tao.cli", "--help"),
            "engine": lambda: _python("-c", ENGINE),
        },
        ROUNDS,
    )
    return [
        Row("import prefect", ms(found["prefect"]), "1x"),
        Row("prefect-tao --help", ms(found["help"]), times(found["help"], found["prefect"]), "at most 300 ms"),
        Row("import of the engine", ms(found["engine"]), times(found["engine"], found["prefect"])),
        *_first_results(),
    ]


def _first_results() -> list[Row]:
    """From the start of a process to the end of the first task in its flow."""
    taken: dict[str, list[float]] = {BARE: [], OURS: []}
    with prefect_server() as env:
        for _ in range(RUNS):
            for program, seconds in taken.items():
                began = time.time()
                subprocess.run([sys.executable, "-c", program], env=env, check=True, stdout=subprocess.DEVNULL)
                seconds.append(_first_end(env, began) - began)
    bare, ours = (statistics.median(seconds) for seconds in taken.values())
    return [
        Row("a program with an empty Prefect flow, to the end of its first task", f"{bare:.1f} s", "1x"),
        Row(
            "prefect_tao.run, to the first gate's result",
            f"{ours:.1f} s, {ours - bare:.1f} s more",
            times(ours, bare),
            "at most 2 s more",
        ),
    ]


def _first_end(env: Mapping[str, str], began: float) -> float:
    """When the first task ended of all that were begun since."""
    begun = {"start_time": {"after_": datetime.fromtimestamp(began).astimezone().isoformat()}}
    request = urllib.request.Request(
        f"{env['PREFECT_API_URL']}/task_runs/filter",
        json.dumps({"task_runs": begun}).encode(),
        {"content-type": "application/json"},
    )
    while True:  # the server hears of tasks a moment later
        with urllib.request.urlopen(request, timeout=30) as answer:
            ends = [run["end_time"] for run in json.load(answer) if run["end_time"]]
        if ends:
            return min(datetime.fromisoformat(end).timestamp() for end in ends)
        time.sleep(0.5)
