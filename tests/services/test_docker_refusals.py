"""What an engine, a host or an image refuses is told with what to do, and leaves nothing half-done."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from docker_engine import PYTHON, Engine
from docker_images import image_archive
from opened_platforms import docker_at
from small_disk import small_disk

from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.verdict import Category, Verdict
from prefect_tao.platforms import site_notes
from prefect_tao.platforms.docker.driver import DockerPlatform

__all__ = ["small_disk"]
pytestmark = pytest.mark.xdist_group("docker")
NOBODY = 65534
AARCH64 = 183
# It gives up its rights itself, once all is imported: others may not even start the interpreter of the tests.
ASK = """
import asyncio, json, os, sys
import docker, httpx
from prefect_tao.jobs.errors import TaoError, Unreachable
from prefect_tao.platforms import open_platform

async def main(user, host, root):
    platform = open_platform("local-docker/test", {"host": host, "network": "none", "results_root": root})
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
    try:
        return [finding.model_dump(mode="json") for finding in await platform.probe()]
    except TaoError as error:
        return {"unreachable": isinstance(error, Unreachable), "cause": error.cause, "remedy": error.remedy}

print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
"""


@pytest.fixture(autouse=True)
def empty(engine: Engine) -> Iterator[None]:
    yield
    engine.clear()


def ask_as_nobody(engine: Engine, root: Path) -> Any:
    """What the probe says to a user without any rights."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user: run as root")
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(NOBODY), engine.host, str(root)],
        env={**os.environ, "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def verdict_of(platform: DockerPlatform, request: JobRequest) -> Verdict:
    """Why the job failed."""
    handle = await platform.submit(platform.render(request, token_hex(8), 1), {})
    async for _ in platform.follow(handle):
        pass
    assert (await platform.observe([handle]))[handle].state is JobState.ERROR
    return await platform.diagnose(handle)


def opened(engine: Engine, root: Path, **settings: Any) -> DockerPlatform:
    return docker_at("local-docker/test", host=engine.host, network="none", results_root=str(root), **settings)


# -- rights ------------------------------------------------------------------------------------------------------------


def test_a_socket_that_one_may_not_use_is_told_with_the_group_to_join(engine: Engine, tmp_path: Path) -> None:
    engine.folder.chmod(0o755)
    engine.socket.chmod(0o660)
    told = ask_as_nobody(engine, tmp_path)
    assert told["unreachable"]
    assert "this user may not use the Docker engine" in told["cause"]
    assert "usermod -aG docker" in told["remedy"]


def open_to_all(path: Path) -> None:
    """Let everybody enter the folder; pytest keeps its own to the user."""
    for folder in (path, *path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)


def test_a_results_folder_of_root_is_told_with_whom_to_give_it_to(engine: Engine, tmp_path: Path) -> None:
    engine.folder.chmod(0o755)
    engine.socket.chmod(0o666)
    root = tmp_path / "results"
    root.mkdir(mode=0o755)
    open_to_all(tmp_path)
    try:
        told = ask_as_nobody(engine, root)
    finally:
        engine.socket.chmod(0o660)
    (found,) = [finding for finding in told if finding["subject"] == "results"]
    assert (found["level"], os.listdir(root)) == ("fail", [])
    assert f"cannot be written by the user {NOBODY}:{NOBODY}" in found["message"]
    assert f"sudo chown {NOBODY}:{NOBODY} {root}" in found["remedy"]


async def test_relative_paths_of_a_job_that_does_not_run_as_root_are_found(engine: Engine, tmp_path: Path) -> None:
    async def told(**fields: Any) -> list[str]:
        request = JobRequest.build(command="true", image=PYTHON, **fields)
        found = await opened(engine, tmp_path, user=f"{NOBODY}:{NOBODY}").probe(request)
        return [finding.message for finding in found if finding.subject == "paths"]

    (words,) = await told(inputs={"data/x": "/etc/hostname"}, outputs=["out"])
    assert words.startswith("paths: data/x, out: relative to the folder that the image begins in")
    assert await told(inputs={"/tmp/x": "/etc/hostname"}, outputs=["/tmp/out"]) == []
    assert await told(outputs=["out"], workdir="/tmp") == []


async def test_a_job_that_may_not_write_its_results_says_which_folder(engine: Engine, tmp_path: Path) -> None:
    root = tmp_path / "results"
    root.mkdir(mode=0o755)
    open_to_all(tmp_path)
    platform = opened(engine, root, user=f"{NOBODY}:{NOBODY}")
    verdict = await verdict_of(platform, JobRequest.build(command="true", image=PYTHON))
    assert not verdict.retryable
    assert "Permission denied" in verdict.cause + verdict.log_excerpt
    assert str(root) in verdict.cause + verdict.log_excerpt
    assert verdict.remedy
    assert os.listdir(root) == [site_notes.FOLDER]
    await platform.close()


# -- a full disk -------------------------------------------------------------------------------------------------------


async def test_results_that_fill_the_disk_are_a_verdict_about_storage(engine: Engine, small_disk: Path) -> None:
    platform = opened(engine, small_disk / "results")
    command = 'dd if=/dev/zero of="$TAO_RESULTS_DIR/model.pth" bs=1M count=8'
    verdict = await verdict_of(platform, JobRequest.build(command=command, image=PYTHON))
    assert verdict.category is Category.STORAGE
    assert "No space left" in verdict.log_excerpt
    assert verdict.remedy
    await platform.close()


async def test_outputs_that_do_not_fit_are_a_verdict_and_no_half_file(engine: Engine, small_disk: Path) -> None:
    platform = opened(engine, small_disk / "results")
    command = "mkdir /tmp/out; echo 1 > /tmp/out/small; head -c 6000000 /dev/zero > /tmp/out/model.pth"
    verdict = await verdict_of(platform, JobRequest.build(command=command, image=PYTHON, outputs=["/tmp/out"]))
    assert verdict.category is Category.STORAGE
    files = [path.relative_to(small_disk) for path in small_disk.rglob("*") if path.is_file()]
    kept = [path.name for path in files if path.parent.name != "attempts" and site_notes.FOLDER not in path.parts]
    assert kept == ["small"]
    await platform.close()


# -- another processor -------------------------------------------------------------------------------------------------


@pytest.fixture
def foreign(engine: Engine) -> Iterator[str]:
    """An image whose shell is a program for another processor, although the image says nothing of it."""
    facts = struct.pack("<HHIQQQIHHHHHH", 2, AARCH64, 1, 0, 64, 0, 0, 64, 56, 0, 0, 0, 0)
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + facts
    archive = image_archive("tao-test:foreign", "amd64", {"bin/sh": header, "bin/bash": header})
    assert list(engine.client.load_image(archive))
    yield "tao-test:foreign"
    engine.clear()
    engine.client.remove_image("tao-test:foreign", force=True)


async def test_an_image_for_another_processor_is_told_as_such_when_it_is_started(
    engine: Engine, tmp_path: Path, foreign: str
) -> None:
    platform = opened(engine, tmp_path / "results")
    verdict = await verdict_of(platform, JobRequest.build(command="true", image=foreign))
    assert not verdict.retryable
    assert "exec format error" in verdict.cause
    assert "for this processor type" in verdict.remedy
    await platform.close()
