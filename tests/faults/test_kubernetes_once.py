"""Launchers that are killed, and answers that are lost, at every single request of a launch and of a cancellation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kube_cluster import IMAGE, KubeCluster
from kube_store import SECRETS, ApiError
from opened_platforms import kubernetes_at

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.testing.contract import COUNTED, new_key, until

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.long]
# A process of its own, which does one thing and is killed while it does.
PROCESS = """
import asyncio, json, sys
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform
from prefect_tao.platforms.kubernetes.settings import KubernetesSettings

async def main(settings, request, key, verb):
    platform = KubernetesPlatform("kubernetes/test", KubernetesSettings(**settings))
    platform.take_credentials({"NGC_KEY": "nvapi-secret"})
    await platform.site()
    print("ready", flush=True)
    sys.stdin.readline()
    if verb == "submit":
        await platform.submit(platform.render(JobRequest(**request), key, 1), {"TOKEN": "s3cret"})
    else:
        await platform.cancel((await platform.find([key]))[key], timeout=30)
    print("done", flush=True)

asyncio.run(main(**json.loads(sys.stdin.readline())))
"""
# The most requests that a launch or a cancellation of a job on two nodes takes, and some more.
MOST = 12
Faults = Callable[[str, str], Any]


@pytest.fixture
def settings(kube: KubeCluster, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "results").mkdir()
    return {
        "kubeconfig": str(kube.kubeconfig()),
        "results_root": str(tmp_path / "results"),
        "mounts": [f"host://{tmp_path / 'results'}:{tmp_path / 'results'}"],
        "gpus": 0,
        "helper_image": IMAGE,
        "ngc_pull_secret": True,
    }


@pytest.fixture
async def platform(settings: dict[str, Any]) -> AsyncIterator[KubernetesPlatform]:
    opened = kubernetes_at(**settings)
    opened.take_credentials({"NGC_KEY": "nvapi-secret"})
    yield opened
    await opened.close()


def request(command: str) -> JobRequest:
    return JobRequest.build(command=command, image=IMAGE, secrets=["TOKEN"], resources={"nodes": 2})


def started(settings: dict[str, Any], command: str, key: str, verb: str) -> subprocess.Popen[str]:
    given = {"settings": settings, "request": request(command).model_dump(mode="json"), "key": key, "verb": verb}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", PROCESS], stdin=pipe, stdout=pipe, text=True)
    assert process.stdin
    assert process.stdout
    process.stdin.write(json.dumps(given) + "\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"
    return process


def killed_at(kube: KubeCluster, process: subprocess.Popen[str], number: int, when: str) -> bool:
    """Let the process go on, and kill it at its request of that number; whether it had one."""
    asked = 0

    def kill(method: str, path: str) -> Any:
        nonlocal asked
        asked += 1
        if asked == number:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return when
        return None

    kube.api.fault = kill
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()
    process.wait(60)
    kube.api.fault = lambda method, path: None
    return asked >= number


async def end(platform: KubernetesPlatform, handle: JobHandle) -> Observation:
    async def over() -> Observation | None:
        seen = (await platform.observe([handle])).get(handle)
        return seen if seen and seen.state.terminal else None

    found = await until(over, 60)
    assert found
    return found


async def runs(platform: KubernetesPlatform, handle: JobHandle) -> int:
    return sum("/run-" in entry for entry in await platform.list_path(f"{handle.results}/results_dir"))


def secrets_left(kube: KubeCluster) -> str:
    return str([one["data"] for one in kube.store.all(SECRETS) if one.get("data")])


@pytest.mark.parametrize("when", ["lost before", "lost after"])
async def test_a_launcher_killed_at_any_request_leaves_what_the_next_one_completes(
    kube: KubeCluster, settings: dict[str, Any], platform: KubernetesPlatform, when: str
) -> None:
    for number in range(1, MOST):
        key = new_key()
        process = await asyncio.to_thread(started, settings, COUNTED, key, "submit")
        had_one = await asyncio.to_thread(killed_at, kube, process, number, when)
        handle = await platform.submit(platform.render(request(COUNTED), key, 1), {"TOKEN": "s3cret"})
        assert (await end(platform, handle)).state is JobState.COMPLETE, number
        assert await runs(platform, handle) == 2, number  # one of each node
        assert [job["metadata"]["name"] for job in kube.jobs()].count(handle.name) == 1
        if not had_one:
            assert number > 5  # Job, Secret, pull secret, Service and start
            return
    raise AssertionError("a launch takes more requests than it should")


@pytest.mark.parametrize("when", ["lost before", "lost after"])
async def test_a_canceller_killed_at_any_request_leaves_what_the_next_one_finishes(
    kube: KubeCluster, settings: dict[str, Any], platform: KubernetesPlatform, when: str
) -> None:
    command = "echo begun; sleep 300"
    for number in range(1, MOST):
        key = new_key()
        handle = await platform.submit(platform.render(request(command), key, 1), {"TOKEN": "s3cret"})
        process = await asyncio.to_thread(started, settings, command, key, "cancel")
        await asyncio.to_thread(killed_at, kube, process, number, when)
        seen = await platform.cancel((await platform.find([key]))[key], timeout=60)
        assert [one.state for one in seen.values()] == [JobState.CANCELED], number
        assert handle.name not in [job["metadata"]["name"] for job in kube.jobs()]
        assert kube.pods() == []
        await until(lambda: _is_empty(kube), 20)


async def _is_empty(kube: KubeCluster) -> bool:
    return secrets_left(kube) == "[]"


FAULTS: list[Any] = [
    "lost before",
    "lost after",
    "502 after",
    *(ApiError(code, "", "x") for code in (429, 500, 503, 504)),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
async def test_an_answer_lost_at_any_request_makes_no_second_job_and_loses_none(
    kube: KubeCluster, platform: KubernetesPlatform, fault: Any
) -> None:
    await platform.site()
    for number in range(1, MOST):
        key, asked = new_key(), 0

        def spoil(method: str, path: str) -> Any:
            nonlocal asked
            asked += 1
            return fault if asked == number else None  # noqa: B023 - used in this round only

        kube.api.fault = spoil
        handle = await platform.submit(platform.render(request(COUNTED), key, 1), {"TOKEN": "s3cret"})
        kube.api.fault = lambda method, path: None
        assert (await end(platform, handle)).state is JobState.COMPLETE
        assert await runs(platform, handle) == 2
        if asked < number:
            return
    raise AssertionError("a launch takes more requests than it should")
