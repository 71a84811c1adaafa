"""What a sweep costs over its parts: 200 no-op points, against bare Prefect tasks plus the jobs alone, in one run."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Row, in_turn, times
from benchmarks.prefect_service import prefect_server

POINTS = 200
AT_ONCE = 16
ROUNDS = 3
COMMAND = "test -n {config_path}"


def measure() -> list[Row]:
    """All three in a process of its own, against a Prefect server of its own."""
    with prefect_server() as env:
        words = [sys.executable, "-m", "benchmarks.sweep"]
        told = subprocess.run(words, env=env, check=True, stdout=subprocess.PIPE).stdout
    found = json.loads(told)
    parts = found["tasks"] + found["jobs"]
    return [
        Row(f"{POINTS} bare Prefect tasks that do nothing, persisted", f"{found['tasks']:.1f} s"),
        Row(f"{POINTS} jobs that do nothing, {AT_ONCE} at once, without Prefect", f"{found['jobs']:.1f} s"),
        Row("both together", f"{parts:.1f} s", "1x"),
        Row(
            f"a sweep of {POINTS} such points, {AT_ONCE} at once",
            f"{found['sweep']:.1f} s",
            times(found["sweep"], parts),
            "at most 1.5x both together",
        ),
    ]


def _inside() -> dict[str, float]:
    from prefect import flow, task

    import prefect_tao
    from prefect_tao.jobs.launching import launch
    from prefect_tao.jobs.naming import job_key
    from prefect_tao.jobs.request import JobRequest
    from prefect_tao.jobs.watcher import Watcher
    from prefect_tao.platforms import open_platform

    @task(persist_result=True)
    async def nothing(number: int) -> int:
        return number

    @flow
    async def bare() -> None:
        await asyncio.gather(*(nothing(number) for number in range(POINTS)))

    home = os.environ["PREFECT_TAO_HOME"]

    async def jobs() -> None:
        platform = open_platform("process", {"root": tempfile.mkdtemp(dir=home)})
        watcher, room = Watcher(platform), asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with room:
                request = JobRequest.build(command=COMMAND, specs={"number": number})
                launched = await launch(platform, request, job_key("bench", str(number)), {})
                await watcher.wait(launched.handle)

        await asyncio.gather(*(one(number) for number in range(POINTS)))

    def sweep() -> None:
        os.environ["PREFECT_TAO_HOME"] = tempfile.mkdtemp(dir=home)  # as empty each time as that of the jobs alone
        prefect_tao.sweep(command=COMMAND, over={"number": list(range(POINTS))}, max_concurrent=AT_ONCE)

    Path(home).mkdir(exist_ok=True)
    asyncio.run(bare())  # the first flow of a process pays for its imports
    return in_turn({"tasks": lambda: asyncio.run(bare()), "jobs": lambda: asyncio.run(jobs()), "sweep": sweep}, ROUNDS)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_inside()))
