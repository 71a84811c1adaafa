"""What a model looks like goes with its weights: the spec values that a step which takes them over has to repeat. Pure.

A training with another backbone or more queries leaves weights that fit no other model, so an evaluation with the
defaults of its own spec could not load them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prefect_tao.catalog.nouns import ActionEntry, ModelEntry
from prefect_tao.preflight.resolve.handoffs import FROM_PARENT, wanted_endings
from prefect_tao.preflight.resolve.schema import find_leaf
from prefect_tao.runner.inside.checkpoints import CHECKPOINTS

SECTION = "model."
CLASSES = "num_classes"
# A model that was pruned has its structure in a file, and some models read it only when a key says so.
GRAPH = "model.pruned_graph_path"
LOADS_GRAPH = "model.load_pruned_graph"


def takes_weights(name: str, action: ActionEntry, pointer: str) -> bool:
    """Whether the action gets a checkpoint at `pointer`; engines and ONNX files bring their structure with them."""
    return action.handoff.get(pointer) in FROM_PARENT and wanted_endings(name, pointer) == CHECKPOINTS


def structure(given: Mapping[str, Any], model: ModelEntry, action: ActionEntry) -> dict[str, Any]:
    """The values of the model's structure that a step was given, by pointer; locations are none."""
    words = {model.shorthand.get(key, key): value for key, value in (given.get("overrides") or {}).items()}
    values = dict(_leaves(given.get("specs") or {})) | dict(_leaves(words))
    places = {*action.inputs, *action.outputs, *action.handoff, *action.datasets}
    return {key: value for key, value in values.items() if _is_structural(key) and key not in places}


def knows(action: ActionEntry, pointer: str) -> bool:
    """Whether the action's spec has such a key; without a schema it may have any."""
    return find_leaf(action.full_schema, pointer)[1] if action.full_schema else True


def _is_structural(pointer: str) -> bool:
    return pointer.startswith(SECTION) or pointer.rpartition(".")[2] == CLASSES


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value as (pointer, value); a list is one value."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
