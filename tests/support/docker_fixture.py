"""The Docker engine as fixtures, apart from what makes it: tests of other things need no Docker client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from docker_engine import Engine
    from docker_proxy import EngineProxy

    from prefect_tao.platforms.docker.driver import DockerPlatform


@pytest.fixture(scope="session")
def another_engine() -> Iterator[Engine]:
    """A second one, for what two sites with one results folder do to each other."""
    from docker_engine import new_engine

    running = new_engine()
    yield running
    running.remove()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """One Docker engine of our own for all tests of the session; it starts when the first one wants it."""
    from docker_engine import new_engine

    running = new_engine()
    yield running
    running.remove()


@pytest.fixture
def proxy(engine: Engine) -> Iterator[EngineProxy]:
    """The engine behind a proxy; its containers are removed after the test."""
    from docker_proxy import EngineProxy

    with EngineProxy(engine.socket, engine.folder / "proxy.sock") as running:
        yield running
    engine.clear()


@pytest.fixture
def docker_platform(proxy: EngineProxy, tmp_path: Path) -> Iterator[DockerPlatform]:
    """The driver behind that proxy, with its results in the test's own folder."""
    from opened_platforms import docker_at

    opened = docker_at("local-docker/test", host=proxy.host, network="none", results_root=str(tmp_path))
    yield opened
    opened.engine.close()
