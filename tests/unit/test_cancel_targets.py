"""Where the jobs of a run are looked for when it is cancelled: better on one target too many than on one too few."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from prefect_tao.tasks.cancellation import LABEL, targets_of


@pytest.mark.parametrize(
    ("labels", "parameters", "found"),
    [
        ([], {}, ["process"]),
        (["slurm/polar"], {"target": "slurm/polar"}, ["slurm/polar"]),
        ([], {"target": "slurm/polar"}, ["slurm/polar"]),  # the note was lost
        (
            ["process"],
            {"steps": [{"target": "slurm/polar"}, {"command": "x"}, "no step"], "target": "local-docker"},
            ["local-docker", "process", "slurm/polar"],
        ),
        (["slurm/polar"], {"target": "a goal of somebody else's flow", "steps": 5000}, ["slurm/polar"]),
        (["slurm/polar"], {"target": 0.9, "steps": "two"}, ["slurm/polar"]),
    ],
)
def test_a_run_is_looked_after_wherever_it_may_have_jobs(
    labels: list[str], parameters: dict[str, Any], found: list[str]
) -> None:
    run = FlowRun(flow_id=uuid4(), parameters=parameters, labels={f"{LABEL}{target}": True for target in labels})
    assert targets_of(run) == found
