"""Jobs on the stand-in cluster of the tests: requests and client time a job, what looks cost, and create to known.

Needs root, because Pods of the stand-in are processes of this machine. `python -m benchmarks.kubernetes_jobs` prints
the rows.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from secrets import token_hex
from typing import Any

from benchmarks.measure import ROOT, Row, times
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform
from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform

sys.path.insert(0, str(ROOT / "tests" / "support"))

from kube_cluster import IMAGE, KubeCluster

JOBS, PEER_JOBS = 100, 20
FEW, MANY, LOOKS = 10, 1000, 5
ROUNDS = 7
# On a real cluster a bare Job was recorded to be complete after 3.25 s; on the stand-in it needs next to nothing.
START_SECONDS = 3.1
POD = {
    "restartPolicy": "Never",
    "containers": [{"name": "main", "image": IMAGE, "command": ["/bin/bash", "-c", "true"]}],
}
# Each is a process of its own, which prints the processor time that its jobs took.
OURS = """
import asyncio, sys, time
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform
async def main(kubeconfig, image, number):
    platform = open_platform("kubernetes/bench", {"kubeconfig": kubeconfig, "gpus": 0})
    await platform.site()
    began = time.process_time()
    request = JobRequest.build(command="true", image=image)
    await platform.submit_many((platform.render(request, f"{n:016x}", 1), {}) for n in range(number))
    print(time.process_time() - began)
    await platform.close()
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""
PREFECT_KUBERNETES = """
import asyncio, json, sys, time, yaml
from prefect_kubernetes.credentials import KubernetesClusterConfig, KubernetesCredentials
from prefect_kubernetes.jobs import create_namespaced_job
async def main(kubeconfig, manifest, number):
    config = KubernetesClusterConfig(config=yaml.safe_load(open(kubeconfig)), context_name="stand-in")
    credentials, manifest = KubernetesCredentials(cluster_config=config), json.loads(manifest)
    began = time.process_time()
    for n in range(number):
        manifest["metadata"]["name"] = f"peer-{n}"
        await create_namespaced_job.fn(credentials, manifest, namespace="default")
    print(time.process_time() - began)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def measure() -> list[Row]:
    """All against one stand-in, one after the other."""
    with tempfile.TemporaryDirectory() as folder, KubeCluster(Path(folder)) as kube:
        rows = [*_submits(kube), *_known(kube)]
        kube.clear()
        kube.controllers.is_stopping = True  # from here on only the cost of asking counts
        return [*rows, *asyncio.run(_looks(kube))]


def _bare(name: str) -> dict[str, Any]:
    spec = {"backoffLimit": 0, "template": {"spec": POD}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


# -- submitting --------------------------------------------------------------------------------------------------------


def _submits(kube: KubeCluster) -> list[Row]:
    kube.controllers.is_scheduling = False
    config = str(kube.kubeconfig())
    kube.api.requests.clear()
    ours = _process_time(OURS, config, IMAGE, str(JOBS)) / JOBS
    sent = [one for one in kube.api.requests if "kube-root-ca.crt" not in one[1]]
    kube.clear()
    theirs = _process_time(PREFECT_KUBERNETES, config, json.dumps(_bare("peer")), str(PEER_JOBS)) / PEER_JOBS
    kube.clear()
    by_hand = _kubectl_time(config)
    kube.clear()
    kube.controllers.is_scheduling = True
    shown = {name: f"{seconds * 1000:.1f} ms" for name, seconds in (("ours", ours), ("theirs", theirs))}
    return [
        Row(f"requests to submit a job, of {JOBS}", f"{len(sent) / JOBS:.2f}", goal="3"),
        Row(
            "processor time of a job, a loop of kubectl create", f"{by_hand * 1000:.0f} ms" if by_hand else "no kubectl"
        ),
        Row("processor time of a job, prefect-kubernetes create_namespaced_job", shown["theirs"], "1x"),
        Row("processor time of a job, prefect-tao", shown["ours"], times(ours, theirs), "below both"),
    ]


def _process_time(program: str, *words: str) -> float:
    env = {**os.environ, "PREFECT_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, text=True, env=env)
    return float(done.stdout.split()[-1])


def _kubectl_time(config: str) -> float | None:
    if shutil.which("kubectl") is None:
        return None
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for number in range(PEER_JOBS):
        words = ["kubectl", "--kubeconfig", config, "create", "-f", "-"]
        text = json.dumps(_bare(f"hand-{number}"))
        subprocess.run(words, input=text, text=True, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / PEER_JOBS


# -- create to known ---------------------------------------------------------------------------------------------------


def _known(kube: KubeCluster) -> list[Row]:
    kube.kubelet.start_seconds = START_SECONDS
    found = asyncio.run(_both_known(kube))
    kube.kubelet.start_seconds = 0.0
    bare, ours = (statistics.median(found[name]) for name in ("bare", "ours"))
    start = f"a container starts after {START_SECONDS:g} s"
    return [
        Row(f"create to known, a bare client that watches ({start})", f"{bare:.2f} s", "1x"),
        Row("create to known, prefect-tao", f"{ours:.2f} s", times(ours, bare), "at most 1.3x"),
    ]


async def _both_known(kube: KubeCluster) -> dict[str, list[float]]:
    from kubernetes_asyncio import client, config

    await config.load_kube_config(str(kube.kubeconfig()))
    platform = _opened(kube)
    await platform.site()
    found: dict[str, list[float]] = {"bare": [], "ours": []}
    async with client.ApiClient() as api:
        for number in range(ROUNDS):
            began = time.perf_counter()
            await _watched(client.BatchV1Api(api), f"bare-{number}")
            found["bare"].append(time.perf_counter() - began)
            began = time.perf_counter()
            await _followed(platform)
            found["ours"].append(time.perf_counter() - began)
    await platform.close()
    return found


def _opened(kube: KubeCluster) -> KubernetesPlatform:
    opened = open_platform("kubernetes/bench", {"kubeconfig": str(kube.kubeconfig()), "gpus": 0})
    assert isinstance(opened, KubernetesPlatform)
    return opened


async def _watched(batch: Any, name: str) -> None:
    from kubernetes_asyncio import watch

    await batch.create_namespaced_job("default", _bare(name))
    stream = watch.Watch().stream(batch.list_namespaced_job, "default", field_selector=f"metadata.name={name}")
    async for event in stream:
        if any(one.type == "Complete" for one in event["object"].status.conditions or ()):
            return


async def _followed(platform: KubernetesPlatform) -> None:
    """As the watcher does it: with the driver's own pause between looks."""
    handle = await _submitted(platform)
    while not (await platform.observe([handle]))[handle].state.terminal:  # noqa: ASYNC110
        await asyncio.sleep(platform.poll_seconds[0])


async def _submitted(platform: KubernetesPlatform) -> JobHandle:
    request = JobRequest.build(command="true", image=IMAGE)
    return await platform.submit(platform.render(request, token_hex(8), 1), {})


# -- looking -----------------------------------------------------------------------------------------------------------


async def _looks(kube: KubeCluster) -> list[Row]:
    platform, rows, handles = _opened(kube), [], []
    for number in (FEW, MANY):
        handles += [await _submitted(platform) for _ in range(number - len(handles))]
        await platform.observe(handles)
        kube.api.requests.clear()
        began = time.process_time()
        for _ in range(LOOKS):
            await platform.observe(handles)
        seconds, asked = (time.process_time() - began) / LOOKS, len(kube.api.requests) / LOOKS
        goal = f"as with {FEW}" if number == MANY else ""
        rows.append(
            Row(f"requests of a look at {number} jobs", f"{asked:g} ({seconds * 1000:.0f} ms, both sides)", goal=goal)
        )
    await platform.close()
    return rows


if __name__ == "__main__":
    for row in measure():
        print(" | ".join(row))
