"""A report holds nobody up: the artifact is drawn in the background, and a screen that fails is no fault of it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any
from uuid import UUID, uuid4

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


class Server:
    """Takes its time for each drawing, and remembers them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.drawn: list[float] = []
        self.at_once = 0
        self.most_at_once = 0

    async def create(self, progress: float, **_: Any) -> UUID:
        await self._draw(progress)
        return uuid4()

    async def update(self, artifact: UUID, progress: float, **_: Any) -> None:
        await self._draw(progress)

    async def _draw(self, progress: float) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.at_once -= 1
        self.drawn.append(progress)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(reporting, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(reporting, "acreate_progress_artifact", server.create)
    monkeypatch.setattr(reporting, "aupdate_progress_artifact", server.update)
    return server


def at(epoch: int) -> Progress:
    return Progress(epoch=epoch, max_epoch=10, fraction=epoch / 10)


async def test_a_slow_drawing_does_not_hold_the_news_up_and_the_last_one_is_awaited(server: Server) -> None:
    server.seconds = 0.3
    reporter = Reporter("train", "key")
    async with reporter.every(5):
        started = time.monotonic()
        for epoch in range(1, 10):
            await reporter.hear(Progressed(HANDLE, at(epoch)))
            await asyncio.sleep(0)
        assert time.monotonic() - started < 0.2
    assert server.drawn == [pytest.approx(10), pytest.approx(90)]


async def test_at_most_one_drawing_is_under_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "ARTIFACT_SECONDS", 0.2)
    server.seconds = 0.07
    reporter = Reporter("train", "key")
    async with reporter.every(5):
        for epoch in range(1, 10):
            await reporter.hear(Progressed(HANDLE, at(epoch)))
            await asyncio.sleep(0.06)
    assert server.most_at_once == 1
    assert 3 <= len(server.drawn) <= 5
    assert server.drawn == sorted(server.drawn)


async def test_a_server_that_hangs_delays_the_end_by_a_bound_only(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "LAST_SECONDS", 0.2)
    server.seconds = 300
    reporter, started = Reporter("train", "key"), time.monotonic()
    async with reporter.every(5):
        await reporter.hear(Progressed(HANDLE, at(1)))
        await asyncio.sleep(0.05)
    assert 0.2 <= time.monotonic() - started < 1
    await asyncio.sleep(0.05)
    assert server.at_once == 0


async def test_a_screen_that_fails_is_dropped_and_the_report_goes_on(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Listener):
        wants_logs = True
        told = 0

        async def hear(self, event: Event) -> None:
            self.told += 1
            raise BrokenPipeError("the screen is gone")

    broken = Broken()
    before = reporting.listeners.set((broken,))
    audience = everyone(Reporter("train", "key"))
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
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    value = "printed-by-the-job-itself"
    verdict = classify(Evidence(exit_code=1, log_tail=f"NCCL WARN Connection reset by peer token={value}\n"))
    audience = everyone(Reporter("train", "key"), secrets={"HF_TOKEN": value})
    with caplog.at_level(logging.INFO):
        await audience.hear(RetryPlanned(HANDLE, verdict, 1.0))
        await audience.hear(StateChanged(HANDLE, Observation(state=JobState.ERROR, reason=f"refused {value}")))
    assert caplog.text.count("***HF_TOKEN***") == 2
    assert value not in caplog.text
