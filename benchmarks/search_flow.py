"""What a search costs over its jobs: processor time of a trial, and trials side by side against one after another."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, ms, times
from benchmarks.prefect_service import prefect_server

TRIALS, AT_ONCE = 100, 4
SLEEPERS, SECONDS = 24, 4.0
METRIC = "cat {config_path} > /dev/null; mkdir -p $TAO_RESULTS_DIR; echo '{\"loss\": 1}' > $TAO_RESULTS_DIR/m.json"


def measure() -> list[Row]:
    """All of it in a process of its own, against a Prefect server of its own."""
    with prefect_server() as env:
        words = [sys.executable, "-m", "benchmarks.search_flow"]
        found = json.loads(subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE).stdout)
    job, trial = found["job"], found["trial"]
    return [
        Row(f"processor time of a job without a search, of {TRIALS}", ms(job)),
        Row(f"processor time of a trial, of {TRIALS} random ones", ms(trial), times(trial, job)),
        Row("of that above the job itself", ms(trial - job), "", "at most 50 ms"),
        Row(f"{SLEEPERS} trials of {SECONDS:g} s, one after another", f"{found['serial']:.1f} s", "1x"),
        Row(
            f"the same, {AT_ONCE} at once",
            f"{found['parallel']:.1f} s",
            f"1/{found['serial'] / found['parallel']:.2f} of that",
            "at most 1/3.5",
        ),
    ]


def _search(trials: int, at_once: int, command: str) -> None:
    import prefect_tao

    os.environ["PREFECT_TAO_HOME"] = tempfile.mkdtemp(dir=os.environ["BENCH_HOME"])
    given: dict[str, Any] = {
        "command": command,
        "specs": {"x": 0.5},
        "custom_param_ranges": {"x": {"valid_min": 0.1, "valid_max": 1.0}},
        "metric": "loss",
        "direction": "minimize",
        "metric_file": "m.json",
        "algorithm": "random",
    }
    found = prefect_tao.automl(**given, max_trials=trials, max_concurrent=at_once)
    assert len(found.points) == trials, "the numbers say nothing"


async def _jobs() -> None:
    """The same jobs, launched and watched without Prefect and without a search."""
    from prefect_tao.jobs.launching import launch
    from prefect_tao.jobs.naming import job_key
    from prefect_tao.jobs.request import JobRequest
    from prefect_tao.jobs.watcher import Watcher
    from prefect_tao.platforms import open_platform

    platform = open_platform("process", {"root": tempfile.mkdtemp(dir=os.environ["BENCH_HOME"])})
    watcher, room = Watcher(platform), asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            request = JobRequest.build(command=METRIC, specs={"x": number})
            await watcher.wait((await launch(platform, request, job_key("bench", str(number)), {})).handle)

    await asyncio.gather(*(one(number) for number in range(TRIALS)))


def _of_each(clock: Callable[[], float], action: Callable[[], object], count: int = 1) -> float:
    started = clock()
    action()
    return (clock() - started) / count


def _inside() -> dict[str, float]:
    os.environ["BENCH_HOME"] = os.environ["PREFECT_TAO_HOME"]
    Path(os.environ["BENCH_HOME"]).mkdir(exist_ok=True)
    _search(2, 2, METRIC)  # the first flow of a process pays for its imports
    asleep = f"sleep {SECONDS:g}; {METRIC}"
    return {
        "job": _of_each(time.process_time, lambda: asyncio.run(_jobs()), TRIALS),
        "trial": _of_each(time.process_time, lambda: _search(TRIALS, AT_ONCE, METRIC), TRIALS),
        "parallel": _of_each(time.perf_counter, lambda: _search(SLEEPERS, AT_ONCE, asleep)),
        "serial": _of_each(time.perf_counter, lambda: _search(SLEEPERS, 1, asleep)),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_inside()))
