"""What tests of jobs on the stand-in cluster share: platforms that lead to it, jobs, and faults of its line."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import IMAGE, KubeCluster
from opened_platforms import kubernetes_at

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.testing.contract import COUNTED, new_key, until

Opener = Callable[..., KubernetesPlatform]


@pytest.fixture
async def opened(kube: KubeCluster, tmp_path: Path) -> AsyncIterator[Opener]:
    results = tmp_path / "results"
    results.mkdir()
    made: list[KubernetesPlatform] = []

    def open_one(token: str = "admin", **settings: Any) -> KubernetesPlatform:
        own = {
            "kubeconfig": str(kube.kubeconfig(token)),
            "results_root": str(results),
            "mounts": [f"host://{results}:{results}"],
            "gpus": 0,
            "helper_image": IMAGE,
        }
        made.append(kubernetes_at(**{**own, **settings}))
        return made[-1]

    yield open_one
    kube.api.is_away = False
    for platform in made:
        await platform.close()


def request(command: str = f"{COUNTED}", **fields: Any) -> JobRequest:
    return JobRequest.build(**{"command": command, "image": IMAGE, **fields})


async def start(platform: KubernetesPlatform, *args: Any, key: str = "", attempt: int = 1, **fields: Any) -> JobHandle:
    return await platform.submit(platform.render(request(*args, **fields), key or new_key(), attempt), {})


async def end(platform: KubernetesPlatform, handle: JobHandle, seconds: float = 60.0) -> Observation:
    async def over() -> Observation | None:
        seen = (await platform.observe([handle])).get(handle)
        return seen if seen and seen.state.terminal else None

    found = await until(over, seconds)
    assert found
    return found


async def runs(platform: KubernetesPlatform, handle: JobHandle) -> int:
    return sum("/run-" in entry for entry in await platform.list_path(f"{handle.results}/results_dir"))


def step_of(method: str, path: str) -> str:
    plural = re.sub(r"\?.*", "", path).split("/namespaces/default/")[-1].split("/")[0]
    return f"{method} {plural}"


def once(kube: KubeCluster, step: str, fault: Any) -> None:
    """Spoil the first request of this kind."""
    left = [step]

    def spoil(method: str, path: str) -> Any:
        if left and step_of(method, path) == left[0]:
            left.clear()
            return fault
        return None

    kube.api.fault = spoil


async def is_running(platform: KubernetesPlatform, handle: JobHandle) -> bool:
    return (await platform.observe([handle]))[handle].state is JobState.RUNNING


async def has_begun(platform: KubernetesPlatform, handle: JobHandle) -> bool:
    return "begun" in (await platform.logs(handle)).text


async def pods_are_over(kube: KubeCluster) -> bool:
    return bool(kube.pods()) and all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in kube.pods())
