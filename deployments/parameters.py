"""Parameters in prefect.yaml that a flow of ours does not have, found before anything is deployed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from prefect import Flow

from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.problems import did_you_mean, fail, nearest

OURS = "prefect_tao."


def parameter_findings(deployments: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """One finding per unknown parameter of these entries of prefect.yaml and of their schedules.

    Only where the flow is one of ours: that of somebody else may have to be fetched first.
    """
    found = []
    for deployment in deployments:
        if not str(deployment.get("entrypoint")).startswith(OURS):
            continue
        module, _, name = deployment["entrypoint"].rpartition(".")
        flow: Flow[..., Any] = getattr(import_module(module), name)
        known = list(flow.parameters.properties)
        for key in _given(deployment):
            if key not in known:
                message = f"{deployment['name']}: the flow {flow.name} has no parameter {key}"
                remedy = did_you_mean(nearest(key, known), f"it has {', '.join(known)}")
                found.append(fail(f"parameter {key}", message, remedy))
    return found


def _given(deployment: Mapping[str, Any]) -> Iterator[str]:
    yield from deployment.get("parameters") or {}
    for schedule in deployment.get("schedules") or ():
        yield from schedule.get("parameters") or {}
