"""Which parameters a search varies: those that the model offers, or a person's own list."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from prefect_tao.catalog.bounds import search_parameter
from prefect_tao.catalog.nouns import SearchParameter
from prefect_tao.catalog.skill_info import schema_leaf
from prefect_tao.jobs.errors import InvalidInput

_KINDS = {"integer": "int", "number": "float", "boolean": "bool", "array": "list"}


def chosen_parameters(
    offered: Iterable[SearchParameter],
    names: Collection[str] = (),
    without: Collection[str] = (),
    schema: Mapping[str, Any] | None = None,
) -> tuple[SearchParameter, ...]:
    """The parameters called `names`, or all that are offered, less those in `without`.

    A name that is not offered is looked up in the action's schema. Raises InvalidInput for one that is nowhere, and
    where nothing is left.
    """
    known = {one.name: one for one in offered}
    for name in names:
        leaf = None if name in known or schema is None else schema_leaf(schema, name)
        if leaf is not None and "properties" not in leaf:
            known[name] = _from_schema(name, leaf)
    for name in (*names, *without):
        if name not in known:
            near = difflib.get_close_matches(name, list(known), 1)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise InvalidInput(f"{name} is not a parameter that can be searched", remedy)
    left = tuple(known[name] for name in dict.fromkeys(names or known) if name not in without)
    if not left:
        raise InvalidInput("there is nothing to search: no parameter is left", "name some with --parameter")
    return left


def _from_schema(name: str, leaf: Mapping[str, Any]) -> SearchParameter:
    options = leaf.get("enum")
    kind = "categorical" if options else _KINDS.get(str(leaf.get("type")), str(leaf.get("type")))
    if kind == "string":
        raise InvalidInput(f"{name} is a text without a list of choices", "leave it out, or give its valid_options")
    words = {"type": kind, "min": leaf.get("minimum"), "max": leaf.get("maximum"), "options": options}
    return search_parameter({**leaf, **words, "name": name})
