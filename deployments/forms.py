"""Makes the parameters of a deployment a form that a person can fill in, and that the server refuses when it is wrong.

Prefect stores a run's parameters in clear before any code of ours sees them, so what must not be stored is said here,
in the schema, which the server checks first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.jobs.request import CREDENTIAL_NAME, CREDENTIAL_PATTERN
from prefect_tao.launch.parameters.declared import ChainParameters, RunParameters, SearchParameters, SweepParameters
from prefect_tao.launch.parameters.derived import parameters
from prefect_tao.launch.parameters.storable import BROKEN_TEXT, UNSTORABLE, WITHIN_64_BITS
from prefect_tao.preflight.plans.recipes import RECIPES

Schema = dict[str, Any]

NULL = {"type": "null"}
TABS = {"string": "one", "array": "several", "object": "by key"}
# Given, but empty: a chain without steps, a sweep over nothing.
NOT_EMPTY = {"steps": "minItems", "points": "minItems", "over": "minProperties"}
TOLD = "a key or token; give its name under secrets"
CALLED = "called like a secret; give its name under secrets"
# In either case: a schema has no flags.
CALLED_LIKE_A_SECRET = re.sub("[A-Z]", lambda letter: f"[{letter[0]}{letter[0].lower()}]", CREDENTIAL_NAME)
# It is checked at all depths, because steps of a chain have an env too; the UI makes no field of it.
AT_ALL_DEPTHS = {"$ref": "#/definitions/storable"}
WHOLE_TEXT = {"not": {"description": BROKEN_TEXT, "type": "string", "pattern": UNSTORABLE}}
STORABLE = {
    **WITHIN_64_BITS,
    "allOf": [WHOLE_TEXT],
    "not": {
        "description": TOLD,
        "type": "string",
        "pattern": CREDENTIAL_PATTERN,
    },
    "propertyNames": {"not": {"description": TOLD, "pattern": CREDENTIAL_PATTERN}, "allOf": [WHOLE_TEXT]},
    "properties": {
        "env": {
            "propertyNames": {"not": {"description": CALLED, "pattern": CALLED_LIKE_A_SECRET}},
            "allOf": [AT_ALL_DEPTHS],
        }
    },
    "additionalProperties": AT_ALL_DEPTHS,
    "items": AT_ALL_DEPTHS,
}


def form(schema: Schema, choices: Mapping[str, Sequence[str]]) -> Schema:
    """`schema` as a form: `choices` has the known values by parameter; every other value can still be typed."""
    made = deepcopy(schema)
    for name, field in made.get("properties", {}).items():
        _without_null(field)
        if name == "target":
            field["pattern"] = target_pattern()
        if name in NOT_EMPTY:
            field[NOT_EMPTY[name]] = 1
        if choices.get(name):
            _offer(field, list(choices[name]))
        if explained := list(_explained(name, field)):
            field["description"] = " ".join([field.get("description", ""), *explained]).strip()
    made["additionalProperties"] = False  # a parameter of another version of the flow
    made["allOf"] = [AT_ALL_DEPTHS]
    made["definitions"] = {**made.get("definitions", {}), "storable": STORABLE}
    return made


def target_pattern() -> str:
    """A platform of the catalog by its name or an alias, and perhaps the name of a block."""
    names = [word for name, platform in load_catalog().platforms.items() for word in (name, *platform.aliases)]
    return f"^({'|'.join(names)})(/[a-z0-9][a-z0-9-]*)?$"


@cache
def examples() -> dict[str, Any]:
    """What a person writes into a field, or into each item of a list, that takes JSON."""
    kinds = (RunParameters, ChainParameters, SweepParameters, SearchParameters)
    return {one.name: one.example for kind in kinds for one in parameters(kind).values() if one.example}


def _explained(name: str, field: Schema) -> Iterator[str]:
    """What the form alone does not show: how JSON is written, and what the recipes are."""
    example = json.dumps(examples().get(name, {"key": "value"}))
    if field.get("type") == "object":
        yield f"Written as JSON, such as {example}."
    if field.get("items", {}).get("type") == "object":
        yield f"Each item is written as JSON, such as {example}."
    if name == "recipe":
        yield from (f"{recipe}: {' > '.join(step['action'] for step in steps)}." for recipe, steps in RECIPES.items())


def _without_null(field: Schema) -> None:
    """Drop the choice of None: the UI makes a tab of it, and a field that is left empty says the same."""
    kinds = field.get("anyOf", [])
    if NULL not in kinds:
        return
    kept = [kind for kind in kinds if kind != NULL]
    if "default" in field and field["default"] is None:
        del field["default"]
    if len(kept) == 1:
        del field["anyOf"]
        field.update(kept[0])
    else:
        # The UI writes the title on a tab, and `str` says nothing to a person.
        field["anyOf"] = [{**kind, "title": TABS[kind["type"]]} if kind.get("type") in TABS else kind for kind in kept]


def _offer(field: Schema, values: list[str]) -> None:
    """A list to choose from, and beside it the field to type into: a list alone would forbid all other values."""
    typed = {key: field.pop(key) for key in ("type", "pattern") if key in field}
    field["anyOf"] = [
        {"title": "choose", "type": "string", "enum": values},
        {**typed, "title": "type", "examples": values[-1:]},
    ]
