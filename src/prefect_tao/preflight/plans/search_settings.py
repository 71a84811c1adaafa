"""The settings of a search in a person's words: our own, and those of nvidia-tao-automl, which mean the same. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.launch.parameters.declared import SearchParameters
from prefect_tao.launch.parameters.derived import checked, completed, parameters
from prefect_tao.launch.parameters.search_declared import SearchingParameters
from prefect_tao.preflight.resolve.problems import did_you_mean, nearest

# The existing tool's words for parameters of ours.
ALIASES: Mapping[str, str] = {
    "automl_algorithm": "algorithm",
    "automl_max_recommendations": "max_trials",
    "num_recommendations": "max_trials",
    "automl_max_trials": "max_trials",
    "automl_max_experiments": "max_trials",
    "automl_max_concurrent": "max_concurrent",
    "automl_max_epochs": "max_epochs",
    "automl_hyperparameters": "parameters",
    "run_baseline": "baseline",
    "run_final_evaluation": "final_evaluation",
}
# What single algorithms take: the existing tool's word, and that of the plan of a study.
OPTIONS: Mapping[str, str] = {
    "automl_reduction_factor": "eta",
    "automl_min_early_stop_epochs": "min_epochs",
    "automl_population_size": "population",
    "automl_max_generations": "generations",
    "automl_eval_interval": "interval",
    "automl_perturbation_factor": "perturbation",
    "automl_min_points_in_model": "min_points",
    "automl_mutation_factor": "mutation",
    "automl_crossover_prob": "crossover",
    "automl_early_stop": "early_stop",
}
# What the existing tool needs for its own way of working, and nothing here does.
UNUSED = (
    "session_id",
    "experiment_id",
    "epoch_multiplier",
    "automl_kde_samples",
    "automl_top_n_percent",
    "automl_min_top_configs",
    "automl_early_stop_threshold",
    "automl_checkpoint_retention_strategy",
    "baseline_metric",
    "baseline_record_path",
    "final_evaluation_metric",
    "final_evaluation_record_path",
    "reuse_best_metric_for_final_evaluation",
    "evaluation_records_dir",
    "train_sample_count",
    "allow_unsafe_effective_batch",
)
DELETES = "automl_delete_intermediate_ckpt"
_LANGUAGE = ("llm_", "hybrid_", "research_program")
_MANY = ("multi_objective", "include_latency", "latency_", "metric_weight", "metric_scale")


def unused(given: Mapping[str, Any]) -> list[str]:
    """The settings that are taken and have no effect here."""
    return [word for word in given.get("automl_settings") or {} if word in UNUSED]


def means(word: str) -> str:
    """The parameter or option that a setting is another word for."""
    return ALIASES.get(word) or OPTIONS.get(word) or word


def settled(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """All parameters of a search, with what `automl_settings` says of them, and the options of its algorithm.

    Raises InvalidInput for an unknown setting, with the nearest one, and for one that is given twice.
    """
    plain = {key: value for key, value in given.items() if value is not None and key != "automl_settings"}
    options: dict[str, Any] = {}
    defaults = {name: one.default for name, one in parameters(SearchParameters).items()}
    for word, value in (given.get("automl_settings") or {}).items():
        if word in UNUSED:
            continue
        name, meant = _meant(word, value)
        if name in OPTIONS.values():
            options[name] = meant
        elif plain.get(name, defaults[name]) in (defaults[name], meant):
            plain[name] = meant
        else:
            raise InvalidInput(f"{name} is given as {plain[name]} and, with {word}, as {meant}", "give it once")
    fitting = {name: value for name, value in plain.items() if name in defaults}
    return completed(SearchParameters, checked(SearchParameters, fitting)), options


def _meant(word: str, value: Any) -> tuple[str, Any]:
    """The parameter or option that a setting means, and its value. Raises InvalidInput."""
    name = means(word)
    if word == DELETES:
        return "keep_checkpoints", "best" if value else "all"
    if name in parameters(SearchingParameters) or name in OPTIONS.values():
        return name, value
    if word.startswith(_LANGUAGE):
        remedy = "leave it out, and use bayesian, which needs no language model"
        cause = f"automl_settings: {word} is for searches led by a language model, which are not offered"
        raise InvalidInput(cause, remedy)
    if word.startswith(_MANY):
        remedy = "give objectives, a list of {metric, direction}, and an algorithm that takes many, such as nsga-ii"
        raise InvalidInput(f"automl_settings: {word} weighs several metrics into one, which hides what each is", remedy)
    known = [*parameters(SearchingParameters), *ALIASES, *OPTIONS, *OPTIONS.values(), DELETES, *UNUSED]
    remedy = did_you_mean(nearest(word, known, 1), f"there are {', '.join(sorted({*ALIASES, *OPTIONS}))}")
    raise InvalidInput(f"automl_settings: there is no setting {word!r}", remedy)
