"""Whatever goes wrong between launchers and a real Docker engine, in whatever order, no promise is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from docker_engine import Engine
from docker_world import DockerWorld

from prefect_tao.platforms.docker import observe, submit
from prefect_tao.testing.fault_machine import run_machine

pytestmark = [pytest.mark.xdist_group("docker"), pytest.mark.long]
SEQUENCES = 100


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for in doubt, shortened so that many sequences fit into a few minutes."""
    monkeypatch.setattr(submit, "DOUBT_SECONDS", 3.0)
    monkeypatch.setattr(submit, "RIVAL_SECONDS", 0.5)
    monkeypatch.setattr(submit, "TAKEN_SECONDS", 3.0)
    monkeypatch.setattr(observe, "GONE_SECONDS", 3.0)


def test_no_order_of_faults_breaks_a_promise_of_containers(engine: Engine, tmp_path: Path) -> None:
    run_machine(lambda draw: DockerWorld(engine, tmp_path), SEQUENCES, steps=8, shrink=False)
