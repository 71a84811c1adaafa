"""kill -9 of the launcher at random moments, then a new launch: exactly one job each time."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

LAUNCHER = """
import asyncio, sys
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms import open_platform

async def main(root, key, marker):
    platform = open_platform("process", {"root": root})
    request = JobRequest.build(command=f"echo $$ >> {marker}; sleep 0.3")
    print("ready", flush=True)
    launched = await launch(platform, request, key, {"TOKEN": "t"})
    print((await Watcher(platform).wait(launched.handle)).state.value, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""
QUICK = 5
FULL = 50


def launcher(root: Path, key: str, marker: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", LAUNCHER, str(root), key, str(marker)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def seeds() -> list[object]:
    return [seed if seed < QUICK else pytest.param(seed, marks=pytest.mark.long) for seed in range(FULL)]


@pytest.mark.parametrize("seed", seeds())
def test_a_launcher_killed_at_any_moment_leaves_one_job(tmp_path: Path, seed: int) -> None:
    marker, key = tmp_path / "ran", f"{seed:016x}"
    chance = random.Random(seed)
    for _ in range(2):  # two launchers die on the way, the third one lives
        doomed = launcher(tmp_path / "home", key, marker)
        time.sleep(chance.uniform(0.0, 0.12))
        doomed.kill()
        doomed.wait()
    last = launcher(tmp_path / "home", key, marker)
    assert last.stdout is not None
    assert last.stdout.read() == "Complete\n"  # not communicate, which drops what came together with the line before
    assert last.wait(timeout=60) == 0
    assert len(marker.read_text().splitlines()) == 1
    assert [path.name for path in (tmp_path / "home" / "jobs").glob("tao-*")] == [f"tao-{key}-1"]


@pytest.mark.parametrize("launchers", [2, pytest.param(8, marks=pytest.mark.long)])
def test_launchers_with_one_key_at_once_make_one_job(tmp_path: Path, launchers: int) -> None:
    marker, key = tmp_path / "ran", "ab" * 8
    running = [launcher(tmp_path / "home", key, marker) for _ in range(launchers)]
    assert {process.communicate(timeout=60)[0] for process in running} == {"Complete\n"}
    assert len(marker.read_text().splitlines()) == 1
