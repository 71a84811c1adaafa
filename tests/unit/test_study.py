"""A search as it goes: asked, told, withdrawn, killed and rebuilt."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna", reason="the automl extra is not installed: make setup installs it")
from optuna.storages import InMemoryStorage  # noqa: E402

from prefect_tao.catalog.nouns import SearchParameter  # noqa: E402
from prefect_tao.jobs.errors import InvalidInput, Unreachable  # noqa: E402
from prefect_tao.searching.search_plan import SearchPlan  # noqa: E402
from prefect_tao.searching.space import Space, space_of  # noqa: E402
from prefect_tao.searching.study import Proposal, Study  # noqa: E402
from prefect_tao.searching.suggesting import seen  # noqa: E402
from prefect_tao.searching.trial_record import RETRIES, Standing  # noqa: E402

ALGORITHMS = ["bayesian", "tpe", "random", "grid", "qmc", "cma-es", "nsga-ii"]
IN_RUNGS = ["asha", "hyperband", "hyperband_es", "bohb", "dehb", "pbt"]


def a_space() -> Space:
    rows = [
        {"name": "lr", "type": "float", "default": 1e-5, "min": 1e-6, "max": 1.0, "log": True},
        {"name": "layers", "type": "int", "default": 2, "min": 1, "max": 12},
        {"name": "kind", "type": "categorical", "default": "c", "options": ["a", "b", "c"]},
    ]
    return space_of([SearchParameter.model_validate(row) for row in rows], {})


def loss(proposal: Proposal) -> float:
    values = proposal.values
    away = (math.log10(values["lr"]) + 3) ** 2 / 9 + (values["layers"] - 8) ** 2 / 50
    return away + {"a": 0.0, "b": 0.2, "c": 0.4}[values["kind"]] + 1 / (proposal.epochs or 27)


def a_plan(algorithm: str, **more: Any) -> SearchPlan:
    sizes: dict[str, Any] = {"max_epochs": 9, "max_trials": 12} if algorithm in IN_RUNGS else {"max_trials": 9}
    sizes |= {"population": 5, "generations": 3, "interval": 2}
    return SearchPlan(algorithm, **{"seed": 5, **sizes, **more})


def led(study: Study, rng: random.Random, at_once: int = 4, most: int = 1000) -> list[tuple[str, Any]]:
    """A whole search with trials that end in any order; everything asked and told, in order."""
    log: list[tuple[str, Any]] = []
    running: list[Proposal] = list(study.running)
    while len(log) < most:
        while len(running) < at_once and (proposal := study.ask()) is not None:
            running.append(proposal)
            log.append(("asked", proposal))
        if not running:
            break
        ended = running.pop(rng.randrange(len(running)))
        chance = rng.random()
        if chance < 0.1:
            study.tell(ended.number, None, "CUDA error")
        elif chance < 0.2:
            study.withdraw(ended.number)
        else:
            study.tell(ended.number, loss(ended))
        log.append(("told", (ended.number, study.history[ended.number].end)))
    return log


@pytest.mark.parametrize("algorithm", ALGORITHMS + IN_RUNGS)
def test_the_same_order_of_asking_and_telling_gives_the_same_proposals(algorithm: str) -> None:
    plan = a_plan(algorithm, max_failures=100)
    first = led(Study.open(None, "s", plan, a_space()), random.Random(1))
    assert first == led(Study.open(None, "s", plan, a_space()), random.Random(1))
    assert sum(word == "asked" for word, _ in first) >= 9


@pytest.mark.parametrize("algorithm", ALGORITHMS + IN_RUNGS)
def test_a_study_rebuilt_from_its_records_goes_on_as_it_would_have(algorithm: str, tmp_path: Path) -> None:
    plan = a_plan(algorithm, max_failures=100)
    study = Study.open(None, "s", plan, a_space())
    led(study, random.Random(3), most=20)
    records = [replace(one, notes={}) for one in study.history]
    rebuilt = Study.rebuild(f"sqlite:///{tmp_path}/other.db", "s", plan, a_space(), reversed(records))
    assert [replace(one, notes={}) for one in rebuilt.history] == records
    assert led(rebuilt, random.Random(4)) == led(study, random.Random(4))
    assert rebuilt.finished


def test_a_trial_that_was_launched_after_later_ones_was_asked_for_before_them() -> None:
    """A process that is killed between two launches leaves the first of them to the next process."""
    plan = a_plan("random")
    study = Study.open(None, "s", plan, a_space())
    for _ in range(3):
        study.ask()
    study.tell(2, 1.0)
    late = [replace(one, asked=(10.0, 50.0, 11.0)[one.number], notes={}) for one in study.history]
    late[2] = replace(late[2], told=20.0)
    rebuilt = Study.rebuild(None, "s", plan, a_space(), late)
    assert [replace(one, notes={}) for one in rebuilt.history] == [replace(one, notes={}) for one in study.history]


def test_another_process_proposes_the_same(tmp_path: Path) -> None:
    plan = a_plan("bayesian", max_trials=20)
    study = Study.open(f"sqlite:///{tmp_path}/s.db", "s", plan, a_space())
    led(study, random.Random(3), most=14)
    program = (
        "import json, sys; sys.path.insert(0, sys.argv[2]); from test_study import *\n"
        "study = Study.open(sys.argv[1], 's', a_plan('bayesian', max_trials=20), a_space())\n"
        "print(json.dumps([study.ask().values for _ in range(2)]))"
    )
    copy = tmp_path / "copy.db"
    copy.write_bytes((tmp_path / "s.db").read_bytes())
    here = str(Path(__file__).parent)
    there = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{copy}", here], capture_output=True, text=True, check=True
    )
    asked = [study.ask() for _ in range(2)]
    assert json.loads(there.stdout) == [one.values for one in asked if one]


@pytest.mark.parametrize("algorithm", ["bayesian", "asha", "pbt"])
def test_a_failure_is_never_a_score_and_never_the_best(algorithm: str) -> None:
    """Reported as 0.0, a crashed trial of a minimised loss would be the best one."""
    study = Study.open(None, "s", a_plan(algorithm), a_space())
    for turn in range(9):
        proposal = study.ask()
        assert proposal is not None
        study.tell(proposal.number, *((None, "out of memory") if turn % 3 == 1 else (5.0 + loss(proposal),)))
    failed = [one for one in study.history if one.end is Standing.FAILED]
    assert len(failed) == 3
    assert all(one.result is None and one.failure == "out of memory" for one in failed)
    assert study.best is not None
    assert study.best.end is not Standing.FAILED
    assert not {one.number for one in failed} & {one.parent for one in study.history}


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_a_metric_that_is_missing_or_no_number_is_a_failure(value: float | None) -> None:
    study = Study.open(None, "s", a_plan("random"), a_space())
    proposal = study.ask()
    assert proposal is not None
    study.tell(proposal.number, value)
    assert study.history[0].end is Standing.FAILED
    assert study.history[0].failure


def test_what_the_machines_lost_is_tried_again_and_no_sampler_hears_of_it() -> None:
    calm, lossy = (Study.open(None, "s", a_plan("bayesian"), a_space()) for _ in range(2))
    for _ in range(7):
        proposal = lossy.ask()
        assert proposal is not None
        lossy.withdraw(proposal.number)
        again = lossy.ask()
        assert again is not None
        assert (again.values, again.configuration) == (proposal.values, proposal.configuration)
        lossy.tell(again.number, loss(again))
        other = calm.ask()
        assert other is not None
        assert other.values == again.values
        calm.tell(other.number, loss(other))


def test_values_that_the_machines_lose_each_time_are_left_at_last() -> None:
    study = Study.open(None, "s", a_plan("random", max_trials=1), a_space())
    asked = 0
    while (proposal := study.ask()) is not None:
        study.withdraw(proposal.number, "node lost")
        asked += 1
    assert asked == RETRIES
    assert study.finished
    assert study.best is None


def test_too_many_failures_end_the_search_and_keep_the_best() -> None:
    study = Study.open(None, "s", a_plan("random", max_trials=50, max_failures=4), a_space())
    asked = 0
    while (proposal := study.ask()) is not None:
        study.tell(proposal.number, loss(proposal) if asked == 0 else None)
        asked += 1
    assert asked == 6
    assert study.finished
    assert "5 trials failed" in study.verdict
    assert study.best is not None
    assert study.best.number == 0


def test_telling_twice_is_telling_once() -> None:
    study = Study.open(None, "s", a_plan("random"), a_space())
    study.ask()
    study.tell(0, 1.0)
    before = study.history
    study.tell(0, 2.0)
    study.withdraw(0)
    assert study.history == before


def test_what_runs_is_known_after_a_restart(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/s.db"
    study = Study.open(storage, "s", a_plan("bayesian"), a_space())
    asked = [study.ask(), study.ask()]
    assert list(Study.open(storage, "s", a_plan("bayesian"), a_space()).running) == asked


class Killed(Exception):
    """The process ended here."""


class MortalStorage:
    """A storage whose process is killed at its `last` write: before it, or just after it."""

    def __init__(self, real: InMemoryStorage, last: int, is_after: bool) -> None:
        self.real = real
        self.left = last
        self.is_after = is_after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)
        if not name.startswith(("create", "set")):
            return method

        def writing(*given: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.is_after:
                raise Killed
            found = method(*given, **named)
            if self.left == 0:
                raise Killed
            return found

        return writing


@pytest.mark.parametrize("algorithm", ["random", "hyperband"])
@pytest.mark.parametrize("is_after", [False, True])
def test_no_kill_loses_or_repeats_a_trial(algorithm: str, is_after: bool) -> None:
    """Jobs have names by their trial's number: one that runs already is found, and told once."""
    plan = a_plan(algorithm, max_trials=7)

    def lived(study: Study, jobs: dict[int, Proposal], ended: set[int]) -> None:
        """What a search does, with jobs that outlive it."""
        waiting = list(study.running)
        while True:
            while len(waiting) < 2 and (proposal := study.ask()) is not None:
                waiting.append(proposal)
            if not waiting:
                return
            one = waiting.pop(0)
            assert jobs.setdefault(one.number, one) == one
            study.tell(one.number, loss(one))
            assert one.number not in ended
            ended.add(one.number)

    calm = Study.open(None, "s", plan, a_space())
    lived(calm, {}, set())
    kills = 0
    while True:
        real = InMemoryStorage()
        jobs: dict[int, Proposal] = {}
        try:
            lived(Study(MortalStorage(real, kills + 2, is_after), "s", plan, a_space()), jobs, set())  # type: ignore[arg-type]
        except Killed:
            kills += 1
        else:
            break
        after = Study(real, "s", plan, a_space())
        lived(after, jobs, {one.number for one in after.history if one.is_told})
        assert after.finished
        assert [one.number for one in after.history] == list(range(len(after.history)))
        assert after.configurations == calm.configurations
        assert sorted(jobs) == [one.number for one in after.history]
    assert kills >= 20


def test_a_study_that_was_rebuilt_in_part_is_never_taken_for_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, real = a_plan("random"), InMemoryStorage()
    study = Study.open(None, "s", plan, a_space())
    led(study, random.Random(3), most=8)
    kills = 0
    while True:
        mortal = MortalStorage(real, kills + 1, False)
        monkeypatch.setattr("prefect_tao.searching.study.get_storage", lambda _: mortal)  # noqa: B023
        try:
            Study.rebuild("sqlite:///", "s", plan, a_space(), study.history)
        except Killed:
            kills += 1
        else:
            break
        after = Study(real, "s", plan, a_space())
        assert not after.history or not after.is_whole
    assert kills >= 12
    whole = Study(real, "s", plan, a_space())
    assert whole.is_whole
    assert [replace(one, notes={}) for one in whole.history] == [replace(one, notes={}) for one in study.history]


def test_none_of_200_lost_trials_reaches_the_sampler() -> None:
    study = Study.open(None, "s", a_plan("random", max_trials=100, max_failures=100), a_space())
    rng = random.Random(7)
    lost = 0
    while lost < 200:
        proposal = study.ask()
        assert proposal is not None
        study.withdraw(proposal.number, "preempted") if rng.random() < 0.97 else study.tell(proposal.number, 1.0)
        lost = sum(one.end is Standing.WITHDRAWN for one in study.history)
    told = [one for one in study.history if one.is_scored]
    view = seen(study.plan, study.space, study.slots).trials
    assert [one.values for one in view if one.state.name == "COMPLETE"] == [list(one.result or ()) for one in told]
    assert not [one for one in view if one.state.name == "FAIL" and one.user_attrs["is_avoided"]]


@pytest.mark.parametrize(
    "other",
    [lambda plan: replace(plan, seed=6), lambda plan: replace(plan, directions=("maximize",))],
)
def test_the_storage_of_another_search_is_refused(other: Callable[[SearchPlan], SearchPlan], tmp_path: Path) -> None:
    storage, plan = f"sqlite:///{tmp_path}/s.db", a_plan("bayesian")
    Study.open(storage, "s", plan, a_space())
    with pytest.raises(InvalidInput, match="another search"):
        Study.open(storage, "s", other(plan), a_space())


@pytest.mark.parametrize("storage", ["sqlite:////there/is/no/such/folder/s.db", "postgresql://127.0.0.1:1/none"])
def test_a_storage_that_gives_no_answer_is_named(storage: str) -> None:
    with pytest.raises(Unreachable, match="storage of the search"):
        Study.open(storage, "s", a_plan("bayesian"), a_space())


def test_a_grid_ends_when_it_is_exhausted() -> None:
    study = Study.open(None, "s", a_plan("grid", max_trials=None), a_space())
    asked = []
    while (proposal := study.ask()) is not None:
        asked.append(tuple(proposal.values.values()))
        study.tell(proposal.number, 1.0)
    assert len(asked) == len(set(asked)) == 27
    assert study.finished


@pytest.mark.parametrize("algorithm", ["nsga-ii", "motpe", "random"])
def test_several_metrics_have_a_front(algorithm: str) -> None:
    plan = a_plan(algorithm, metrics=("loss", "map"), directions=("minimize", "maximize"), max_trials=16)
    study = Study.open(None, "s", plan, a_space())
    while (proposal := study.ask()) is not None:
        study.tell(proposal.number, (loss(proposal), float(proposal.values["layers"])))
    losses = {one.number: one.result for one in study.history}
    front = {one.number for one in study.front}
    assert front
    for number, result in losses.items():
        assert result is not None
        beaten = any(
            other is not None and other != result and other[0] <= result[0] and other[1] >= result[1]
            for other in losses.values()
        )
        assert beaten == (number not in front)


def test_the_best_of_an_earlier_search_is_tried_first() -> None:
    earlier = Study.open(None, "s", a_plan("random", max_trials=12), a_space())
    while (proposal := earlier.ask()) is not None:
        earlier.tell(proposal.number, loss(proposal))
    best = earlier.leaders(3)
    assert [one.result for one in best] == sorted(one.result for one in earlier.history)[:3]
    gone = {"layers": 99}
    space = a_space().starting_with([one.values for one in best] + [gone])
    study = Study.open(None, "s", a_plan("bayesian"), space)
    asked = [study.ask() for _ in range(5)]
    values = [one.values for one in asked if one]
    assert values[0] == space.values(space.first)
    assert values[1:4] == [one.values for one in best if one.values != values[0]][:3]
    assert values[4] == {**values[0], "layers": 12}


def test_the_next_trial_promises_less_when_the_search_is_near_its_end() -> None:
    study = Study.open(None, "s", a_plan("bayesian", max_trials=40), a_space())
    gains = []
    assert study.advice() is None
    while (proposal := study.ask()) is not None:
        study.tell(proposal.number, loss(proposal))
        found = study.advice([60.0, 120.0, 90.0])
        gains += [found.gain] if found else []
    assert found is not None
    assert "better loss by" in str(found)
    assert "for 1 min 30 s" in str(found)
    assert 0 <= gains[-1] < max(gains[:5]) / 5


def test_a_gain_is_told_in_the_metric_s_own_measure() -> None:
    """Losses that lie close together above 0, and some far away: hardly anything is expected to fall below 0."""
    study = Study.open(None, "s", a_plan("bayesian", max_trials=12), a_space())
    best, gains = math.inf, []
    while (proposal := study.ask()) is not None:
        best = min(best, 0.1 + loss(proposal) ** 4)
        study.tell(proposal.number, 0.1 + loss(proposal) ** 4)
        found = study.advice()
        gains += [found.gain / best] if found else []
    assert len(gains) > 5
    assert max(gains) < 1.3
