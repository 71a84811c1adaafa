"""A report holds nobody up: the artifact is drawn in the background, and a screen that fails is no fault of it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from prefect_tao.jobs.events import Event, LogWritten, Progressed, RetryPlanned, StateChanged
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.listening import Listener
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import Evidence, classify
from prefect_tao.tasks import reporting
from prefect_tao.tasks.reporting import Reporter, everyone

HANDLE = JobHandle(target="process", key="0123456789abcdef", attempt=1)


class Page:
    """Takes its time for each drawing, and remembers what was drawn: the epoch, and whether more is to come."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.drawn: list[tuple[int | None, bool]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.time_left: list[float | None] = []

    async def show(self, handle: JobHandle, seen: Observation, progress: Progress | None, watched: bool) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.at_once -= 1
        self.drawn.append((progress.epoch if progress else None, watched))
        self.time_left.append(progress.eta_seconds if progress else None)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "get_run_logger", lambda: logging.getLogger("test"))


@pytest.fixture
def page() -> Any:
    return Page()


RUNNING = StateChanged(HANDLE, Observation(state=JobState.RUNNING))


def at(epoch: int) -> Progress:
    return Progress(epoch=epoch, max_epoch=10, fraction=epoch / 10, eta_seconds=60.0)


async def test_a_slow_drawing_does_not_hold_the_news_up_and_the_last_one_is_awaited(page: Any) -> None:
    page.seconds = 0.3
    reporter = Reporter("train", page)
    async with reporter.every(5):
        await reporter.hear(RUNNING)
        started = time.monotonic()
        for epoch in range(1, 10):
            await reporter.hear(Progressed(HANDLE, at(epoch)))
            await asyncio.sleep(0)
        assert time.monotonic() - started < 0.2
    # It is left as it was last seen, and nothing is guessed about a job that is watched no longer.
    assert page.drawn == [(1, True), (9, False)]
    assert page.time_left[-1] is None


async def test_a_job_that_is_over_is_not_drawn_as_running_once_more(page: Any) -> None:
    reporter = Reporter("train", page)
    async with reporter.every(5):
        await reporter.hear(RUNNING)
        await asyncio.sleep(0.01)
        await reporter.hear(StateChanged(HANDLE, Observation(state=JobState.COMPLETE)))
    assert page.drawn == [(None, True)]


async def test_a_log_that_grows_is_drawn_without_any_other_news(page: Any) -> None:
    reporter = Reporter("train", page, seconds=0.05)
    async with reporter.every(5):
        await reporter.hear(RUNNING)
        await asyncio.sleep(0.3)
    assert len(page.drawn) >= 3


async def test_at_most_one_drawing_is_under_way(page: Any) -> None:
    page.seconds = 0.07
    reporter = Reporter("train", page, seconds=0.2)
    async with reporter.every(5):
        await reporter.hear(RUNNING)
        for epoch in range(1, 10):
            await reporter.hear(Progressed(HANDLE, at(epoch)))
            await asyncio.sleep(0.06)
    assert page.most_at_once == 1
    epochs = [epoch or 0 for epoch, _ in page.drawn]
    assert len(epochs) >= 3
    assert epochs == sorted(epochs)


async def test_a_server_that_hangs_delays_the_end_by_a_bound_only(page: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "LAST_SECONDS", 0.2)
    page.seconds = 300
    reporter, started = Reporter("train", page), time.monotonic()
    async with reporter.every(5):
        await reporter.hear(RUNNING)
        await asyncio.sleep(0.05)
    assert 0.2 <= time.monotonic() - started < 1
    await asyncio.sleep(0.05)
    assert page.at_once == 0


async def test_a_screen_that_fails_is_dropped_and_the_report_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Listener):
        wants_logs = True
        told = 0

        async def hear(self, event: Event) -> None:
            self.told += 1
            raise BrokenPipeError("the screen is gone")

    broken = Broken()
    before = reporting.listeners.set((broken,))
    audience = everyone(Reporter("train"))
    reporting.listeners.reset(before)
    assert audience.wants_logs
    await audience.hear(LogWritten(HANDLE, "one"))
    await audience.hear(LogWritten(HANDLE, "two"))
    assert (broken.told, audience.wants_logs) == (1, False)
    with caplog.at_level(logging.INFO, "test"):
        await audience.hear(StateChanged(HANDLE, Observation(state=JobState.RUNNING)))
    assert f"{HANDLE.name} is Running" in caplog.text
    assert caplog.text.count("the screen is gone") == 1


async def test_a_secret_that_the_job_printed_is_in_no_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    value = "printed-by-the-job-itself"
    verdict = classify(Evidence(exit_code=1, log_tail=f"NCCL WARN Connection reset by peer token={value}\n"))
    audience = everyone(Reporter("train"), secrets={"HF_TOKEN": value})
    with caplog.at_level(logging.INFO):
        await audience.hear(RetryPlanned(HANDLE, verdict, 1.0))
        await audience.hear(StateChanged(HANDLE, Observation(state=JobState.ERROR, reason=f"refused {value}")))
    assert caplog.text.count("***HF_TOKEN***") == 2
    assert value not in caplog.text
