"""One watcher sees all jobs of a platform, takes silence for silence, and costs no more for many jobs than for one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from opened_platforms import process_at
from process_tools import LONG, job, new_key, seen, start, swept

from prefect_tao.jobs import listening
from prefect_tao.jobs import watcher as watching
from prefect_tao.jobs.errors import CancelUnconfirmed, Unreachable
from prefect_tao.jobs.events import Event, LogWritten, Progressed, StateChanged
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.listening import Listener
from prefect_tao.jobs.platform import LogChunk, Platform, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import Verdict
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms.process import job_folder

RUNNING = Observation(state=JobState.RUNNING)
COMPLETE = Observation(state=JobState.COMPLETE, exit_code=0)
CANCELED = Observation(state=JobState.CANCELED)


async def comes(condition: Callable[[], bool]) -> None:
    """Wait for it, and fail when it does not come."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


class Scripted(Platform):
    """A platform whose jobs are where the test puts them, and which falls silent when the test wants it."""

    target = "scripted"
    poll_seconds = (0.02, 0.16)

    def __init__(self) -> None:
        self.jobs_now: dict[JobHandle, Observation] = {}
        self.trouble: Exception | None = None
        self.cancel_trouble: list[Exception] = []
        self.looks: list[tuple[float, list[JobHandle]]] = []
        self.cancels: list[list[JobHandle]] = []
        self.log = ""
        self.log_reads = 0

    def add(self, state: Observation = RUNNING) -> JobHandle:
        handle = JobHandle(target=self.target, key=new_key(), attempt=1)
        self.jobs_now[handle] = state
        return handle

    async def site(self) -> str:
        return "here"

    async def observe(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        self.looks.append((asyncio.get_running_loop().time(), list(handles)))
        if self.trouble:
            raise self.trouble
        return {handle: self.jobs_now[handle] for handle in handles if handle in self.jobs_now}

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        self.log_reads += 1
        start = int(since or 0)
        text = self.log[start : start + 4]
        return LogChunk(text, str(start + len(text)))

    async def cancel(self, handles: Sequence[JobHandle], timeout: float = 60.0) -> dict[JobHandle, Observation]:
        self.cancels.append(list(handles))
        await asyncio.sleep(0.01)
        if self.cancel_trouble:
            raise self.cancel_trouble.pop(0)
        self.jobs_now.update(dict.fromkeys(handles, CANCELED))
        return dict.fromkeys(handles, CANCELED)

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        raise NotImplementedError

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        raise NotImplementedError

    async def diagnose(self, handle: JobHandle) -> Verdict:
        raise NotImplementedError

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        raise NotImplementedError

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        raise NotImplementedError

    async def check_path(self, uri: str) -> bool:
        raise NotImplementedError

    async def list_path(self, uri: str) -> list[str]:
        raise NotImplementedError

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        raise NotImplementedError


class Ear(Listener):
    """Remembers all that it hears."""

    def __init__(self, wants_logs: bool = False) -> None:
        self.wants_logs = wants_logs
        self.states: list[JobState] = []
        self.reasons: list[str] = []
        self.progress: list[Progress] = []
        self.log: list[str] = []

    async def hear(self, event: Event) -> None:
        match event:
            case StateChanged(_, seen):
                self.states.append(seen.state)
                self.reasons.append(seen.reason)
            case Progressed(_, progress):
                self.progress.append(progress)
            case LogWritten(_, text):
                self.log.append(text)


@pytest.fixture
def platform() -> Scripted:
    return Scripted()


@pytest.fixture
def watcher(platform: Scripted) -> Watcher:
    return Watcher(platform)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path):
        yield tmp_path / "root"


async def detached(task: asyncio.Task[Observation]) -> None:
    """Stop waiting, as Ctrl-C does."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


# -- looking -----------------------------------------------------------------------------------------------------------


async def test_many_jobs_are_seen_in_one_call_and_each_waiter_gets_its_own_end(
    platform: Scripted, watcher: Watcher
) -> None:
    handles = [platform.add() for _ in range(300)]
    waits = [asyncio.create_task(watcher.wait(handle)) for handle in handles]
    await asyncio.sleep(0.1)
    for number, handle in enumerate(handles):
        platform.jobs_now[handle] = Observation(state=JobState.ERROR, exit_code=number)
    ends = await asyncio.gather(*waits)
    assert [end.exit_code for end in ends] == list(range(300))
    assert len(platform.looks) <= 8
    assert all(len(asked) == 300 for _, asked in platform.looks)


async def test_the_pauses_grow_while_nothing_happens_and_are_short_again_after_a_change(
    platform: Scripted, watcher: Watcher
) -> None:
    handle = platform.add()
    wait = asyncio.create_task(watcher.wait(handle))
    await asyncio.sleep(0.8)
    quiet = len(platform.looks)
    platform.jobs_now[handle] = RUNNING.model_copy(update={"reason": "changed"})
    await asyncio.sleep(0.4)
    pauses = [after[0] - before[0] for before, after in pairwise(platform.looks)]
    assert pauses[quiet - 2] >= 0.15
    assert pauses[0] < pauses[quiet - 2] / 2
    assert min(pauses[quiet - 1 :]) < pauses[quiet - 2] / 2
    await detached(wait)


async def test_jobs_that_come_one_by_one_do_not_make_it_look_more_often_than_allowed(
    platform: Scripted, watcher: Watcher
) -> None:
    waits = []
    for _ in range(100):
        waits.append(asyncio.create_task(watcher.wait(platform.add())))
        await asyncio.sleep(0.002)
    pauses = [after[0] - before[0] for before, after in pairwise(platform.looks)]
    assert min(pauses) >= 0.019
    assert len(platform.looks[-1][1]) > 80
    for wait in waits:
        await detached(wait)


async def test_a_new_job_is_looked_at_soon_though_the_others_are_quiet(platform: Scripted, watcher: Watcher) -> None:
    platform.poll_seconds = (0.02, 30.0)
    first = asyncio.create_task(watcher.wait(platform.add()))
    await asyncio.sleep(0.5)
    assert (await asyncio.wait_for(watcher.wait(platform.add(COMPLETE)), 2)).state is JobState.COMPLETE
    await detached(first)


async def test_waiting_costs_no_thread_per_job(root: Path) -> None:
    real = process_at(root)
    rendered = [real.render(job(LONG), new_key(), 1) for _ in range(100)]
    for one in rendered:
        job_folder.stage(root / "jobs" / f"tao-{one.key}-1", one.files)
    handles = [JobHandle(target="process", key=one.key, attempt=1) for one in rendered]
    before = threading.active_count()
    watcher = Watcher(real)
    waits = [asyncio.create_task(watcher.wait(handle)) for handle in handles]
    await asyncio.sleep(0.3)
    assert threading.active_count() - before <= 4
    for wait in waits:
        await detached(wait)


# -- silence -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [Unreachable("no route to host"), OSError("no route to host"), TimeoutError()])
async def test_silence_is_told_once_and_the_job_is_kept(
    platform: Scripted, watcher: Watcher, trouble: Exception
) -> None:
    handle, ear = platform.add(), Ear()
    wait = asyncio.create_task(watcher.wait(handle, ear))
    await asyncio.sleep(0.05)
    platform.trouble = trouble
    await comes(lambda: len(platform.looks) >= 4)
    assert ear.states == [JobState.RUNNING, JobState.UNREACHABLE]
    assert ear.reasons[1]
    assert not wait.done()
    platform.trouble = None
    await asyncio.sleep(0.25)
    platform.jobs_now[handle] = COMPLETE
    assert (await wait).state is JobState.COMPLETE
    assert ear.states == [JobState.RUNNING, JobState.UNREACHABLE, JobState.RUNNING, JobState.COMPLETE]


async def test_a_job_left_out_of_the_answer_is_unreachable_and_not_gone(platform: Scripted, watcher: Watcher) -> None:
    handle, other, ear = platform.add(), platform.add(), Ear()
    wait, calm = asyncio.create_task(watcher.wait(handle, ear)), Ear()
    steady = asyncio.create_task(watcher.wait(other, calm))
    await asyncio.sleep(0.05)
    del platform.jobs_now[handle]
    await asyncio.sleep(0.2)
    platform.jobs_now[handle] = COMPLETE
    assert (await wait).state is JobState.COMPLETE
    assert ear.states == [JobState.RUNNING, JobState.UNREACHABLE, JobState.COMPLETE]
    assert calm.states == [JobState.RUNNING]
    await detached(steady)


async def test_a_platform_that_hangs_is_unreachable_after_a_while(
    platform: Scripted, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(Scripted):
        async def observe(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
            await asyncio.sleep(300)
            return {}

    monkeypatch.setattr(watching, "ANSWER_SECONDS", 0.05)
    ear = Ear()
    hanging = Hanging()
    wait = asyncio.create_task(Watcher(hanging).wait(hanging.add(), ear))
    await asyncio.sleep(0.2)
    assert ear.states == [JobState.UNREACHABLE]
    assert "did not answer" in ear.reasons[0]
    await detached(wait)


# -- ends --------------------------------------------------------------------------------------------------------------


async def test_an_end_is_told_once_and_looking_stops(platform: Scripted, watcher: Watcher) -> None:
    handle, ear = platform.add(COMPLETE), Ear()
    twice = tuple(await asyncio.gather(watcher.wait(handle, ear), watcher.wait(handle)))
    assert twice == (COMPLETE, COMPLETE)
    assert ear.states == [JobState.COMPLETE]
    await asyncio.sleep(0.05)
    looks = len(platform.looks)
    await asyncio.sleep(0.3)
    assert len(platform.looks) == looks
    assert await watcher.wait(platform.add(COMPLETE)) == COMPLETE


async def test_progress_is_told_when_it_changes(platform: Scripted, watcher: Watcher) -> None:
    handle, ear = platform.add(), Ear()
    wait = asyncio.create_task(watcher.wait(handle, ear))
    for epoch in (1, 2):
        progress = Progress(epoch=epoch, max_epoch=2)
        platform.jobs_now[handle] = RUNNING.model_copy(update={"progress": progress})
        await asyncio.sleep(0.2)
    platform.jobs_now[handle] = COMPLETE.model_copy(update={"progress": progress})
    await wait
    assert [one.epoch for one in ear.progress] == [1, 2]
    assert ear.states == [JobState.RUNNING, JobState.COMPLETE]


async def test_detaching_leaves_the_job_running(root: Path) -> None:
    real = process_at(root)
    handle = await start(real, LONG)
    wait = asyncio.create_task(Watcher(real).wait(handle))
    await asyncio.sleep(0.2)
    await detached(wait)
    await asyncio.sleep(0.1)
    assert (await seen(real, handle)).state is JobState.RUNNING


async def test_detaching_one_waiter_leaves_the_others_waiting(platform: Scripted, watcher: Watcher) -> None:
    handle = platform.add()
    first, second = (asyncio.create_task(watcher.wait(handle)) for _ in range(2))
    await asyncio.sleep(0.05)
    await detached(first)
    platform.jobs_now[handle] = COMPLETE
    assert await second == COMPLETE
    assert platform.cancels == []


# -- faults that must not be waited out --------------------------------------------------------------------------------


async def test_a_fault_of_the_driver_reaches_everyone_who_waits(platform: Scripted, watcher: Watcher) -> None:
    platform.trouble = KeyError("ended_by")
    results = await asyncio.gather(*(watcher.wait(platform.add()) for _ in range(3)), return_exceptions=True)
    assert results == [platform.trouble] * 3
    platform.trouble = None
    assert await watcher.wait(platform.add(COMPLETE)) == COMPLETE


class Broken(Listener):
    """A screen that is gone: whatever it is told, it fails, and counts how often."""

    def __init__(self, error: BaseException, wants_logs: bool = False) -> None:
        self.error = error
        self.wants_logs = wants_logs
        self.told = 0

    async def hear(self, event: Event) -> None:
        self.told += 1
        raise self.error


@pytest.mark.parametrize("wants_logs", [False, True])
@pytest.mark.parametrize("error", [RuntimeError("gone"), BrokenPipeError("gone"), asyncio.CancelledError("gone")])
async def test_a_listener_that_fails_is_logged_once_and_dropped_and_the_wait_goes_on(
    platform: Scripted, watcher: Watcher, caplog: pytest.LogCaptureFixture, error: BaseException, wants_logs: bool
) -> None:
    platform.log = "some words"
    handle, broken, ear = platform.add(), Broken(error, wants_logs), Ear()
    waits = [asyncio.create_task(watcher.wait(handle, one)) for one in (broken, ear)]
    await asyncio.sleep(0.05)
    platform.jobs_now[handle] = RUNNING.model_copy(update={"reason": "changed"})
    await asyncio.sleep(0.2)
    platform.jobs_now[handle] = COMPLETE
    assert await asyncio.wait_for(asyncio.gather(*waits), 5) == [COMPLETE, COMPLETE]
    assert broken.told == 1
    assert ear.states == [JobState.RUNNING, JobState.RUNNING, JobState.COMPLETE]
    assert [(one.name, "gone" in one.message) for one in caplog.records] == [("prefect_tao.listening", True)]


async def test_a_listener_that_never_comes_back_does_not_keep_its_caller(
    platform: Scripted, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(Listener):
        async def hear(self, event: Event) -> None:
            await asyncio.sleep(300)

    monkeypatch.setattr(listening, "HEAR_SECONDS", 0.05)
    assert await asyncio.wait_for(watcher.wait(platform.add(COMPLETE), Stuck()), 5) == COMPLETE


async def test_a_slow_listener_hears_all_states_in_order_and_holds_nobody_up(
    platform: Scripted, watcher: Watcher
) -> None:
    class Slow(Ear):
        async def hear(self, event: Event) -> None:
            await asyncio.sleep(0.4)
            await super().hear(event)

    handle, slow, quick = platform.add(), Slow(), Ear()
    late, soon = (asyncio.create_task(watcher.wait(handle, ear)) for ear in (slow, quick))
    for epoch in range(1, 6):
        await asyncio.sleep(0.06)
        change = {"reason": str(epoch), "progress": Progress(epoch=epoch)}
        platform.jobs_now[handle] = RUNNING.model_copy(update=change)
    await asyncio.sleep(0.06)
    platform.jobs_now[handle] = COMPLETE
    assert await asyncio.wait_for(soon, 1) == COMPLETE
    pauses = [after[0] - before[0] for before, after in pairwise(platform.looks)]
    assert max(pauses) < 0.35
    assert await late == COMPLETE
    assert slow.reasons == quick.reasons
    for ear in (slow, quick):
        told = [one.epoch or 0 for one in ear.progress]
        assert told == sorted(set(told))
        assert told[-1] == 5
    assert len(slow.progress) < len(quick.progress)  # of many at once only the newest is told


# -- cancelling --------------------------------------------------------------------------------------------------------


class Caller:
    """Somebody who may want to cancel, and who counts how often he is asked."""

    def __init__(self, answer: bool | BaseException = False) -> None:
        self.answer = answer
        self.asked = 0

    async def __call__(self) -> bool:
        self.asked += 1
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers are asked every tenth of a second instead of every few seconds."""
    monkeypatch.setattr(watching, "ASK_SECONDS", 0.1)


@pytest.mark.usefixtures("often")
async def test_a_caller_is_asked_once_for_all_its_jobs_and_they_are_cancelled_together(
    platform: Scripted, watcher: Watcher
) -> None:
    ours, theirs = Caller(), Caller()
    handles = [platform.add() for _ in range(20)]
    other = platform.add()
    waits = [asyncio.create_task(watcher.wait(handle, None, ours)) for handle in handles]
    stranger = asyncio.create_task(watcher.wait(other, None, theirs))
    await asyncio.sleep(0.35)
    assert 1 <= ours.asked <= 4
    ours.answer = True
    ends = await asyncio.wait_for(asyncio.gather(*waits), 10)
    assert ends == [CANCELED] * 20
    assert platform.cancels == [handles]
    assert not stranger.done()
    await detached(stranger)


async def test_callers_are_asked_though_the_platform_is_looked_at_rarely(
    platform: Scripted, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ASK_SECONDS", 0.1)
    platform.poll_seconds = (20.0, 60.0)
    caller = Caller()
    wait = asyncio.create_task(watcher.wait(platform.add(), None, caller))
    await comes(lambda: caller.asked >= 4)
    assert len(platform.looks) == 1
    await detached(wait)


@pytest.mark.usefixtures("often")
async def test_a_cancellation_that_was_not_confirmed_is_tried_again(platform: Scripted, watcher: Watcher) -> None:
    platform.cancel_trouble = [CancelUnconfirmed("still there"), Unreachable("no route to host")]
    handle, ear = platform.add(), Ear()
    assert await asyncio.wait_for(watcher.wait(handle, ear, Caller(True)), 10) == CANCELED
    assert platform.cancels == [[handle]] * 3
    assert ear.states == [JobState.RUNNING, JobState.CANCELING, JobState.CANCELING, JobState.CANCELED]
    assert "still there" in ear.reasons[1]


@pytest.mark.usefixtures("often")
async def test_a_fault_of_the_driver_while_cancelling_is_not_swallowed(platform: Scripted, watcher: Watcher) -> None:
    platform.cancel_trouble = [AssertionError("a bug")]
    with pytest.raises(AssertionError, match="a bug"):
        await asyncio.wait_for(watcher.wait(platform.add(), None, Caller(True)), 10)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("error", [RuntimeError("server away"), asyncio.CancelledError("server away")])
async def test_a_caller_who_cannot_answer_has_not_cancelled_and_is_logged_once(
    platform: Scripted, watcher: Watcher, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    caller, handle = Caller(error), platform.add()
    wait = asyncio.create_task(watcher.wait(handle, None, caller))
    await comes(lambda: caller.asked >= 3)
    assert platform.cancels == []
    assert caplog.text.count("server away") == 1
    assert [one.name for one in caplog.records] == ["prefect_tao.watcher"]
    caller.answer = True
    assert await asyncio.wait_for(wait, 5) == CANCELED


@pytest.mark.usefixtures("often")
async def test_callers_are_asked_and_heard_while_the_platform_hangs() -> None:
    class Hanging(Scripted):
        async def observe(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
            await asyncio.sleep(300)
            return {}

    hanging, caller = Hanging(), Caller()
    handle = hanging.add()
    wait = asyncio.create_task(Watcher(hanging).wait(handle, None, caller))
    await comes(lambda: caller.asked >= 2)
    caller.answer = True
    await comes(lambda: bool(hanging.cancels))
    assert hanging.cancels == [[handle]]
    await detached(wait)


def test_callers_are_asked_at_least_every_ten_seconds() -> None:
    assert watching.ASK_SECONDS <= 10


@pytest.mark.usefixtures("often")
async def test_a_caller_who_thinks_long_keeps_no_other_from_being_asked(platform: Scripted, watcher: Watcher) -> None:
    async def thinks() -> bool:
        await asyncio.sleep(300)
        return False

    other = asyncio.create_task(watcher.wait(platform.add(), None, thinks))
    await asyncio.sleep(0.15)
    assert await asyncio.wait_for(watcher.wait(platform.add(), None, Caller(True)), 5) == CANCELED
    await detached(other)


@pytest.mark.usefixtures("often")
async def test_a_job_that_finished_before_it_could_be_cancelled_keeps_its_own_end(root: Path) -> None:
    real = process_at(root)
    handles = [await start(real, command) for command in ("exit 0", LONG)]
    watcher, caller = Watcher(real), Caller(True)
    ends = await asyncio.wait_for(asyncio.gather(*(watcher.wait(handle, None, caller) for handle in handles)), 20)
    assert [end.state for end in ends] == [JobState.COMPLETE, JobState.CANCELED]


# -- logs --------------------------------------------------------------------------------------------------------------


async def test_who_wants_logs_gets_all_of_them_in_order(platform: Scripted, watcher: Watcher) -> None:
    handle, ear, deaf = platform.add(), Ear(wants_logs=True), Ear()
    waits = [asyncio.create_task(watcher.wait(handle, one)) for one in (ear, deaf)]
    platform.log = "one\n"
    await asyncio.sleep(0.1)
    assert ear.log == ["one\n"]
    platform.log += "two\nthree and all the rest that came with the end\n"
    platform.jobs_now[handle] = COMPLETE
    await asyncio.gather(*waits)
    assert "".join(ear.log) == platform.log
    assert deaf.log == []


@pytest.mark.usefixtures("often")
async def test_a_cancelled_job_tells_its_last_words_once(platform: Scripted, watcher: Watcher) -> None:
    ear = Ear(wants_logs=True)
    platform.log = "some last words of a job\n"
    assert await watcher.wait(platform.add(), ear, Caller(True)) == CANCELED
    assert "".join(ear.log) == platform.log


async def test_logs_that_nobody_wants_are_not_fetched(platform: Scripted, watcher: Watcher) -> None:
    platform.log = "much"
    await watcher.wait(platform.add(COMPLETE), Ear())
    assert platform.log_reads == 0
