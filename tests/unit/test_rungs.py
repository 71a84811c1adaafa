"""Budgets in epochs: who goes on, from which checkpoint, and when few epochs tell nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

optuna = pytest.importorskip("optuna", reason="the automl extra is not installed: make setup installs it")

from test_study import a_space  # noqa: E402

from prefect_tao.jobs.errors import InvalidInput  # noqa: E402
from prefect_tao.searching.fidelity import PROBES  # noqa: E402
from prefect_tao.searching.hyperband import Hyperband  # noqa: E402
from prefect_tao.searching.search_plan import SearchPlan  # noqa: E402
from prefect_tao.searching.study import Proposal, Study  # noqa: E402
from prefect_tao.searching.trial_record import Standing  # noqa: E402

Value = Callable[[Proposal], float | None]


def honest(proposal: Proposal) -> float:
    """Few epochs tell what many would."""
    return float(proposal.values["layers"]) + proposal.values["lr"] + 5 / (proposal.epochs or 1)


def misleading(proposal: Proposal) -> float:
    """What looks good after a few epochs is bad in the end."""
    return honest(proposal) if (proposal.epochs or 0) >= 27 else -honest(proposal)


def led(value: Value = honest, at_once: int = 4, **settings: Any) -> Study:
    plan = SearchPlan(**{"algorithm": "asha", "max_epochs": 27, "max_trials": 27, "seed": 1, **settings})
    study, running = Study.open(None, "rungs", plan, a_space()), []
    while True:
        while len(running) < at_once and (proposal := study.ask()) is not None:
            running.append(proposal)
        if not running:
            return study
        ended = running.pop(0)
        study.tell(ended.number, value(ended))


@pytest.mark.parametrize("algorithm", ["asha", "hyperband", "bohb", "dehb", "hyperband_es"])
def test_a_promotion_goes_on_from_its_own_checkpoint_and_pays_for_new_epochs_only(algorithm: str) -> None:
    study = led(algorithm=algorithm)
    history = {one.number: one for one in study.history}
    promoted = [one for one in study.history if one.parent is not None]
    assert promoted
    for one in promoted:
        assert one.parent is not None
        parent = history[one.parent]
        assert (parent.values, parent.configuration, parent.rung) == (one.values, one.configuration, one.rung - 1)
        assert parent.end is Standing.PAUSED
        assert (parent.epochs or 0) < (one.epochs or 0)
    assert study.finished
    assert study.best is not None
    assert study.best.epochs == 27


def test_paused_trials_are_pruned_with_their_value_and_the_top_ones_complete() -> None:
    study = led()
    trials = study._storage.get_all_trials(study._id)
    for one, record in zip(trials, study.history, strict=True):
        assert one.state.name == ("COMPLETE" if record.rung == 3 else "PRUNED")
        assert one.values == list(record.result or ())


def test_few_of_those_with_a_low_rank_go_on() -> None:
    study = led()
    rungs = Counter(one.rung for one in study.history)
    assert rungs[0] == 27
    assert rungs[1] - PROBES <= (27 - PROBES) // 3
    assert PROBES <= rungs[3] <= PROBES + 2
    assert study.fidelity
    assert all("decide who goes on" in line for line in study.fidelity)


@pytest.mark.parametrize("algorithm", ["asha", "hyperband"])
def test_where_few_epochs_do_not_tell_trials_run_in_full_and_the_report_says_so(algorithm: str) -> None:
    study = led(misleading, algorithm=algorithm, max_trials=20)
    late = [one for one in study.history if one.number > 30]
    assert late
    assert all(one.epochs == 27 and one.parent is None for one in late)
    assert any("run in full" in line for line in study.fidelity)
    assert study.best is not None
    assert study.best.epochs == 27


@pytest.mark.parametrize("algorithm", ["asha", "hyperband", "bohb", "dehb", "pbt", "hyperband_es"])
def test_a_crashed_trial_is_never_promoted_nor_copied(algorithm: str) -> None:
    """As a result of 0.0 it would be the best of a minimised metric."""

    def value(proposal: Proposal) -> float | None:
        return None if proposal.number % 4 == 1 else 10 + honest(proposal)

    study = led(value, algorithm=algorithm, max_failures=100, population=6, generations=4, interval=2)
    failed = {one.number for one in study.history if one.end is Standing.FAILED}
    assert failed
    assert not failed & {one.parent for one in study.history}
    assert study.finished
    assert study.best is not None


def test_brackets_have_the_sizes_that_are_published() -> None:
    """And the one in which every trial runs in full is not left out: with it ranks are measured."""
    schedule = Hyperband((1, 3, 9, 27), 3, None)
    assert [schedule.size(start) for start in range(4)] == [27, 12, 6, 4]
    counts = Counter((one.rung, one.parent is None) for one in led(algorithm="hyperband", max_trials=None).history)
    begun = {rung: count for (rung, is_new), count in counts.items() if is_new}
    assert begun == {0: 4 + 27, 1: 12, 2: 6}
    assert sum(count for (rung, _), count in counts.items() if rung == 3) == 4 + 1 + 1 + 2


def test_no_place_stays_empty_while_a_rung_waits() -> None:
    plan = SearchPlan("hyperband", max_epochs=27, seed=1)
    study = Study.open(None, "rungs", plan, a_space())
    asked = [study.ask() for _ in range(40)]
    assert all(asked)


def test_a_model_is_of_the_highest_rung_with_enough_results_and_of_no_mixture() -> None:
    from prefect_tao.searching.suggesting import seen

    study = led(algorithm="bohb", max_trials=60, min_points=6)
    slots = study.slots
    view = seen(study.plan, study.space, slots)
    shown = [one for one in view.trials if one.state.name == "COMPLETE"]
    top = {slot.origin: slot.at(3) for slot in slots}
    assert len(view.trials) == len(slots)
    assert sorted(one.values for one in shown) == sorted(list(one.result or ()) for one in top.values() if one)


def test_the_gaussian_process_sees_what_low_values_are_worth_at_the_top() -> None:
    """Here few epochs show 5 / epochs too much."""
    from prefect_tao.searching.suggesting import at_the_top

    study = led()
    for origin, (value,) in at_the_top(study.slots, 3).items():
        one = next(record for record in study.history if record.number == origin)
        assert value == pytest.approx(honest(Proposal(0, 0, one.values, 3, 27, None)), abs=1e-6)
    assert at_the_top(study.slots[:2], 3) == {}


def test_what_is_seen_of_a_misleading_rung_is_nothing() -> None:
    from prefect_tao.searching.suggesting import seen

    study = led(misleading, max_trials=20)
    view = seen(study.plan, study.space, study.slots)
    shown = [one.values for one in view.trials if one.state.name == "COMPLETE"]
    assert sorted(shown) == sorted(list(one.result or ()) for one in study.history if one.epochs == 27)


def test_members_of_a_population_that_are_behind_go_on_from_a_better_one() -> None:
    study = led(algorithm="pbt", population=8, generations=4, interval=3)
    history = {one.number: one for one in study.history}
    assert len(history) == 8 * 4
    assert {one.epochs for one in study.history} == {3, 6, 9, 12}
    copied = [one for one in study.history if one.parent is not None and history[one.parent].origin != one.origin]
    assert copied
    for one in copied:
        behind = next(other for other in study.history if other.origin == one.origin and other.rung == one.rung - 1)
        better = history[one.parent or 0]
        assert (better.result or ())[0] < (behind.result or ())[0]
        assert one.values != better.values


def test_a_population_tries_no_more_values_and_trains_no_longer_than_it_may() -> None:
    study = led(algorithm="pbt", max_trials=6, max_epochs=12)
    assert study.configurations == 6
    assert max(one.epochs or 0 for one in study.history) == 12
    assert len(study.history) <= study.schedule.most_jobs
    assert study.finished
    crashing = led(lambda one: None if one.values["layers"] > 6 else honest(one), algorithm="pbt", max_trials=6)
    assert crashing.configurations == 6
    assert crashing.finished


def test_generations_share_the_epochs_of_a_training() -> None:
    def stages(**more: int) -> tuple[int, ...]:
        return SearchPlan.of({"algorithm": "pbt", **more}).stages

    assert stages(max_epochs=10) == tuple(range(1, 11))
    assert stages(max_epochs=9, interval=2) == (2, 4, 6, 8, 9)
    assert stages(max_epochs=9, generations=3) == (3, 6, 9)
    assert stages(generations=3, interval=4) == (4, 8, 12)
    assert len(stages()) == 20


def test_a_trial_that_came_to_its_end_before_it_was_stopped_counts_in_full() -> None:
    plan = SearchPlan("random", max_trials=7, max_epochs=5, early_stop=True, seed=2)
    study = Study.open(None, "early", plan, a_space())
    for turn in range(7):
        proposal = study.ask()
        assert proposal is not None
        wanted = [study.report(proposal.number, epoch, float(turn) + 1 / epoch) for epoch in range(1, 6)]
        study.tell(proposal.number, -1.0 if turn == 6 else float(turn), in_full=True)
    assert not wanted[-1]
    assert study.history[6].end is Standing.COMPLETE
    assert study.best is study.history[6]


def test_a_trial_that_stays_behind_stops_while_it_runs() -> None:
    plan = SearchPlan("random", max_trials=12, max_epochs=10, early_stop=True, seed=2)
    study = Study.open(None, "early", plan, a_space())
    seen_epochs = {}
    for turn in range(12):
        proposal = study.ask()
        assert proposal is not None
        quality = 100.0 if turn >= 8 else float(turn)
        for epoch in range(1, 11):
            seen_epochs[turn] = epoch
            if not study.report(proposal.number, epoch, quality + 10 / epoch):
                break
        study.tell(proposal.number, quality + 10 / seen_epochs[turn])
    assert all(seen_epochs[turn] == 10 for turn in range(5))
    assert all(seen_epochs[turn] == 3 for turn in range(8, 12))
    assert [one.end for one in study.history][8:] == [Standing.STOPPED] * 4
    assert study.best is not None
    assert study.best.number == 0


def test_no_trial_is_stopped_where_early_values_do_not_tell_the_end() -> None:
    plan = SearchPlan("random", max_trials=12, max_epochs=10, early_stop=True, seed=2)
    study = Study.open(None, "early", plan, a_space())
    for turn in range(12):
        proposal = study.ask()
        assert proposal is not None
        assert all(study.report(proposal.number, epoch, float(turn)) for epoch in range(1, 11))
        study.tell(proposal.number, float(-turn))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": "asha", "max_epochs": 2}, "a second rung begins at 3"),
        ({"algorithm": "hyperband", "max_trials": 2}, "less than one rung"),
        ({"algorithm": "bohb", "min_epochs": 10, "max_epochs": 20}, "a second rung begins at 30"),
        ({"algorithm": "ahsa"}, "did you mean asha"),
        ({"algorithm": "pbt", "max_trials": 1}, "no population"),
        ({"max_trails": 3}, "did you mean max_trials"),
        ({"max_trials": 0}, "of 1 or more"),
        ({"max_trials": True}, "of 1 or more"),
        ({"directions": ["minimise"]}, "did you mean minimize"),
        ({"metrics": ["loss", "map"]}, "give a direction for each"),
        ({"metrics": ["loss", "map"], "directions": ["minimize", "maximize"]}, "use one of tpe"),
        ({"algorithm": "llm"}, "use bayesian"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        SearchPlan.of(settings)


def test_rungs_multiply_and_the_last_one_is_all() -> None:
    assert SearchPlan.of({"algorithm": "hes", "max_epochs": 16, "eta": 2, "max_trials": None}).rungs == (1, 2, 4, 8, 16)
    assert SearchPlan.of({"algorithm": "h", "max_epochs": 10}).rungs == (1, 3, 10)


def test_choices_evolve_as_numbers_do() -> None:
    study = led(algorithm="dehb", max_trials=40)
    late = [one.values["kind"] for one in study.history if one.number > 40 and one.parent is None]
    assert len(set(late)) > 1


def test_curves_stop_trials_of_a_bracket() -> None:
    """Which needs what is reported while a trial runs, and acts only where others have shown how curves end."""
    plan = SearchPlan("hyperband_es", max_epochs=9, seed=2)
    study = Study.open(None, "early", plan, a_space())
    stopped = []
    while (proposal := study.ask()) is not None:
        quality, last = honest(proposal), 0
        for epoch in range(1, (proposal.epochs or 0) + 1):
            last = epoch
            if not study.report(proposal.number, epoch, quality + 1 / epoch):
                stopped.append(proposal.number)
                break
        study.tell(proposal.number, quality + 1 / last)
    assert stopped
    assert {one.number for one in study.history if one.end is Standing.STOPPED} == set(stopped)
    assert study.finished
    assert not set(stopped) & {one.parent for one in study.history}
