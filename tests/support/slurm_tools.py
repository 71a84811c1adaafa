"""What the SLURM tests share: a driver for the loopback cluster, and the steps of a job on it."""

from __future__ import annotations

import asyncio
from secrets import token_hex

from slurm_cluster import Cluster

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.platforms.slurm.driver import SlurmPlatform


def open_cluster(cluster: Cluster, base: str | None = None, **settings: object) -> SlurmPlatform:
    """A driver as a block would make it, with a base folder of its own."""
    given: dict[str, object] = {
        "user": cluster.user,
        "hostnames": ["127.0.0.1"],
        "partition": "polar",
        "account": "tao",
        "results_root": base or f"{cluster.shared}/base-{token_hex(4)}",
        "ssh_key_path": str(cluster.key_path),
        "ssh_port": cluster.ssh_port,
        "known_hosts": str(cluster.known_hosts),
        "cpus": 1,
        "sqsh_memory_gb": 1,
    }
    return SlurmPlatform("slurm/loopback", **{**given, **settings})  # type: ignore[arg-type]


async def start(platform: SlurmPlatform, command: str, **fields: object) -> JobHandle:
    """Submit a job under a key of its own."""
    rendered = platform.render(JobRequest.build(command=command, **fields), token_hex(8), 1)
    return await platform.submit(rendered, {})


async def until(platform: SlurmPlatform, handle: JobHandle, *states: JobState, seconds: float = 60) -> Observation:
    """The job once it is in one of `states`, or over."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        seen = (await platform.observe([handle])).get(handle)
        if seen and (seen.state in states or seen.state.terminal):
            return seen
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds:g} s: {seen}"
        await asyncio.sleep(0.1)
