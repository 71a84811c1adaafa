"""A parameter of prefect.yaml that its flow does not have is told before anything is deployed."""

from __future__ import annotations

from pathlib import Path

from prefect_tao.deployments.deploying import described_deployments
from prefect_tao.deployments.parameters import parameter_findings

CHAIN = "prefect_tao.flows.chains.chain"


def test_a_misspelt_parameter_is_told_with_the_one_that_was_meant() -> None:
    schedule = {"cron": "0 2 * * *", "parameters": {"targt": "process"}}
    entry = {"name": "mine", "entrypoint": CHAIN, "parameters": {"modle": "tiny", "steps": []}, "schedules": [schedule]}
    found = parameter_findings([entry])
    assert [one.message for one in found] == [
        "mine: the flow chain has no parameter modle",
        "mine: the flow chain has no parameter targt",
    ]
    assert [one.remedy for one in found] == ["did you mean model or nodes?", "did you mean target?"]


def test_a_flow_of_somebody_else_is_not_judged() -> None:
    assert parameter_findings([{"name": "own", "entrypoint": "mine.py:flow", "parameters": {"anything": 1}}]) == []


def test_our_own_prefect_yaml_has_no_such_parameter() -> None:
    assert parameter_findings(described_deployments(Path(__file__).parents[2])) == []
