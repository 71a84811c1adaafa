"""A launch starts exactly one job, whatever answers are lost and however many launchers there are."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from opened_platforms import process_at, process_settings
from process_tools import COUNTED, LONG, end_of, job, new_key, runs, seen, start, swept, until, waits_for

from prefect_tao.jobs import launching
from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch, look_up, submit_once
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.process.driver import ProcessPlatform


class Flaky(ProcessPlatform):
    """A platform behind a bad line: it loses requests on the way there and replies on the way back."""

    def __init__(
        self, root: Path, requests: int = 0, replies: int = 0, finds: int = 0, finds_after_reply: int = 0
    ) -> None:
        super().__init__("process", process_settings(root))
        self.lost = {"requests": requests, "replies": replies, "finds": finds}
        self.finds_after_reply = finds_after_reply
        self.submits: list[float] = []
        self.finds: list[float] = []

    def _lose(self, what: str) -> None:
        if self.lost[what]:
            self.lost[what] -= 1
            raise Unreachable(f"lost one of the {what}", "wait")

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        self.submits.append(time.monotonic())
        self._lose("requests")
        handle = await super().submit(rendered, secrets)
        self.lost["finds"] += self.finds_after_reply
        # To submit again what has not begun is harmless and wanted; here it has.
        while self.lost["replies"] and (await seen(self, handle)).state is JobState.PENDING:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self._lose("replies")
        return handle

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        self.finds.append(time.monotonic())
        self._lose("finds")
        return await super().find(keys)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path):
        yield tmp_path / "root"


# -- lost answers ------------------------------------------------------------------------------------------------------


async def test_a_job_whose_reply_was_lost_is_adopted_and_not_repeated(root: Path) -> None:
    platform = Flaky(root, replies=1)
    launched = await launch(platform, job(f"{COUNTED}; sleep 0.3"), new_key(), {})
    assert len(platform.submits) == 1
    assert launched.handle.native_id
    assert (await end_of(platform, launched.handle)).state is JobState.COMPLETE
    assert runs(launched.handle) == 1


async def test_a_submission_that_never_arrived_is_repeated_with_growing_pauses(root: Path) -> None:
    platform = Flaky(root, requests=2)
    launched = await launch(platform, job(COUNTED), new_key(), {})
    first, second, third = platform.submits
    assert 0.4 < second - first < third - second
    assert (await end_of(platform, launched.handle)).state is JobState.COMPLETE
    assert runs(launched.handle) == 1


async def test_nothing_is_submitted_while_the_platform_cannot_say_what_is_there(root: Path) -> None:
    key = new_key()
    there = await start(process_at(root), LONG, key)
    platform = Flaky(root, finds=2)
    launched = await launch(platform, job(LONG), key, {})
    assert (launched.adopted, launched.handle) == (True, there)
    assert platform.submits == []


async def test_a_lost_reply_followed_by_an_outage_still_makes_one_job(root: Path) -> None:
    platform = Flaky(root, replies=1, finds_after_reply=2)
    launched = await launch(platform, job(f"{COUNTED}; sleep 0.3"), new_key(), {})
    assert len(platform.submits) == 1
    assert len(platform.finds) == 4
    assert (await end_of(platform, launched.handle)).state is JobState.COMPLETE
    assert runs(launched.handle) == 1


async def test_where_names_are_not_unique_a_name_must_be_denied_for_a_while_before_it_is_tried_again(
    root: Path,
) -> None:
    platform = Flaky(root, requests=1)
    platform.denial_seconds = 1.0
    await launch(platform, job("exit 0"), new_key(), {})
    first, second = platform.submits
    assert second - first >= 1.0
    assert len(platform.finds) >= 2


async def test_a_refusal_is_final(root: Path) -> None:
    root.parent.mkdir(exist_ok=True)
    root.write_text("a file where the folder should be")
    platform = Flaky(root)
    with pytest.raises(SubmitFailed):
        await submit_once(platform, job("exit 0"), new_key(), 1, {})
    assert len(platform.submits) == 1


async def test_patience_ends_with_the_platform_named_as_unreachable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Flaky(root, requests=99, finds=99)
    with pytest.raises(Unreachable, match="lost one of the finds"):
        await retry(lambda: platform.find([new_key()]), 0.7)
    platform.lost["finds"] = 0
    monkeypatch.setattr(launching, "PATIENCE_SECONDS", 0.7)
    with pytest.raises(Unreachable, match="lost one of the requests"):
        await launch(platform, job("exit 0"), new_key(), {})
    assert len(platform.submits) == 2


# -- many launchers ----------------------------------------------------------------------------------------------------

RACER = """
import asyncio, pathlib, sys, time
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform
root, key, command, go = sys.argv[1:]
platform, request = open_platform("process", {"root": root}), JobRequest.build(command=command)
print("ready", flush=True)
while not pathlib.Path(go).exists():
    time.sleep(0.001)
print(asyncio.run(launch(platform, request, key, {})).handle.model_dump_json(), flush=True)
"""


async def test_launchers_in_several_processes_start_one_job(root: Path, tmp_path: Path) -> None:
    key, go = new_key(), tmp_path / "go"
    words = [sys.executable, "-c", RACER, str(root), key, f"{COUNTED}; sleep 0.3", str(go)]
    racers = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for racer in racers:
        assert racer.stdout
        assert racer.stdout.readline() == "ready\n"
    go.touch()
    told = [racer.communicate()[0] for racer in racers]
    handles = {JobHandle.model_validate_json(text) for text in told}
    assert len({JobHandle.model_validate_json(text).native_id for text in told}) == 1
    (handle,) = handles
    platform = process_at(root)
    assert (await end_of(platform, handle)).state is JobState.COMPLETE
    assert runs(handle) == 1


async def test_a_launch_that_was_cut_off_is_completed_by_the_next(root: Path) -> None:
    platform, key = process_at(root), new_key()
    cut = asyncio.create_task(launch(platform, job(f"{COUNTED}; sleep 0.3"), key, {}))
    await asyncio.sleep(0.01)
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    launched = await launch(platform, job(f"{COUNTED}; sleep 0.3"), key, {})
    assert (await end_of(platform, launched.handle)).state is JobState.COMPLETE
    assert runs(launched.handle) == 1


class Slow(ProcessPlatform):
    """A platform whose first answer comes only when the test allows it."""

    gate: asyncio.Event

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        await self.gate.wait()
        return await super().find(keys)


async def test_an_attempt_that_fails_while_a_second_launcher_asks_is_not_repeated_by_it(root: Path) -> None:
    key, request = new_key(), job(f"{COUNTED}; exit 1")
    slow = Slow("process", process_settings(root))
    slow.gate = asyncio.Event()
    second = asyncio.create_task(launch(slow, request, key, {}))
    await asyncio.sleep(0.01)
    platform = process_at(root)
    first = await launch(platform, request, key, {})
    assert (await end_of(platform, first.handle)).state is JobState.ERROR
    slow.gate.set()
    launched = await second
    assert (launched.adopted, launched.handle.attempt) == (True, 1)
    assert runs(first.handle) == 1


# -- what is there already ---------------------------------------------------------------------------------------------


async def test_a_failed_or_cancelled_attempt_is_followed_by_the_next_and_a_good_one_is_kept(root: Path) -> None:
    platform, key = process_at(root), new_key()
    for attempt in (1, 2):
        assert (await look_up(platform, key)).is_due()
        failed = await launch(platform, job("exit 1"), key, {})
        assert (failed.adopted, failed.handle.attempt) == (False, attempt)
        assert (await end_of(platform, failed.handle)).state is JobState.ERROR
    canceled = await launch(platform, job(LONG), key, {})
    assert (await platform.cancel([canceled.handle], timeout=5))[canceled.handle].state is JobState.CANCELED
    good = await launch(platform, job("exit 0"), key, {})
    assert good.handle.attempt == 4
    assert (await end_of(platform, good.handle)).state is JobState.COMPLETE
    kept = await launch(platform, job("exit 0"), key, {})
    assert (kept.adopted, kept.handle, kept.findings) == (True, good.handle, ())
    there = await look_up(platform, key)
    assert not there.is_due()
    assert there.found == good.handle
    assert [handle.attempt for handle in (await platform.find([key]))[key]] == [1, 2, 3, 4]


async def test_a_changed_request_is_a_finding_and_not_a_second_job(root: Path) -> None:
    platform, key = process_at(root), new_key()
    first = await launch(platform, job(LONG), key, {})
    again = await launch(platform, job(f"{LONG}; echo changed", labels={"run": "x"}), key, {})
    assert (again.adopted, again.handle) == (True, first.handle)
    (finding,) = again.findings
    assert finding.level is Level.WARN
    assert "another request" in finding.message
    assert "run_key" in finding.remedy
    assert (await launch(platform, job(LONG, labels={"run": "y"}), key, {})).findings == ()

    async def runs_on() -> bool:
        return (await seen(platform, first.handle)).state is JobState.RUNNING

    assert await until(runs_on)
    assert len((await platform.find([key]))[key]) == 1


async def test_a_job_that_waits_is_attached_to_and_not_doubled(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_TAO_GPU_LOCKS", str(tmp_path / "locks"))
    platform, key = process_at(root, gpu_ids=["0"]), new_key()
    first = await start(platform, waits_for(tmp_path / "go"), resources={"gpus": 1})
    waiting = job(COUNTED, resources={"gpus": 1})
    launches = [await launch(platform, waiting, key, {}) for _ in range(3)]
    assert len({one.handle.native_id for one in launches}) == 1
    assert [one.adopted for one in launches] == [False, True, True]
    (tmp_path / "go").touch()
    assert (await end_of(platform, first)).state is JobState.COMPLETE
    assert (await end_of(platform, launches[0].handle)).state is JobState.COMPLETE
    assert runs(launches[0].handle) == 1
