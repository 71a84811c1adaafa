"""Whether a training goes through AutoML. The choice is shown, never made silently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect_tao.catalog.lookup import find_model
from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.finding import COMPUTE, Finding, Level
from prefect_tao.preflight.plans.search_settings import means
from prefect_tao.preflight.resolve.ask import Resolved

SEARCHED = ("train", "distill")
# A person who gives one of these has said what a search may spend.
BUDGET = ("max_trials", "max_concurrent", "max_gpu_hours", "max_cost", "yes")
HOW = "--max-trials 10 (or --max-gpu-hours, --max-cost, --max-concurrent; --yes for 20 trials)"


def is_search(catalog: Catalog, given: Mapping[str, Any]) -> bool:
    """Whether a launch becomes a search: its model has AutoML, it trains, and no parameter says otherwise."""
    if given.get("command") is not None or given.get("automl_policy", "on") == "off" or not given.get("model"):
        return False
    names = find_model(catalog, str(given["model"]))
    action = str(given.get("action"))
    return len(names) == 1 and _enabled(catalog, names[0], action) and not _blocked(catalog, names[0], action)


def has_budget(given: Mapping[str, Any]) -> bool:
    """Whether a person has said what a search may spend, by a parameter or by a setting of the existing tool."""
    settings = given.get("automl_settings") or {}
    return any(given.get(name) for name in BUDGET) or any(means(word) in BUDGET and settings[word] for word in settings)


def _enabled(catalog: Catalog, model: str, action: str) -> bool:
    entry = catalog.models.get(model)
    return entry is not None and entry.automl.enabled and action in entry.actions and action in SEARCHED


def _blocked(catalog: Catalog, model: str, action: str) -> str:
    """Why a search cannot run although the model has AutoML; empty where it can."""
    automl, entry = catalog.models[model].automl, catalog.models[model].actions[action]
    if not automl.runnable:
        return automl.blocked_reason or "its search space is not packaged"
    if not automl.parameters:
        return "none of its parameters can be searched"
    return "" if action == "train" or entry.full_schema else f"no {action} schema is packaged"


def automl_finding(catalog: Catalog, resolved: Resolved, given: Mapping[str, Any]) -> Finding | None:
    """What the policy means for this launch; None where AutoML has no say."""
    name, action = resolved.model, resolved.action
    if not _enabled(catalog, name, action):
        return None
    if given.get("automl_policy", "on") == "off":
        return _found(Level.OK, "automl_policy is off: this is one plain training")
    if reason := _blocked(catalog, name, action):
        return _found(Level.WARN, f"AutoML is enabled for {name}, but {reason}: this is one plain training")
    if has_budget(given):
        return _found(Level.OK, f"{action} of {name} goes through an AutoML search")
    return _found(
        Level.FAIL,
        f"{action} of {name} goes through an AutoML search, and it is not said what that may spend",
        f"give {HOW}, or --automl-policy off (automl_policy='off') for one plain training",
    )


def _found(level: Level, message: str, remedy: str = "") -> Finding:
    return Finding(level=level, gate=COMPUTE, subject="automl", message=message, remedy=remedy)
