"""Whatever goes wrong between launchers and a real Docker engine, in whatever order, no promise is broken."""

from __future__ import annotations

import tempfile
from pathlib import Path

import debian
import pytest
from brev_cloud import brev_cloud
from brev_world import BrevWorld, RentedWorld
from docker_engine import Engine
from docker_world import DockerWorld

from prefect_tao.platforms import doubt
from prefect_tao.platforms.brev import driver, instances, render
from prefect_tao.platforms.docker import observe, submit
from prefect_tao.testing.fault_machine import run_machine

pytestmark = [pytest.mark.xdist_group("docker"), pytest.mark.long]
SEQUENCES = 100
# Each launcher logs in by ssh; the ways through the Docker driver itself are played on the engine without it.
SEQUENCES_OVER_SSH, SEQUENCES_RENTED = 10, 40


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for in doubt, shortened so that many sequences fit into a few minutes."""
    monkeypatch.setattr(doubt, "DOUBT_SECONDS", 3.0)
    monkeypatch.setattr(submit, "RIVAL_SECONDS", 0.5)
    monkeypatch.setattr(submit, "TAKEN_SECONDS", 3.0)
    monkeypatch.setattr(observe, "GONE_SECONDS", 3.0)
    monkeypatch.setattr(driver, "GONE_SECONDS", 3.0)
    monkeypatch.setattr(instances, "MOST_TRIES", 100)


def test_no_order_of_faults_breaks_a_promise_of_containers(engine: Engine, tmp_path: Path) -> None:
    run_machine(lambda draw: DockerWorld(engine, tmp_path), SEQUENCES, steps=8, shrink=False)


def test_no_order_of_faults_breaks_a_promise_on_an_instance_of_brev(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="tao-brev-") as folder, brev_cloud(Path(folder)) as cloud:
        monkeypatch.setenv("PATH", f"{folder}/bin:{debian.PATH}")
        monkeypatch.setenv("HOME", f"{folder}/home")
        run_machine(lambda draw: BrevWorld(cloud, engine, tmp_path), SEQUENCES_OVER_SSH, steps=8, shrink=False)


def test_no_order_of_faults_leaves_anything_rented(
    engine: Engine, another_engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = [engine, another_engine]
    with tempfile.TemporaryDirectory(prefix="tao-brev-") as folder, brev_cloud(Path(folder), engines) as cloud:
        monkeypatch.setenv("PATH", f"{folder}/bin:{debian.PATH}")
        monkeypatch.setenv("HOME", f"{folder}/home")
        monkeypatch.setenv("XDG_CACHE_HOME", f"{folder}/cache")
        monkeypatch.setattr(render, "ON_INSTANCE", str(tmp_path / "disk"))
        run_machine(lambda draw: RentedWorld(cloud, engines, tmp_path), SEQUENCES_RENTED, steps=8, shrink=False)
