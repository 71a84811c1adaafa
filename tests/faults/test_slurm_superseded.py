"""A job that SLURM starts again while its first run still lives: the older run notices, and stops."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from slurm_cluster import Cluster
from slurm_faults import says, start, until

from prefect_tao.platforms.slurm.driver import SlurmPlatform

# The older run looks every 10 s, and the new one waits up to 30 s for it.
pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.long]
BEATS = 'echo begun; for n in $(seq 600); do date +%s.%N >>"$TAO_RESULTS_DIR/beats-$TAO_RESTARTS"; sleep 0.2; done'


def beats(platform: SlurmPlatform, key: str, run: int) -> list[float]:
    """When a run of the job was alive."""
    path = Path(platform.place.results_of(key)) / "results_dir" / f"beats-{run}"
    return [float(line) for line in path.read_text().split()] if path.exists() else []


async def test_a_run_whose_slurmd_died_never_works_beside_the_run_in_its_place(
    clean_cluster: Cluster, platform: SlurmPlatform
) -> None:
    handle = await start(platform, BEATS)
    await says(platform, handle, "begun")
    (node,) = [replica.name for replica in await platform.replicas(handle)]
    clean_cluster.stop_daemon("slurmd", node, signal.SIGKILL)
    clean_cluster.admin(f"scontrol update nodename={node} state=down reason=test")

    async def second() -> bool:
        return len(beats(platform, handle.key, 1)) > 10

    await until(second, 120)
    await asyncio.sleep(2)
    first, last = beats(platform, handle.key, 1)[0], beats(platform, handle.key, 0)[-1]
    assert last < first, f"both ran for {last - first:.0f} s"
