"""A program in a Pod launches jobs in its cluster: with the account of the Pod, its rights and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from kube_cluster import IMAGE, KubeCluster
from opened_platforms import kubernetes_at

from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.testing.contract import new_key, until

pytestmark = pytest.mark.xdist_group("kubernetes")
RBAC = Path(__file__).parents[3] / "deployments" / "kubernetes" / "rbac.yaml"
INSIDE = """
import asyncio, sys
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform

async def main(key, image):
    platform = open_platform("kubernetes/inside", {"gpus": 0, "poll_seconds": 0.2})
    findings = await platform.probe()
    assert not [one for one in findings if one.blocks], findings
    request = JobRequest.build(command="echo hello from a job", image=image)
    handle = await platform.submit(platform.render(request, key, 1), {})
    while not (seen := (await platform.observe([handle]))[handle]).state.terminal:
        await asyncio.sleep(0.2)
    print(seen.state, (await platform.logs(handle)).text)
    await platform.close()

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_flow_in_a_pod_launches_a_job_with_the_pods_account(kube: KubeCluster, tmp_path: Path) -> None:
    roles = [one for one in yaml.safe_load_all(RBAC.read_text()) if one["kind"] == "Role"]
    rules = roles[0]["rules"]
    granted = {(verb, plural) for rule in rules for plural in rule["resources"] for verb in rule["verbs"]}
    kube.add_account("prefect-tao", lambda verb, resource: (verb, resource) in granted)
    outside = kubernetes_at(kubeconfig=str(kube.kubeconfig()), service_account="prefect-tao", gpus=0)
    (program := tmp_path / "flow.py").write_text(INSIDE)
    command = f"{sys.executable} {program} {new_key()} {IMAGE}"
    request = JobRequest.build(command=command, image=IMAGE, env={"HOME": "/nowhere"})
    handle = await outside.submit(outside.render(request, new_key(), 1), {})

    async def over() -> bool:
        return (await outside.observe([handle]))[handle].state.terminal

    await until(over, 60)
    log = (await outside.logs(handle)).text
    assert (await outside.observe([handle]))[handle].state is JobState.COMPLETE, log
    assert "\nComplete " in log
    assert "\nhello from a job\n" in log
    assert len(kube.jobs()) == 2
    assert json.dumps(kube.jobs()).count('"serviceAccountName": "prefect-tao"') == 1
    await outside.close()
