"""The Gaussian process that proposes the points of a search."""

from __future__ import annotations

import math

import pytest

optuna = pytest.importorskip("optuna", reason="the automl extra is not installed: make setup installs it")
from optuna.distributions import (  # noqa: E402
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState  # noqa: E402

from prefect_tao.searching.bayesian import STARTS, BayesianSampler  # noqa: E402

SPACE: dict[str, BaseDistribution] = {
    "rate": FloatDistribution(1e-6, 1.0, log=True),
    "layers": IntDistribution(1, 12),
    "kind": CategoricalDistribution(["a", "b", "c"]),
}
FIRST = {"rate": 1e-5, "layers": 2, "kind": "c"}


def loss(params: dict[str, object]) -> float:
    away = (math.log10(float(params["rate"])) + 3) ** 2 / 9 + (int(params["layers"]) - 8) ** 2 / 50
    return away + {"a": 0.0, "b": 0.2, "c": 0.4}[str(params["kind"])]


def searched(direction: str, seed: int = 1, trials: int = 24) -> optuna.Study:
    study = optuna.create_study(direction=direction)
    for _ in range(trials):
        study.sampler = BayesianSampler(SPACE, seed, FIRST)
        trial = study.ask(SPACE)
        study.tell(trial, loss(trial.params) if direction == "minimize" else -loss(trial.params))
    return study


def test_it_begins_with_the_template_and_points_all_over() -> None:
    study = searched("minimize", trials=STARTS + 1)
    assert study.trials[0].params == FIRST
    assert len({one.params["layers"] for one in study.trials}) >= 3


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_it_finds_what_is_good_in_either_direction(direction: str) -> None:
    best = searched(direction).best_trial.params
    assert best["kind"] == "a"
    assert 1e-4 < best["rate"] < 1e-2
    assert abs(best["layers"] - 8) <= 2


def test_trials_that_run_are_not_proposed_again() -> None:
    study = searched("minimize", trials=10)
    asked = []
    for _ in range(4):
        study.sampler = BayesianSampler(SPACE, 1, FIRST)
        asked.append(study.ask(SPACE).params)
    assert len({str(one) for one in asked}) == 4


def test_what_fails_is_kept_away_from_and_never_scored() -> None:
    """Everything above a rate diverges, and what is good lies just below it."""
    study = optuna.create_study()
    failed = 0
    for _ in range(30):
        study.sampler = BayesianSampler(SPACE, 3, FIRST)
        trial = study.ask(SPACE)
        if trial.params["rate"] > 5e-3:
            failed += 1
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, loss(trial.params))
    assert failed < 15
    assert study.best_value < 0.1


def test_an_infrastructure_failure_says_nothing_about_its_point() -> None:
    def proposal(cause: dict[str, bool]) -> dict[str, object]:
        study = searched("minimize", trials=8)
        trial = study.ask(SPACE)
        for key, value in cause.items():
            trial.set_user_attr(key, value)
        study.tell(trial, state=TrialState.FAIL)
        study.sampler = BayesianSampler(SPACE, 1, FIRST)
        return dict(study.ask(SPACE).params)

    assert proposal({"is_avoided": False}) != proposal({})


def test_values_that_are_all_alike_or_far_off_are_no_trouble() -> None:
    for values in ([1.0] * 8, [1e30, 1.0, 2.0, 1e-9, 5.0, 3.0, 1e12, 2.5]):
        study = optuna.create_study()
        for value in values:
            study.sampler = BayesianSampler(SPACE, 5, FIRST)
            study.tell(study.ask(SPACE), value)
        study.sampler = BayesianSampler(SPACE, 5, FIRST)
        assert study.ask(SPACE).params.keys() == SPACE.keys()
