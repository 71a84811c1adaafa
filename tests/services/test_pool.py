"""The pool of trials on a real server: new trials while others run, each end told apart, and a stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow

from prefect_tao.flows.pool import Pool, Trial, TrialEnd
from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.verdict import Category
from prefect_tao.tasks.targets.opening import open_target

pytestmark = pytest.mark.xdist_group("prefect-pages")


def trial(name: str, command: str) -> Trial:
    return Trial(name, JobRequest.build(command=command), job_key(uuid4().hex, name), f"trial: {name}")


async def found(key: str) -> JobHandle:
    """The job of a trial, as soon as there is one."""
    platform = (await open_target("process")).platform
    for _ in range(600):
        if attempts := (await platform.find([key])).get(key):
            return attempts[-1]
        await asyncio.sleep(0.1)
    raise AssertionError(f"there is no job of {key}")


def test_a_pool_takes_new_trials_while_others_run_and_tells_their_ends_apart(
    server: Any, home: Path, tmp_path: Path
) -> None:
    go, heard = tmp_path / "go", list[tuple[str, StepState | None]]()

    async def note(one: Trial, end: TrialEnd | None) -> None:
        heard.append((one.name, end.state if end else None))

    @flow(name="search")
    async def search() -> dict[str, TrialEnd]:
        pool = Pool("process", note)
        await pool.limit(2)
        slow = asyncio.create_task(pool.run(trial("slow", f"while [ ! -e {go} ]; do sleep 0.1; done")))
        ends = {"quick": await pool.run(trial("quick", "true")), "failed": await pool.run(trial("failed", "exit 3"))}
        stopped = trial("stopped", "sleep 300")
        waiting = asyncio.create_task(pool.run(stopped))
        await (await open_target("process")).platform.cancel([await found(stopped.key)])
        ends["stopped"] = await waiting
        pool.stop("the budget is spent")
        ends["late"] = await pool.run(trial("late", "true"))
        go.touch()
        return {**ends, "slow": await slow}

    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        ends = asyncio.run(search())
    assert {name: end.state for name, end in ends.items()} == {
        "quick": StepState.COMPLETE,
        "failed": StepState.ERROR,
        "stopped": StepState.CANCELED,
        "late": StepState.SKIPPED,
        "slow": StepState.COMPLETE,
    }
    assert ends["failed"].category is Category.PROGRAM
    assert ends["late"].message == "not begun, because the budget is spent"
    assert heard.index(("slow", None)) < heard.index(("quick", StepState.COMPLETE))
    assert heard[-1] == ("slow", StepState.COMPLETE)
    assert ("late", None) not in heard
