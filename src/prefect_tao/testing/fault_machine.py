"""One machine that does everything that goes wrong to launches, in any order, and compares them with the truth.

It launches, loses and mangles replies, kills launchers, cuts the platform off, cancels, stops, requeues and forgets.
Whatever the order: at most one job of a key lives; no verdict comes from silence; what is said to be cancelled is over;
secrets are gone after the end; nothing is left running. `run_machine` prints the seed by which a run can be repeated.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from prefect_tao.jobs.errors import CancelUnconfirmed, SubmitFailed, Unreachable
from prefect_tao.jobs.following import follow
from prefect_tao.jobs.launching import launch, look_up
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.retrying import LONGEST_PAUSE, PATIENCE_SECONDS
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.testing.world import Client, Event, World

SEED = "PREFECT_TAO_FAULT_SEED"
KEYS = 2
# So many launchers at most are at it at the same time.
MOST = 4
# A launcher gives up when it would have to wait for longer than its patience lasts.
PATIENCE = PATIENCE_SECONDS - LONGEST_PAUSE
PAUSE = st.integers(0, 9)
NUMBER = st.integers(0, 9)
SELDOM = st.integers(0, 7).map(lambda number: number == 7)
# Which of the next requests of a client are spoilt, and how; all others pass.
Faults = dict[int, int]
FAULTS = st.dictionaries(st.integers(0, 5), st.integers(0, 20), max_size=3)
EARLY: st.SearchStrategy[Faults] = st.one_of(st.just({}), st.just({}), st.just({}), FAULTS)
# A fault, and another one in what is asked because of it: between these two most mistakes are made.
FAULT = st.integers(1, 9)
DOUBT = st.builds(
    lambda first, gap, one, two: {first: one, first + gap: two}, st.integers(0, 2), st.integers(1, 2), FAULT, FAULT
)
MakeWorld = Callable[[Callable[[st.SearchStrategy[Any]], Any]], World]


def hinder(world: World, client: Client, faults: Faults) -> None:
    """Spoil the next requests of a client."""
    for number in range(max(faults, default=-1) + 1):
        client.hinder(world.faults[faults.get(number, 0) % len(world.faults)])


class LauncherProcess:
    """A process that launches a job and waits for its end."""

    def __init__(
        self, world: World, key: str, loop: asyncio.AbstractEventLoop, is_refused: bool, later: Faults
    ) -> None:
        self.world, self.key, self.asked_at, self.is_refused = world, key, loop.time(), is_refused
        self.client, self.later = world.client(), later
        self.wants_cancel = self.is_killed = self.left_unbegun = False
        self.handle = ""
        self.task = loop.create_task(self._run())

    async def _run(self) -> Outcome:
        platform, request = self.client.platform, self.world.request(self.is_refused)
        looked = await look_up(platform, self.key)
        self.hinder(self.later)
        launched = await launch(platform, request, self.key, self.world.secrets, looked)
        self.handle = launched.handle.name
        # Somebody who launches and does not wait would leave now.
        self.left_unbegun = not self.is_late() and not self.world.has_begun(launched.handle)
        return await follow(
            Watcher(platform), request, launched.handle, self.world.secrets, should_cancel=self._should_cancel
        )

    def hinder(self, faults: Faults) -> None:
        """Spoil its next requests."""
        hinder(self.world, self.client, faults)

    def is_late(self) -> bool:
        """Whether its patience is over."""
        return self.task.get_loop().time() - self.asked_at >= PATIENCE

    async def _should_cancel(self) -> bool:
        return self.wants_cancel

    def kill(self) -> None:
        """The process is gone at once, without a last word."""
        self.is_killed = True
        self.client.cut()
        self.task.cancel()


class FaultMachine(RuleBasedStateMachine):
    """The rules. A subclass, made by `machine_of`, says in which world.

    Which rules apply never depends on how far launchers are: in a real world that is not the same twice.
    """

    make_world: MakeWorld
    # Of all sequences of a run: how many there were, and every promise that was broken.
    sequences = 0
    broken: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.launchers: list[LauncherProcess] = []
        self.errands: list[asyncio.Task[None]] = []
        self.wrong: list[str] = []

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A new world, with nothing in it."""
        self.world = type(self).make_world(data.draw)
        self.loop = self.world.new_loop()
        # Not by `random`, which Hypothesis sets: another run beside this one would have jobs of the same names.
        self.keys = [job_key("faults", token_hex(8)) for _ in range(KEYS)]

    # -- what people and programs do: nothing before the first launch --------------------------------------------------

    @rule(number=st.integers(0, KEYS - 1), early=EARLY, later=DOUBT, pause=PAUSE, refused=SELDOM)
    def launch(self, number: int, early: Faults, later: Faults, pause: int, refused: bool) -> None:
        """Somebody launches, whether or not somebody else has; seldom a job that the platform refuses.

        Faults come early, or once it has looked and submits.
        """
        if len(self.living()) < MOST:
            self.world.asked(self.keys[number])
            is_refused = refused and self.world.refuses
            self.launchers.append(LauncherProcess(self.world, self.keys[number], self.loop, is_refused, later))
            self.launchers[-1].hinder(early)
            self.launchers[-1].task.add_done_callback(lambda task: self._judge(task))
        self._pass(pause)

    @precondition(lambda self: self.launchers)
    @rule(number=NUMBER, pause=PAUSE)
    def kill(self, number: int, pause: int) -> None:
        """kill -9 of a launcher, at whatever point it is."""
        for launcher in self._one_of(number):
            launcher.kill()
        self._pass(pause)

    @precondition(lambda self: self.launchers)
    @rule(number=NUMBER, pause=PAUSE)
    def cancel_run(self, number: int, pause: int) -> None:
        """A person cancels a run; its launcher hears of it."""
        for launcher in self._one_of(number):
            launcher.wants_cancel = True
        self._pass(pause)

    @precondition(lambda self: self.launchers)
    @rule(number=st.integers(0, KEYS - 1), faults=FAULTS, pause=PAUSE)
    def cancel_by_name(self, number: int, faults: Faults, pause: int) -> None:
        """A person cancels a job from another machine."""
        client = self.world.client()
        hinder(self.world, client, faults)
        self.errands.append(self.loop.create_task(self._cancel(client, self.keys[number])))
        self._pass(pause)

    @precondition(lambda self: self.launchers)
    @rule(number=NUMBER, faults=FAULTS, pause=PAUSE)
    def hinder(self, number: int, faults: Faults, pause: int) -> None:
        """The next requests of a launcher, or the replies to them, are lost or mangled."""
        for launcher in self._one_of(number):
            launcher.hinder(faults)
        self._pass(pause)

    # -- what the platform does ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.launchers)
    @rule(pause=PAUSE)
    def outage(self, pause: int) -> None:
        """For a while the platform does not answer."""
        self.world.set_away(True)
        self._pass(pause)
        self.world.set_away(False)

    @precondition(lambda self: self.launchers)
    @rule(full=st.booleans())
    def fill(self, full: bool) -> None:
        """There is no room to start jobs, or there is again."""
        self.world.set_full(full)

    @precondition(lambda self: self.launchers)
    @rule(event=st.sampled_from(Event), number=st.integers(0, KEYS - 1), pause=PAUSE)
    def happens(self, event: Event, number: int, pause: int) -> None:
        """Something happens to a job."""
        if event in self.world.events:
            self.loop.run_until_complete(self.world.happens(event, self.keys[number]))
        self._pass(pause)

    @precondition(lambda self: self.launchers)
    @rule(pause=PAUSE)
    def wait(self, pause: int) -> None:
        """Time passes."""
        self._pass(pause)

    # -- what must be true ---------------------------------------------------------------------------------------------

    def living(self) -> list[LauncherProcess]:
        """The launchers that are still at it."""
        return [launcher for launcher in self.launchers if not launcher.task.done()]

    def _one_of(self, number: int) -> list[LauncherProcess]:
        """One of those that are still at it, if there is one."""
        living = self.living()
        return [living[number % len(living)]] if living else []

    def _pass(self, pause: int) -> None:
        pauses = self.world.pauses
        self.loop.run_until_complete(asyncio.sleep(pauses[pause % len(pauses)]))
        self._check()

    def _check(self) -> None:
        wrong = [*self.wrong, *self.world.wrong()]
        unbegun = [launcher.handle for launcher in self.launchers if launcher.left_unbegun]
        wrong += [f"{name} was called launched, but nothing starts it" for name in unbegun]
        self.broken += wrong
        assert not wrong, "; ".join(wrong)

    def _judge(self, task: asyncio.Task[Outcome]) -> None:
        """Compare what a launcher says at its end with the truth."""
        launcher = next(one for one in self.launchers if one.task is task)
        if launcher.is_killed or task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._judge_outcome(launcher, task.result())
        elif isinstance(error, SubmitFailed):
            if not launcher.is_refused:
                self.wrong.append(f"a launch was called refused although it was not: {error}")
        elif not isinstance(error, Unreachable) or not launcher.is_late():
            self.wrong.append(f"a launcher gave up: {error!r}")

    def _judge_outcome(self, launcher: LauncherProcess, outcome: Outcome) -> None:
        name, ends = outcome.handle.name, self.world.ends(outcome.handle)
        if not ends:
            self.wrong.append(f"{name} was said to be {outcome.state} while it lives")
        elif outcome.state not in ends and not (outcome.state is JobState.CANCELED and launcher.wants_cancel):
            self.wrong.append(f"{name} was said to be {outcome.state}, but its end was {', '.join(sorted(ends))}")

    async def _cancel(self, client: Client, key: str) -> None:
        platform = client.platform
        try:
            handles = (await platform.find([key]))[key]
            seen = await platform.cancel(handles) if handles else {}
        except (Unreachable, CancelUnconfirmed):
            return  # it said that it could not
        for handle in handles:
            if not seen[handle].state.terminal or not self.world.ends(handle):
                self.wrong.append(f"{handle.name} was said to be cancelled while it lives")

    def teardown(self) -> None:
        """Nothing hinders anybody any more: everybody comes to an end, and nothing is left."""
        if not hasattr(self, "loop"):
            return
        type(self).sequences += bool(self.launchers)
        try:
            if not self.wrong and not self.world.wrong():
                self.loop.run_until_complete(self._settle())
                self._check()
        finally:
            self._close()

    async def _settle(self) -> None:
        self.world.set_away(False)
        self.world.set_full(False)
        self.world.let_end()
        waiting: list[Awaitable[Any]] = [*(launcher.task for launcher in self.living()), *self.errands]
        if waiting:
            await asyncio.wait([asyncio.ensure_future(one) for one in waiting], timeout=self.world.settle_seconds)
        for launcher in self.living():
            state = f"waits for {launcher.handle}" if launcher.handle else "has no job"
            self.wrong.append(
                f"a launcher never comes to an end: it {state}; there lives {self.world.live(launcher.key)}"
            )
        client = self.world.client()
        for key in self.keys:
            await self._cancel(client, key)
        self.world.hours_pass()
        listed = await client.platform.jobs()
        await client.platform.observe(listed)
        for key in self.keys:
            if left := self.world.live(key):
                self.wrong.append(f"left running: {left}")
        self.wrong += [f"a secret is left: {where}" for where in self.world.secrets_left()]

    def _close(self) -> None:
        for launcher in self.launchers:
            launcher.kill()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.world.close()
        self.loop.close()


def machine_of(make_world: MakeWorld) -> type[FaultMachine]:
    """The machine in a world of its own for every sequence. `make_world` is given a function to draw choices with."""
    return type("Machine", (FaultMachine,), {"make_world": staticmethod(make_world), "broken": []})


def run_machine(make_world: MakeWorld, sequences: int, steps: int = 20, shrink: bool = True) -> None:
    """Run so many sequences. Raises AssertionError with the shortest sequence found that does what must not happen."""
    seed = int(os.environ.get(SEED) or random.getrandbits(32))
    print(f"fault machine: {sequences} sequences with seed {seed}; repeat them with {SEED}={seed}")
    machine = machine_of(make_world)
    for start in itertools.count(seed):
        settings = _settings(sequences - machine.sequences, steps, shrink)
        try:
            run_state_machine_as_test(hypothesis.seed(start)(machine), settings=settings)
            return
        except FlakyStrategyDefinition:
            # Where time is real no sequence goes the same way twice, and Hypothesis stops when it notices.
            assert not machine.broken, "; ".join(machine.broken)
            if machine.sequences >= sequences:
                return


def _settings(sequences: int, steps: int, shrink: bool) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=sequences,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=[hypothesis.Phase.generate] + ([hypothesis.Phase.shrink] if shrink else []),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
