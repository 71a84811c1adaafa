"""Shared fixtures: a home of its own for every test, and a real Prefect server for those that need one."""

from __future__ import annotations

import signal
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from deployed import big as big
from deployed import deployed as deployed
from deployed import standing as standing
from docker_fixture import another_engine as another_engine
from docker_fixture import docker_platform as docker_platform
from docker_fixture import engine as engine
from docker_fixture import proxy as proxy
from kube_fixture import kube as kube
from kube_fixture import kube_session as kube_session
from prefect_server import PrefectServer
from prefect_tools import Api
from s3_fixture import faults as faults
from s3_fixture import s3_server as s3_server
from slurm_fixture import clean_cluster as clean_cluster
from slurm_fixture import cluster as cluster

from prefect_tao.catalog.platform_packages import GROUP

# A shell has what it starts in the background ignore both, and whatever we start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One real Prefect server for the whole session."""
    running = PrefectServer(tmp_path_factory.mktemp("prefect"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


def pytest_sessionstart() -> None:
    """An editable install does not follow pyproject.toml by itself, and without its platforms nothing works."""
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    installed = {point.name: point.value for point in entry_points(group=GROUP)}
    if not declared[GROUP].items() <= installed.items():
        pytest.exit("the installed prefect-tao lacks platforms that pyproject.toml names: run make setup", returncode=3)


@pytest.fixture
def api(server: PrefectServer) -> Api:
    """The server's API."""
    return Api(server.api)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The product's own home, never the user's."""
    for name in ("TAO_RESULTS_ROOT", "S3_BUCKET_NAME", "PREFECT_TAO_GPUS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_TAO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PREFECT_TAO_GPU_LOCKS", str(tmp_path / "gpu-locks"))
    return tmp_path / "home"
