"""The work pool whose flows run as Jobs: what its template makes is what a cluster takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kube_rules import check
from kube_store import JOBS

TEMPLATE = Path(__file__).parents[2] / "deployments" / "work_pools" / "kubernetes.json"


def made(**values: Any) -> dict[str, Any]:
    """The Job that Prefect's worker makes of the template."""
    from prefect.utilities.templating import apply_values

    template = json.loads(TEMPLATE.read_text())
    properties = template["variables"]["properties"]
    known = {name: variable["default"] for name, variable in properties.items() if "default" in variable}
    found = apply_values(template["job_configuration"], {**known, "name": "flow", "labels": {}, **values})
    manifest: dict[str, Any] = found["job_manifest"]
    return manifest


def test_a_flow_runs_with_the_account_that_may_launch_jobs() -> None:
    job = made(command="python -m prefect.engine")
    pod = job["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["restartPolicy"], job["spec"]["backoffLimit"]) == ("prefect-tao", "Never", 0)
    [container] = pod["containers"]
    assert container["image"] == "prefect-tao:latest"
    # The worker makes a list of these two when it starts the flow.
    container |= {
        "args": ["prefect"],
        "env": [{"name": name, "value": text} for name, text in container["env"].items()],
    }
    assert check(JOBS, job, strict=True) == []


def test_volumes_and_limits_of_the_pool_reach_the_pod() -> None:
    claim = [{"name": "results", "persistentVolumeClaim": {"claimName": "flows"}}]
    job = made(volumes=claim, memory_limit="4Gi", namespace="training", secret="keys")
    pod = job["spec"]["template"]["spec"]
    assert (job["metadata"]["namespace"], pod["volumes"]) == ("training", claim)
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "4Gi"}
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "keys", "optional": True}}]
