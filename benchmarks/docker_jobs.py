"""A container from create to known end, beside `docker run`, and how many questions many containers cost.

Needs a Docker engine of its own: Debian, root. `python -m benchmarks.docker_jobs` prints the rows.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from secrets import token_hex

from benchmarks.measure import ROOT, Row, in_turn, ms, times
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform

sys.path.insert(0, str(ROOT / "tests" / "support"))

ROUNDS = 15
MANY = (10, 100)
LOOKS = 10
POLL_SECONDS = 0.02


def measure() -> list[Row]:
    """All with the same image and the same command, on one engine."""
    from docker_engine import PYTHON, new_engine

    engine = new_engine()
    try:
        with tempfile.TemporaryDirectory() as results:
            return [*_speed(engine.host, PYTHON, results), *_questions(engine, PYTHON, results)]
    finally:
        engine.remove()


def _speed(host: str, image: str, results: str) -> list[Row]:
    loop = asyncio.new_event_loop()
    platform = open_platform("local-docker", {"host": host, "network": "none", "results_root": results})

    def by_hand() -> None:
        words = ["docker", "-H", host, "run", "--network", "none", image, "/bin/bash", "-c", "true"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)

    async def job() -> None:
        request = JobRequest.build(command="true", image=image)
        handle = await platform.submit(platform.render(request, token_hex(8), 1), {})
        while not (await platform.observe([handle]))[handle].state.terminal:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)

    loop.run_until_complete(job())  # connects
    found = in_turn({"by hand": by_hand, "ours": lambda: loop.run_until_complete(job())}, ROUNDS)
    loop.run_until_complete(platform.close())
    loop.close()
    return [
        Row("docker run, by command line", ms(found["by hand"]), "1x"),
        Row("prefect-tao, local-docker", ms(found["ours"]), times(found["ours"], found["by hand"]), "at most 1.3x"),
    ]


def _questions(engine: object, image: str, results: str) -> list[Row]:
    return [asyncio.run(_asked(engine, image, results, number)) for number in MANY]


async def _asked(engine: object, image: str, results: str, number: int) -> Row:
    """How many requests a look costs while `number` containers run; they are all at rest."""
    from docker_engine import Engine
    from docker_proxy import EngineProxy

    assert isinstance(engine, Engine)
    with EngineProxy(engine.socket, Path(engine.folder) / "bench.sock") as proxy:
        platform = open_platform("local-docker", {"host": proxy.host, "network": "none", "results_root": results})
        request = JobRequest.build(command="sleep 600", image=image)
        rendered = [platform.render(request, token_hex(8), 1) for _ in range(number)]
        handles = await platform.submit_many((each, {}) for each in rendered)
        await platform.observe(handles)  # the first look at each is a closer one
        before = len(proxy.requests)
        for _ in range(LOOKS):
            await platform.observe(handles)
        asked = (len(proxy.requests) - before) / LOOKS
        await platform.close()
    engine.clear()
    return Row(f"requests per look at {number} running containers", f"{asked:g}", "", "1, whatever the number")


if __name__ == "__main__":
    for row in measure():
        sys.stdout.write(f"| {row.what} | {row.measured} | {row.ratio} | {row.goal} |\n")
