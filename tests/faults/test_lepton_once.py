"""One job per name on Lepton, whatever is lost between the launcher and the service."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from secrets import token_hex

import pytest
from lepton_api import LeptonFault, LeptonRequest, lepton_server
from lepton_world import LeptonWorld
from opened_platforms import lepton_at

from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.testing.contract import new_key
from prefect_tao.testing.fault_machine import run_machine

pytestmark = pytest.mark.xdist_group("lepton")
LAUNCHES, AT_ONCE = 100, 10


@pytest.mark.long
async def test_every_lost_request_and_reply_leaves_exactly_one_job(tmp_path: Path) -> None:
    chance = random.Random(LAUNCHES)
    with lepton_server(tmp_path) as server:
        root = str(server.cloud.folder / "volumes" / "lustre" / "results")

        def is_lost(request: LeptonRequest) -> bool:
            return str(request) == "POST /jobs" and chance.random() < 0.5

        for side in ("request", "reply"):
            server.hinder(is_lost, LeptonFault(lost=side), times=LAUNCHES)
        room = asyncio.Semaphore(AT_ONCE)
        platform = lepton_at(server, results_root=root)
        platform.denial_seconds, platform.workspace.sleep = 0.0, lambda seconds: None

        async def one() -> str:
            async with room:
                request = JobRequest.build(command="true", image="any/image:1")
                return (await launch(platform, request, new_key(), {})).handle.name

        names = await asyncio.gather(*(one() for _ in range(LAUNCHES)))
        assert sorted(names) == sorted(job.name for job in server.cloud.jobs.values())
        assert len(server.asked("POST /jobs")) > LAUNCHES


@pytest.mark.parametrize("sequences", [2, pytest.param(100, marks=pytest.mark.long)])
def test_no_order_of_faults_breaks_a_promise_of_lepton(tmp_path: Path, sequences: int) -> None:
    run_machine(lambda draw: LeptonWorld(tmp_path / token_hex(4)), sequences, steps=8, shrink=False)
