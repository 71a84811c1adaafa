"""Whatever waits says for what before a person starts to wonder, and says nothing about what is quick."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from prefect_tao.jobs.byname import find_by_name
from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.following import attend
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import submit_once
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.testing.engine import Line, SimulatedEngine
from prefect_tao.testing.simulated import SimulatedPlatform
from prefect_tao.testing.virtual_time import VirtualLoop


def waited(work: Callable[[], Awaitable[object]], seconds: float) -> None:
    """`work` for so many seconds of a time that passes at once."""

    async def bounded() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await work()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(bounded())


async def silent() -> None:
    raise Unreachable("login-1: no route to host", "wait")


def test_a_platform_that_does_not_answer_is_named_within_five_seconds(caplog: pytest.LogCaptureFixture) -> None:
    waited(lambda: retry(silent), 5)
    assert [record.getMessage() for record in caplog.records] == [
        "login-1: no route to host; waiting for an answer (2.5 s so far)"
    ]
    waited(lambda: retry(silent), 100)
    assert caplog.records[-1].getMessage().endswith("(1 min 32 s so far)")


def test_an_answer_that_does_not_come_at_all_is_said_too(caplog: pytest.LogCaptureFixture) -> None:
    waited(lambda: retry(lambda: asyncio.sleep(90)), 5)
    assert "no answer yet" in caplog.text


def test_what_is_quick_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    waited(lambda: retry(lambda: asyncio.sleep(1)), 5)
    assert not caplog.records


HANDLE = JobHandle(target="slurm/polar", key="ab" * 8, attempt=1)


class Mute(SimulatedPlatform):
    """A host that takes every question and answers none."""

    def __init__(self) -> None:
        super().__init__(Line(SimulatedEngine(unique_names=True)), "slurm/polar")

    async def ask(self, request: object) -> Any:
        await asyncio.sleep(600)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: find_by_name(Mute(), HANDLE.name), f"slurm/polar has not said yet whether it has {HANDLE.name}"),
        (lambda: Mute().cancel([HANDLE]), f"waiting until slurm/polar says that it is over: {HANDLE.name}"),
        (lambda: attend(Watcher(Mute()), JobRequest.build(command="true"), HANDLE, {}), "has not said yet how"),
        (lambda: Watcher(Mute()).wait(HANDLE), "slurm/polar does not answer; its jobs go on"),
    ],
    ids=["find", "cancel", "watch", "watch on"],
)
def test_a_host_that_does_not_answer_is_named_by_whatever_waits_for_it(
    caplog: pytest.LogCaptureFixture, work: Callable[[], Awaitable[object]], words: str
) -> None:
    waited(work, 5)
    assert words in caplog.text


def test_a_submission_that_hangs_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Hanging:
        target = "slurm/polar"

        def render(self, *_: object) -> None: ...

        async def submit(self, *_: object) -> None:
            await asyncio.sleep(600)

    request = JobRequest.build(command="true")
    waited(lambda: submit_once(Hanging(), request, "ab" * 8, 1, {}), 5)  # type: ignore[arg-type]
    assert "slurm/polar has not said yet whether it took tao-abababababababab-1" in caplog.text
