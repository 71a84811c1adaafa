"""What the tests of Docker jobs share: drivers behind a proxy, small requests, waiting, and images with GPUs."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from docker_engine import GPU, IDLE_SMI, NVIDIA_SMI, PYTHON, Engine
from docker_proxy import EngineProxy
from opened_platforms import docker_at

from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.platforms.docker.driver import DockerPlatform

Opener = Callable[..., DockerPlatform]


@pytest.fixture
async def opened(proxy: EngineProxy, tmp_path: Path) -> AsyncIterator[Opener]:
    platforms: list[DockerPlatform] = []

    def open_platform(**settings: Any) -> DockerPlatform:
        given = {"host": proxy.host, "network": "none", "results_root": str(tmp_path / "results"), **settings}
        platforms.append(docker_at("local-docker/test", **given))
        return platforms[-1]

    yield open_platform
    for platform in platforms:
        await platform.close()


@pytest.fixture
def gpu_image(engine: Engine) -> str:
    """An image in which nvidia-smi tells of two GPUs."""
    if GPU not in [tag for image in engine.client.images() for tag in image["RepoTags"] or []]:
        make_gpu_image(engine, GPU, NVIDIA_SMI)
    return GPU


@pytest.fixture
def idle_image(engine: Engine) -> Iterator[str]:
    """The same with two GPUs that nobody uses."""
    make_gpu_image(engine, "tao-test:idle", IDLE_SMI)
    yield "tao-test:idle"
    engine.clear()
    engine.client.remove_image("tao-test:idle")


def make_gpu_image(engine: Engine, name: str, nvidia_smi: str) -> None:
    made = engine.client.create_container(PYTHON, "true")["Id"]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("bin/nvidia-smi")
        entry.size, entry.mode = len(nvidia_smi), 0o755
        tar.addfile(entry, io.BytesIO(nvidia_smi.encode()))
    engine.client.put_archive(made, "/", archive.getvalue())
    engine.client.commit(made, *name.split(":"))
    engine.client.remove_container(made)


def request(command: str = "true", **fields: object) -> JobRequest:
    return JobRequest.build(**{"command": command, "image": PYTHON, **fields})


async def start(platform: Platform, command: str = "true", secrets: Any = None, **fields: object) -> JobHandle:
    return await platform.submit(platform.render(request(command, **fields), token_hex(8), 1), secrets or {})


async def until(platform: Platform, handle: JobHandle, *states: JobState) -> Observation:
    async with asyncio.timeout(60):
        while True:
            seen = (await platform.observe([handle])).get(handle)
            if seen and (seen.state in states if states else seen.state.terminal):
                return seen
            await asyncio.sleep(0.05)


async def says(platform: Platform, handle: JobHandle, text: str) -> None:
    async with asyncio.timeout(60):
        while True:
            if text in (await platform.logs(handle)).text:
                return
            await asyncio.sleep(0.05)


def found(findings: list[Finding], check: str) -> list[tuple[Level, str]]:
    return [(finding.level, finding.message) for finding in findings if finding.subject == check]
