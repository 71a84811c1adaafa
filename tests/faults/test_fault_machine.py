"""Whatever goes wrong, in whatever order: one job a key, no verdict from silence, and nothing left behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from secrets import token_hex

import pytest
from hypothesis import strategies as st
from opened_platforms import process_at

from prefect_tao.jobs import launching
from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch, look_up, submit_once
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Platform, Rendered
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.testing.fault_machine import SEED, run_machine
from prefect_tao.testing.process_world import ProcessWorld
from prefect_tao.testing.simulated import SimulatedPlatform
from prefect_tao.testing.simulated_world import SimulatedWorld, simulated
from prefect_tao.testing.world import Event

QUICK = 1_000
FULL = 10_000
# Each planted bug is found well before this many sequences: within a few hundred on average.
ENOUGH = 4_000


@pytest.mark.parametrize("sequences", [QUICK, pytest.param(FULL, marks=pytest.mark.long)])
def test_no_order_of_faults_breaks_a_promise(sequences: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if sequences == QUICK and SEED not in os.environ:
        monkeypatch.setenv(SEED, "1")  # the same for everyone; the long run looks for what is new
    run_machine(simulated(), sequences)


@pytest.mark.parametrize("sequences", [5, pytest.param(100, marks=pytest.mark.long)])
def test_no_order_of_faults_breaks_a_promise_of_processes(tmp_path: Path, sequences: int) -> None:
    run_machine(lambda draw: ProcessWorld(tmp_path / token_hex(4), process_at), sequences, steps=8, shrink=False)


def test_silence_after_a_submission_is_doubt_and_the_job_is_started_after_all() -> None:
    world = SimulatedWorld(unique_names=True)
    with closing(world.new_loop()) as loop:
        client, key = world.client(), "ab" * 8
        # The look-ups pass, the job is made, its start is lost, it is found, and then left out of a list with holes.
        for fault in ("none", "none", "none", "lost request", "none", "partial list"):
            client.hinder(fault)
        launched = loop.run_until_complete(launch(client.platform, world.request(), key, world.secrets))
        assert launched.handle.attempt == 1
        loop.run_until_complete(asyncio.sleep(10))
        assert world.live(key) == [f"tao-{key}-1 (running)"]
    world.close()


def test_a_request_that_arrives_when_its_job_is_over_and_forgotten_runs_nothing() -> None:
    world = SimulatedWorld(unique_names=True)
    with closing(world.new_loop()) as loop:
        first, second, key = world.client(), world.client(), "ef" * 8
        asked = loop.run_until_complete(look_up(first.platform, key))
        for fault in ("none", "late request"):
            first.hinder(fault)
        made = loop.run_until_complete(launch(first.platform, world.request(), key, world.secrets, asked))
        loop.run_until_complete(asyncio.sleep(3))
        loop.run_until_complete(first.platform.cancel([made.handle]))
        world.engine.forget()
        again = loop.run_until_complete(launch(second.platform, world.request(), key, world.secrets))
        assert again.handle.attempt == 2
        loop.run_until_complete(asyncio.sleep(40))
        assert world.live(key) == [f"tao-{key}-2 (running)", f"tao-{key}-1 (created)"]
        loop.run_until_complete(launch(first.platform, world.request(), key, world.secrets, asked))
        loop.run_until_complete(asyncio.sleep(5))
        assert world.live(key) == [f"tao-{key}-2 (running)"]
        assert world.wrong() == []
    world.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_only_a_stop_that_left_a_trace_must_keep_the_next_attempt_from_being_made(is_restarted: bool) -> None:
    world = SimulatedWorld(unique_names=False)
    with closing(world.new_loop()) as loop:
        client, key = world.client(), "ba" * 8
        world.asked(key)
        loop.run_until_complete(launch(client.platform, world.request(), key, world.secrets))
        loop.run_until_complete(asyncio.sleep(3))
        for event in (Event.REQUEUED, Event.STOPPED) if is_restarted else (Event.STOPPED,):
            loop.run_until_complete(world.happens(event, key))
        loop.run_until_complete(asyncio.sleep(3))
        world.engine.forget()
        # Nobody has asked anew since it was stopped.
        loop.run_until_complete(submit_once(client.platform, world.request(), key, 2, world.secrets))
        said = [] if is_restarted else [f"tao-{key}-2 was made although a person had stopped tao-{key}-1"]
        assert world.wrong() == said
    world.close()


def test_a_launcher_in_doubt_takes_what_another_one_has_started_meanwhile() -> None:
    world = SimulatedWorld(unique_names=True)
    with closing(world.new_loop()) as loop:
        first, second, third, key = world.client(), world.client(), world.client(), "cd" * 8
        asked = loop.run_until_complete(look_up(second.platform, key))
        world.set_full(True)
        made = loop.run_until_complete(launch(first.platform, world.request(), key, world.secrets))
        loop.run_until_complete(first.platform.cancel([made.handle]))
        ended = loop.run_until_complete(look_up(third.platform, key))
        assert ended.is_due()
        # It never ran, so it left no record, and the service forgets it: the second launcher starts it again.
        world.engine.forget()
        loop.run_until_complete(launch(second.platform, world.request(), key, world.secrets, asked))
        third.hinder("lost request")
        taken = loop.run_until_complete(launch(third.platform, world.request(), key, world.secrets, ended))
        assert taken.handle.attempt == 1
        assert world.live(key) == [f"tao-{key}-1 (queued)"]
    world.close()


class Forgetful(SimulatedPlatform):
    """Submits without looking whether the job is there."""

    async def _looked_up(self, name: JobName) -> None:
        return None


class Discouraged(SimulatedPlatform):
    """Takes an error of the service, or of a proxy before it, for its refusal."""

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        try:
            return await super().submit(rendered, secrets)
        except Unreachable as error:
            if "answered 5" in error.cause:
                raise SubmitFailed(error.cause) from error
            raise


class Rash(SimulatedPlatform):
    """Takes a job that it cannot see for one that is over."""

    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        try:
            seen = await super().look(handles)
        except Unreachable:
            seen = {}
        return {handle: seen.get(handle, Observation(state=JobState.ERROR, reason="gone")) for handle in handles}


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (Forgetful, "a second tao-.* was made|was made while"),
        (Discouraged, "called refused although it was not"),
        (Rash, "was said to be Error while it lives|was said to be Error, but its end was|was made while"),
    ],
)
def test_a_planted_bug_is_found(driver: type[SimulatedPlatform], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        run_machine(simulated(driver), ENOUGH, shrink=False)


async def hasty(platform: Platform, handle: JobHandle) -> bool:
    """Takes a job of which nothing is seen for one that has begun."""
    seen = (await retry(lambda: platform.observe([handle]))).get(handle)
    return seen is None or seen.state is not JobState.PENDING


def test_a_planted_bug_in_the_launch_itself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_has_begun", hasty)
    with pytest.raises(AssertionError, match="was called launched, but nothing starts it"):
        run_machine(simulated(), ENOUGH, shrink=False)


def test_some_jobs_are_really_refused() -> None:
    refused = []

    class Counting(SimulatedPlatform):
        async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
            try:
                return await super().submit(rendered, secrets)
            except SubmitFailed as error:
                refused.append(error)
                raise

    run_machine(simulated(Counting), 100)
    assert refused


def test_a_world_in_which_nothing_goes_the_same_way_twice_is_run_to_the_end() -> None:
    made: list[SimulatedWorld] = []

    def make(draw: Callable[..., bool]) -> SimulatedWorld:
        if len(made) % 2:
            draw(st.booleans())
        made.append(SimulatedWorld(unique_names=draw(st.booleans())))
        return made[-1]

    run_machine(make, 20, shrink=False)
    assert len(made) >= 20
