"""The SLURM driver keeps the contract, on a real cluster behind a real sshd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from slurm_cluster import Cluster
from slurm_tools import open_cluster

from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.slurm.driver import SlurmPlatform
from prefect_tao.testing.contract import LONG, SharedResultsContract
from prefect_tao.testing.this_machine import OnThisMachine

pytestmark = pytest.mark.xdist_group("slurm")


class TestSlurm(OnThisMachine, SharedResultsContract):
    cancel_seconds = 45.0

    @pytest.fixture
    def platform(self, cluster: Cluster) -> Iterator[Platform]:
        yield open_cluster(cluster)
        cluster.run(f"scancel -u {cluster.user}")

    def another(self, platform: Platform) -> Platform:
        assert isinstance(platform, SlurmPlatform)
        return open_cluster(self.cluster, platform.place.base)

    @contextmanager
    def elsewhere(self, platform: Platform) -> Iterator[Platform]:
        """A driver that takes the cluster for another one, which shares its file system."""
        other = self.another(platform)
        assert isinstance(other, SlurmPlatform)
        other._site = "SLURM cluster far, user me"
        yield other

    def written(self, platform: Platform) -> dict[str, bytes]:
        assert isinstance(platform, SlurmPlatform)
        files = sorted(Path(platform.place.base).rglob("*"))
        return {str(path): path.read_bytes() for path in files if path.is_file()}

    def waiting_request(self, platform: Platform) -> JobRequest:
        # One GPU of every node is in use, and the job wants all of them.
        self.cluster.run(
            "sbatch --parsable --partition=polar --nodes=4 --gpus-per-node=1 --output=none --wrap 'sleep 300'"
        )
        return self.request(LONG, resources={"gpus": 8, "nodes": 4}, secrets=["TOKEN"])

    @contextmanager
    def outage(self, platform: Platform) -> Iterator[None]:
        """The login node does not answer any more: sshd and all its sessions are gone."""
        assert isinstance(platform, SlurmPlatform)
        cluster = self.cluster
        cluster.stop_daemon("sshd")
        cluster.kill_ssh_sessions()
        try:
            yield
        finally:
            cluster.start_daemon("sshd")

    @pytest.fixture(autouse=True)
    def _keep_cluster(self, cluster: Cluster) -> None:
        self.cluster = cluster
