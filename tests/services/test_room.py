"""A block's limit holds over all runs that use it, however many jobs they want at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from opened_platforms import process_at, process_settings
from prefect_tools import Api, call, job_states, start, wait_for

from prefect_tao.jobs import verdict as verdicts
from prefect_tao.jobs.errors import JobCanceled, Unreachable
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.verdict import POLICIES, Category
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.tasks.targets import admission
from prefect_tao.tasks.targets.admission import Room

pytestmark = pytest.mark.xdist_group("prefect-pages")
TIMED = "import os,time; b=time.time(); time.sleep(0.6); open(os.path.join(os.environ['TAO_RESULTS_DIR'],'t.json'),'w').write('[%f,%f]'%(b,time.time()))"  # noqa: E501

# The first attempt ends as the network between GPUs fails, the second one well.
TWICE = "import os,sys,time; b=time.time(); time.sleep(1); n=os.environ['TAO_ATTEMPT']; open(os.path.join(os.environ['TAO_RESULTS_DIR'],'t%s.json'%n),'w').write('[%f,%f]'%(b,time.time())); sys.exit('DistBackendError: NCCL error: unhandled system error' if n=='1' else 0)"  # noqa: E501


def most_at_once(spans: Sequence[Sequence[float]]) -> int:
    return max(sum(begin <= moment < end for begin, end in spans) for moment, _ in spans)


def saved(server: Any, root: Path, **limits: float) -> str:
    """The target of a new block with these limits."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from prefect_tao.blocks import TaoProcess

    name = f"narrow-{token_hex(4)}"
    with temporary_settings({PREFECT_API_URL: server.api}):
        TaoProcess(root=str(root), **limits).save(name)
    return f"process/{name}"


def sweep_of(target: str, program: str) -> dict[str, Any]:
    command = f'python3 -c "{program}" {{config_path}}'
    return {"command": command, "target": target, "specs": {}, "max_concurrent": 4}


def test_two_sweeps_share_the_room_of_one_block(server: Any, tmp_path: Path, home: Path) -> None:
    given = sweep_of(saved(server, tmp_path / "root", max_jobs=2), TIMED)
    other = start(server, home, "sweep", **given, points=[{"n": number} for number in range(10, 14)])
    found = call(server, "sweep", **given, points=[{"n": number} for number in range(4)])
    assert other.wait(120) == 0
    assert all(point.state.value == "Complete" for point in found.points)
    spans = [json.loads(path.read_text()) for path in (tmp_path / "root" / "results").rglob("t.json")]
    assert len(spans) == 8
    assert most_at_once(spans) <= 2


def test_two_sweeps_share_the_pace_of_one_block(server: Any, tmp_path: Path, home: Path) -> None:
    # Jobs are short, so that the first ones end while others still wait: that must not let anybody go faster.
    given = sweep_of(saved(server, tmp_path / "root", submits_per_second=0.5), "pass")
    other = start(server, home, "sweep", **given, points=[{"n": number} for number in range(10, 14)])
    found = call(server, "sweep", **given, points=[{"n": number} for number in range(4)])
    assert other.wait(120) == 0
    assert all(point.state.value == "Complete" for point in found.points)
    jobs = [json.loads(path.read_text()) for path in (tmp_path / "root" / "jobs").glob("*/job.json")]
    moments = sorted(job["created"] for job in jobs)
    assert len(moments) == 8
    assert min(later - earlier for earlier, later in pairwise(moments)) > 1.95  # as clocks of two processes tell it


def test_further_attempts_take_a_place_as_well(
    server: Any, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty = {**POLICIES, Category.NETWORK: replace(POLICIES[Category.NETWORK], backoff_seconds=0.1)}
    monkeypatch.setattr(verdicts, "POLICIES", hasty)
    # All are tried again while others wait for their first attempt, so without a place two would run at once.
    given = sweep_of(saved(server, tmp_path / "root", max_jobs=1), TWICE)
    found = call(server, "sweep", **given, points=[{"n": number} for number in range(3)])
    assert all(point.state.value == "Complete" for point in found.points)
    spans = [json.loads(path.read_text()) for path in (tmp_path / "root" / "results").rglob("t[12].json")]
    assert len(spans) == 6
    assert most_at_once(spans) == 1


class Silent(ProcessPlatform):
    """A platform of which some answers are lost."""

    lost = 0

    async def in_flight(self) -> int:
        if self.lost:
            self.lost -= 1
            raise Unreachable("no answer")
        return await super().in_flight()


@pytest.fixture
def asked(server: Any) -> Iterator[None]:
    """A room asks the server of the test for its turn."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: server.api}):
        yield


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("has_room", [True, False])
async def test_who_is_not_wanted_any_more_gets_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    monkeypatch.setattr(admission, "ASK_SECONDS", 0.2)
    platform = process_at(tmp_path / "root")
    job = await platform.submit(platform.render(JobRequest.build(command="sleep 100"), "ab" * 8, 1), {})
    room, said = Room(platform, most=1), [""]

    async def why_not() -> str:
        return said[0]

    async def wait() -> None:
        async with room.place(why_not):
            raise AssertionError("it was let in")

    waiting = [asyncio.create_task(wait()) for _ in range(3)]
    try:
        await asyncio.sleep(0.5)
        assert not any(task.done() for task in waiting)
        said[0] = "the run was cancelled"
        if has_room:
            await platform.cancel([job])
        ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 30)
    finally:
        await platform.cancel([job])
    assert [(type(end), str(end)) for end in ends] == [(JobCanceled, "not begun, because the run was cancelled")] * 3


@pytest.mark.usefixtures("asked")
async def test_a_lost_answer_while_counting_fails_nobody(tmp_path: Path) -> None:
    platform = Silent("process", process_settings(tmp_path / "root"))
    platform.lost = 3
    room, entered = Room(platform, most=2), []

    async def wait(number: int) -> None:
        async with room.place():
            entered.append(number)

    await asyncio.wait_for(asyncio.gather(*(wait(number) for number in range(4))), 30)
    assert sorted(entered) == [0, 1, 2, 3]
    assert platform.lost == 0


def test_cancelling_a_sweep_whose_points_wait_for_room_begins_none_of_them(
    server: Any, api: Api, tmp_path: Path, home: Path
) -> None:
    root = tmp_path / "root"
    given = sweep_of(saved(server, root, max_jobs=2), "import time; time.sleep(600)") | {"max_concurrent": None}
    running = start(server, home, "sweep", **given, points=[{"n": number} for number in range(6)])
    wait_for(lambda: job_states(root) == [JobState.RUNNING] * 2, 60)
    run = api.newest_run("sweep")["id"]
    api.set_state(run, "CANCELLING")
    wait_for(lambda: api.state(run) == "CANCELLED", 60)
    assert running.wait(30) == 1
    assert job_states(root) == [JobState.CANCELED] * 2
