"""A search before it begins: what is searched, what it is judged by, what it may spend, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna", reason="the automl extra is not installed: make setup installs it")

from prefect_tao.catalog.loading import load_catalog  # noqa: E402
from prefect_tao.jobs.errors import InvalidInput  # noqa: E402
from prefect_tao.jobs.search_board import SearchFolder, earlier_best  # noqa: E402
from prefect_tao.jobs.search_outcome import SearchOutcome, TrialOutcome  # noqa: E402
from prefect_tao.preflight.plans.chain_plan import plan_chain  # noqa: E402
from prefect_tao.preflight.plans.search_words import first_batch, review_lines  # noqa: E402
from prefect_tao.preflight.plans.searches import (  # noqa: E402
    PlannedSearch,
    best_spec,
    plan_search,
    resolve_trial,
)
from prefect_tao.preflight.plans.step import with_winners  # noqa: E402
from prefect_tao.preflight.resolve.policy import is_search  # noqa: E402
from prefect_tao.preflight.resolve.resolving import resolve_ask  # noqa: E402
from prefect_tao.preflight.resolve.translating import ask_from  # noqa: E402

CATALOG = load_catalog()
TINY = {"model": "tiny", "action": "train"}
DINO = {"model": "dino", "action": "train", "train_root": ["/data/t"], "eval_root": ["/data/e"]}
COMMAND = {
    "command": "train --config {config_path}",
    "specs": {"lr": 0.1, "num_epochs": 9},
    "custom_param_ranges": {"lr": {"valid_min": 0.001, "valid_max": 1.0}},
    "metric": "loss",
    "direction": "minimize",
}


def planned(given: dict[str, Any], **more: Any) -> PlannedSearch:
    return plan_search({**given, **more}, "process", CATALOG)


def refused(given: dict[str, Any], **more: Any) -> str:
    with pytest.raises(InvalidInput) as error:
        planned(given, **more)
    return str(error.value)


# -- what is searched --------------------------------------------------------------------------------------------------


def test_the_catalog_says_what_is_searched_and_what_it_is_judged_by() -> None:
    search = planned(DINO, max_trials=8)
    assert search.space.axes["train.optim.lr"] == optuna.distributions.FloatDistribution(2e-6, 1.0, log=True)
    assert [(one.metric, one.direction) for one in search.objectives] == [("test_mAP50", "maximize")]
    assert (search.epoch_key, search.resume_key) == ("train.num_epochs", "train.resume_training_checkpoint_path")


def test_a_person_chooses_parameters_and_ranges_by_short_words() -> None:
    search = planned(TINY, parameters=["learning_rate"], custom_param_ranges={"learning_rate": {"valid_max": 0.5}})
    assert list(search.space.axes) == ["train.optim.lr"]
    assert search.space.axes["train.optim.lr"].high == 0.5


def test_a_key_that_the_catalog_does_not_list_is_searched_with_a_range() -> None:
    search = planned(TINY, parameters=["train.seed"], custom_param_ranges={"train.seed": {"valid_options": [1, 2]}})
    assert search.space.axes["train.seed"].choices == (1, 2)
    assert "train.sede is not a parameter" in refused(TINY, parameters=["train.sede"])


def test_a_command_is_searched_over_the_ranges_it_is_given() -> None:
    search = planned(COMMAND)
    assert list(search.space.axes) == ["lr"]
    assert search.epoch_key == "num_epochs"
    assert first_batch(search)[0] == (0, "lr=0.1")


def test_the_template_is_tried_first_and_the_same_seed_tries_the_same() -> None:
    assert first_batch(planned(TINY))[0][1] == "lr=0.1, batch_size=16, hidden=24"
    assert first_batch(planned(TINY)) == first_batch(planned(TINY))
    assert first_batch(planned(TINY)) != first_batch(planned(TINY, seed=1))


def test_what_a_trial_varies_stands_for_what_all_share_also_by_its_short_word() -> None:
    search = planned(TINY, overrides={"num_epochs": 2, "learning_rate": 0.2})
    assert first_batch(search)[0][1] == "lr=0.2, batch_size=16, hidden=24"
    trial = resolve_trial(search, {"train.num_epochs": 1, "train.optim.lr": 0.3}, CATALOG)
    assert (trial.spec["train"]["num_epochs"], trial.spec["train"]["optim"]["lr"]) == (1, 0.3)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_the_settings_of_the_existing_tool_mean_the_same_here() -> None:
    old = {"algorithm": "h", "automl_max_recommendations": 9, "automl_max_epochs": 9, "automl_reduction_factor": 3}
    search = planned(TINY, automl_settings={**old, "session_id": "x", "automl_delete_intermediate_ckpt": False})
    assert (search.plan.algorithm, search.plan.max_trials, search.plan.rungs) == ("hyperband", 9, (1, 3, 9))
    assert search.given["keep_checkpoints"] == "all"
    told = [one.message for one in search.base.findings if one.subject == "automl_settings"]
    assert len(told) == 1
    assert "session_id has no effect" in told[0]
    assert planned(TINY, automl_settings={"num_recommendations": 7}).budget.trials == 7
    epochs = {"automl_max_epochs": 8, "automl_max_generations": 4}
    assert planned(TINY, algorithm="pbt", automl_settings=epochs).plan.stages == (2, 4, 6, 8)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"algorithm": "bayesain"}, "did you mean bayesian?"),
        ({"algorithm": "llm"}, "use bayesian, which needs no language model"),
        ({"automl_settings": {"automl_max_epoch": 3}}, "did you mean automl_max_epochs?"),
        ({"automl_settings": {"llm_endpoint": "https://x"}}, "language model"),
        ({"max_trials": 5, "automl_settings": {"automl_max_recommendations": 6}}, "give it once"),
        ({"automl_settings": {"automl_max_recommendations": "many"}}, "expected a whole number"),
        ({"parameters": ["learning_rat"]}, "did you mean learning_rate?"),
        (
            {"custom_param_ranges": {"train.batch_size": {"valid_min": 0}}},
            "the range of train.batch_size: 0; expected 1",
        ),
        ({"custom_param_ranges": {"train.optim.lt": {"valid_min": 0}}}, "did you mean train.optim.lr"),
        ({"custom_param_ranges": {"learning_rate": {"valid_mni": 0}}}, "did you mean valid_min?"),
        ({"custom_param_ranges": {"learning_rate": {"valid_min": 1.0, "valid_max": 0.1}}}, "nothing to search between"),
        ({"metric": "speed"}, "--direction minimize"),
        ({"metric": "sentiment"}, "its name does not prove it"),  # which has "time" in it
        ({"automl_settings": {"multi_objective": True}}, "give objectives"),
        ({"objectives": [{"metric": "val_loss", "weight": 2}]}, "no weight"),
        ({"overrides": {"results_dir": "/data/out"}}, "all trials would write to /data/out"),
        ({"algorithm": "asha", "max_epochs": 2}, "too few"),
        ({"algorithm": "asha", "max_trials": 2}, "less than one rung"),
        ({"objectives": [{"metric": "val_loss"}, {"metric": "val_accuracy", "direction": "maximize"}]}, "use one of"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_what_to_do(given: dict[str, Any], told: str) -> None:
    assert told in refused(TINY, **given)


def test_a_search_over_nothing_is_refused() -> None:
    nothing = {key: value for key, value in COMMAND.items() if key != "custom_param_ranges"}
    assert "there is nothing to search" in refused(nothing)
    assert "trials are judged by is not known" in refused({**COMMAND, "metric": None})


def test_more_trials_at_once_than_the_target_takes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="takes 2 jobs at once"):
        plan_search({**TINY, "max_concurrent": 3}, "process", CATALOG, at_most=2)
    assert plan_search(TINY, "process", CATALOG, at_most=2).budget.concurrent == 2


def test_several_metrics_are_looked_for_together() -> None:
    both = [{"metric": "val_loss"}, {"metric": "val_accuracy", "direction": "maximize"}]
    search = planned(TINY, algorithm="nsga2", objectives=both)
    assert search.plan.directions == ("minimize", "maximize")


def test_a_budget_of_money_needs_a_price_of_whoever_knows_one() -> None:
    search = planned(DINO, max_cost=10.0, gpus=2)
    with pytest.raises(InvalidInput, match="what a GPU costs is not known"):
        search.at_price(None)
    assert search.at_price(2.0).most_gpu_hours() == 5.0
    said = planned(DINO, max_cost=10.0, gpus=2, gpu_hour_price=4.0)
    assert said.at_price(2.0).budget.price == 4.0  # a person's word counts most


def test_trials_that_are_evaluated_are_judged_by_what_an_evaluation_reports() -> None:
    assert [one.metric for one in planned(TINY).objectives] == ["val_loss"]
    assert [one.metric for one in planned(TINY, evaluate_trials=True).objectives] == ["test_accuracy"]
    assert "a command has no evaluation of its own" in refused(COMMAND, evaluate_trials=True)


# -- what it shows -----------------------------------------------------------------------------------------------------


def test_the_review_names_algorithm_budget_ranges_first_batch_and_the_most_it_may_use() -> None:
    more = {"max_trials": 10, "gpus": 2, "time_limit": "3h", "gpu_hour_price": 2.5}
    text = "\n".join(review_lines(planned({**DINO, **more})))
    for part in ("algorithm: bayesian", "test_mAP50 (maximize)", "at most 10 trials, 4 at once"):
        assert part in text
    assert "GPU hours: at most 60, 150 in money" in text
    assert "train.optim.lr: 2e-06 to 1, log scale" in text
    assert "  0: horizontal_flip_prob=0.5" in text
    in_rungs = {"algorithm": "hyperband", "max_epochs": 9, "gpus": 1, "time_limit": "1h"}
    assert planned(DINO, **in_rungs).most_gpu_hours() == 9 * 3 + 5 * 2 + 3
    assert planned(DINO, **in_rungs, max_trials=4).most_gpu_hours() == 4 * 3
    population = {**in_rungs, "algorithm": "pbt", "max_trials": 4}
    assert planned(DINO, **population).most_gpu_hours() == 4 * 9
    unbounded = "\n".join(review_lines(planned(DINO, gpus=1)))
    assert "not bounded; give --time-limit or --max-gpu-hours" in unbounded


def test_the_best_spec_is_what_a_person_would_write_without_its_length() -> None:
    search = planned(TINY, overrides={"num_epochs": 9, "dataset.samples": 100})
    found = best_spec(search, {"train.optim.lr": 0.2, "train.num_epochs": 3})
    assert found == {"dataset": {"samples": 100}, "train": {"optim": {"lr": 0.2}}}


# -- routing -----------------------------------------------------------------------------------------------------------


def found(**given: Any) -> Any:
    resolved = resolve_ask(ask_from({**DINO, **given}), CATALOG)
    return next((one for one in resolved.findings if one.subject == "automl"), None)


def test_a_training_goes_through_a_search_unless_somebody_says_otherwise() -> None:
    assert is_search(CATALOG, DINO)
    assert not is_search(CATALOG, {**DINO, "automl_policy": "off"})
    assert not is_search(CATALOG, {**DINO, "action": "evaluate"})
    assert not is_search(CATALOG, TINY)  # the quickstart trains once


def test_what_a_routed_search_may_spend_is_said_by_a_person() -> None:
    assert found().level == "fail"
    assert "--max-trials 10" in found().remedy
    old = {"automl_settings": {"automl_max_recommendations": 3}}
    for budget in ({"max_trials": 3}, {"max_gpu_hours": 2.0}, {"max_concurrent": 2}, {"yes": True}, old):
        assert found(**budget).level == "ok"
    assert found(automl_settings={"algorithm": "tpe"}).level == "fail"
    assert "one plain training" in found(automl_policy="off").message


def test_a_model_without_a_schema_is_trained_plainly_with_the_reason() -> None:
    blocked = CATALOG.models["dino"].automl.model_copy(
        update={"runnable": False, "blocked_reason": "no train schema is packaged"}
    )
    model = CATALOG.models["dino"].model_copy(update={"automl": blocked})
    catalog = CATALOG.model_copy(update={"models": {**CATALOG.models, "dino": model}})
    assert not is_search(catalog, DINO)
    resolved = resolve_ask(ask_from(DINO), catalog)
    told = next(one for one in resolved.findings if one.subject == "automl")
    assert told.message == "AutoML is enabled for dino, but no train schema is packaged: this is one plain training"


def test_the_policy_and_the_budget_never_enter_a_spec() -> None:
    resolved = resolve_ask(ask_from({**DINO, "max_trials": 3, "yes": True}), CATALOG)
    assert not {"automl_policy", "max_trials", "yes"} & set(str(resolved.spec).replace("'", " ").split())


def test_a_step_of_a_chain_is_a_search_when_it_is_routed_or_asked_for() -> None:
    search, evaluate = plan_chain(
        [{"name": "search", "kind": "automl", "action": "train", "max_trials": 4}, {"action": "evaluate"}], TINY
    )
    assert search.searches
    assert search.title == "AutoML search over tiny train"
    assert not evaluate.searches
    assert evaluate.takes == {"evaluate.checkpoint": ("search",)}
    (routed,) = plan_chain([{"action": "train"}], {**DINO, "max_trials": 5})
    assert routed.searches
    with pytest.raises(InvalidInput, match="there is no kind 'search'"):
        plan_chain([{"kind": "search", "action": "train"}], TINY)
    with pytest.raises(InvalidInput, match="algorithm is for a search"):
        plan_chain([{"action": "train", "algorithm": "tpe"}], TINY)


def test_the_structure_that_a_search_has_found_goes_with_its_weights() -> None:
    steps = plan_chain([{"action": "train"}, {"action": "evaluate"}], {**DINO, "max_trials": 5})
    found = {"train": {"model.num_queries": 120, "train.optim.lr": 0.1}}
    assert with_winners(steps[1], found, CATALOG).given["overrides"] == {"model.num_queries": 120}
    assert with_winners(steps[1], {}, CATALOG) is steps[1]


def test_a_search_begins_with_the_best_of_an_earlier_one(home: Path) -> None:
    search = planned(TINY, parameters=["learning_rate"])
    point = {"name": "t", "label": "", "overrides": {"train.optim.lr": 0.7}, "number": 0, "configuration": 0}
    best = TrialOutcome.model_validate({**point, "state": "Complete", "metrics": {"val_loss": 0.1}})
    SearchFolder("earlier").write(SearchOutcome(points=(best,), metric="val_loss", direction="minimize"))
    assert first_batch(search.beginning_with(earlier_best("earlier")))[0] == (0, "lr=0.7")
    with pytest.raises(InvalidInput, match="varied other parameters"):
        planned(TINY).beginning_with(earlier_best("earlier"))
    with pytest.raises(InvalidInput, match="there is no search other"):
        earlier_best("other")
