"""Ready-made chains: the steps that people take again and again, by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect_tao.jobs.errors import InvalidInput

CONVERT = "dataset_convert"
RECIPES: Mapping[str, tuple[dict[str, Any], ...]] = {
    "deploy": tuple({"action": word} for word in ("train", "evaluate", "export", "gen_trt_engine", "trt_evaluate")),
    # A training does not say that it needs converted data, so that is said here.
    "convert": (
        {"action": CONVERT},
        {"action": "train", "after": [CONVERT]},
        {"action": "evaluate", "after": [CONVERT]},
    ),
    "prune": tuple({"action": word} for word in ("train", "prune", "retrain", "evaluate")),
    "quantize": tuple({"action": word} for word in ("train", "quantize", "evaluate")),
}


def recipe_steps(recipe: str) -> list[dict[str, Any]]:
    """The steps of a ready-made chain. Raises InvalidInput for a name that is none."""
    if recipe not in RECIPES:
        raise InvalidInput(f"there is no recipe {recipe!r}", f"choose one of {', '.join(RECIPES)}")
    return [dict(step) for step in RECIPES[recipe]]
