"""Whatever goes wrong between launchers and a real SLURM cluster, in whatever order, no promise is broken."""

from __future__ import annotations

from pathlib import Path

import pytest
from proxy import Proxy
from slurm_cluster import Cluster
from slurm_world import BadDays, SlurmWorld

from prefect_tao.testing.fault_machine import run_machine

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.long]
SEQUENCES = 50


def test_no_order_of_faults_breaks_a_promise_of_slurm(cluster: Cluster, tmp_path: Path) -> None:
    bad_days = BadDays(cluster)
    with Proxy(cluster.ssh_port) as line:
        hosts = tmp_path / "known_hosts"
        hosts.write_text(cluster.known_hosts.read_text().replace(f":{cluster.ssh_port}", f":{line.port}"))
        run_machine(lambda draw: SlurmWorld(cluster, line, bad_days, hosts), SEQUENCES, steps=8, shrink=False)
