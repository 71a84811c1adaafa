"""Whatever goes wrong between launchers and a cluster, in whatever order, no promise is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from kube_cluster import KubeCluster
from kube_world import KubeWorld

from prefect_tao.platforms.kubernetes import forgotten, submit
from prefect_tao.testing.fault_machine import run_machine

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.long]
SEQUENCES = 100


def test_no_order_of_faults_breaks_a_promise_of_jobs_on_a_cluster(
    kube: KubeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "DOUBT_SECONDS", 3.0)
    monkeypatch.setattr(forgotten, "GONE_SECONDS", 1.0)
    run_machine(lambda draw: KubeWorld(kube, tmp_path), SEQUENCES, steps=8, shrink=False)
