"""A SLURM platform for each fault test; whatever it leaves in the queue is cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from slurm_cluster import Cluster

    from prefect_tao.platforms.slurm.driver import SlurmPlatform


@pytest.fixture
async def platform(cluster: Cluster) -> AsyncIterator[SlurmPlatform]:
    from slurm_faults import open_platform

    opened = open_platform(cluster)
    yield opened
    await opened.close()
    cluster.unshim()
    cluster.run(f"scancel -u {cluster.user}")
