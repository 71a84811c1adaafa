"""One task per action, under its own name; what a complete step is known by is the same in all of them."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest

import prefect_tao.tasks as tasks
from prefect_tao import Sdk
from prefect_tao.jobs.request import JobRequest
from prefect_tao.tasks.actions import task_of

ACTIONS = (
    "train",
    "evaluate",
    "inference",
    "export",
    "gen_trt_engine",
    "prune",
    "retrain",
    "quantize",
    "distill",
    "dataset_convert",
)


def request(action: str | None = None) -> JobRequest:
    return JobRequest.build(command="true", model="tiny", action=action)


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_has_a_task_of_its_own(action: str) -> None:
    found = task_of(request(action))
    assert found is getattr(tasks, action)
    assert (found.name, found.task_key) == (action, action)
    assert found.persist_result


@pytest.mark.parametrize("action", [None, "trt_evaluate", "segment_train"])
def test_a_command_and_any_other_action_share_one(action: str | None) -> None:
    assert task_of(request(action)) is tasks.run_action


def test_a_complete_step_is_known_by_its_key_its_target_and_its_request() -> None:
    def key(task: Any, **changes: Any) -> str:
        given = {"key": "ab" * 8, "target": "process", "request": request("train"), **changes}
        return str(task.cache_key_fn(SimpleNamespace(), given))

    same = key(tasks.run_action)
    assert key(tasks.train) == same
    assert "/" not in key(tasks.train, target="slurm/polar")
    others = ({"target": "slurm/polar"}, {"key": "cd" * 8}, {"request": request("evaluate")})
    assert len({same, *(key(tasks.train, **changes) for changes in others)}) == 4


def test_every_call_of_the_core_api_is_a_task_with_the_same_parameters() -> None:
    calls = [name for name in dir(Sdk) if f"a{name}" in dir(Sdk)]
    assert {"create_job", "list_jobs", "delete_instance"} <= set(calls)
    for name in calls:
        own = [one for one in signature(getattr(Sdk, name)).parameters.values() if one.kind is not one.VAR_KEYWORD]
        task = signature(getattr(tasks, name).fn).parameters
        given = {"job" if one.name == "job_id" else one.name: one.default for one in own[1:]}
        assert given.items() <= {one.name: one.default for one in task.values()}.items(), name
        assert "target" in task, name
