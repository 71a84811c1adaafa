"""What the SLURM tests share: a driver for the loopback cluster, and the steps of a job on it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from opened_platforms import slurm_at
from slurm_cluster import Cluster

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.platforms.slurm.driver import SlurmPlatform


def settings(cluster: Cluster, base: str | None = None, **more: Any) -> dict[str, Any]:
    """What a driver on this cluster is made of, as a block would give it, with a base folder of its own."""
    given = {
        "user": cluster.user,
        "hostnames": [cluster.host],
        "partition": cluster.partition,
        "account": cluster.account if cluster.site.accounting else None,
        "results_root": base or f"{cluster.shared}/base-{token_hex(4)}",
        "ssh_key_path": str(cluster.key_path),
        "ssh_port": cluster.ssh_port,
        "known_hosts": str(cluster.known_hosts),
        "container_mounts": [],
        "cpus": 1,
        "sqsh_memory_gb": 1,
    }
    return {**given, **more}


def open_cluster(cluster: Cluster, base: str | None = None, **more: Any) -> SlurmPlatform:
    """A driver for the cluster."""
    return slurm_at("slurm/loopback", **settings(cluster, base, **more))


async def start(
    platform: SlurmPlatform,
    command: str,
    key: str | None = None,
    attempt: int = 1,
    secrets: Mapping[str, str] | None = None,
    **fields: Any,
) -> JobHandle:
    """Submit one attempt of a job, under a key of its own when none is given."""
    request = JobRequest.build(command=command, secrets=list(secrets or {}), **fields)
    return await platform.submit(platform.render(request, key or token_hex(8), attempt), secrets or {})


async def until(platform: SlurmPlatform, handle: JobHandle, *states: JobState, seconds: float = 60) -> Observation:
    """The job once it is in one of `states`, or over."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        seen = (await platform.observe([handle])).get(handle)
        if seen and (seen.state in states or seen.state.terminal):
            return seen
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds:g} s: {seen}"
        await asyncio.sleep(0.1)
