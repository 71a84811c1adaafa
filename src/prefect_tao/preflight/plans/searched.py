"""Which parameters a search varies, and within which ranges, as a person and the catalog say. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from prefect_tao.catalog.nouns import ActionEntry, ModelEntry, SearchParameter
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.resolve.problems import did_you_mean, fail, nearest
from prefect_tao.preflight.resolve.schema import check_value, find_leaf

Choose = Callable[..., tuple[SearchParameter, ...]]


def ranges_of(given: Mapping[str, Any], model: ModelEntry | None) -> dict[str, Mapping[str, Any]]:
    """A person's own ranges by spec key. Raises InvalidInput for what is no map."""
    words = model.shorthand if model else {}
    found = {}
    for word, own in (given["custom_param_ranges"] or {}).items():
        if not isinstance(own, Mapping):
            raise InvalidInput(
                f"custom_param_ranges: {word} is {own!r}, which is not a range",
                "write {valid_min: 0.001, valid_max: 0.1}",
            )
        found[words.get(word, word)] = own
    return found


def parameters_of(
    given: Mapping[str, Any], model: ModelEntry | None, action: ActionEntry | None, choose: Choose
) -> list[SearchParameter]:
    """The parameters to search. Raises InvalidInput for unknown ones, a range outside the schema, and for none."""
    known = {one.name: one for one in model.automl.parameters} if model else {}
    words, ranges = (model.shorthand if model else {}), ranges_of(given, model)
    wanted = [words.get(word, word) for word in given["parameters"] or (*known, *ranges)]
    schema = action.full_schema if action else None
    findings: list[Finding] = []
    found = []
    for name in dict.fromkeys(wanted):
        findings += _misfits(schema, name, ranges.get(name, {}))
        if not schema and name in ranges:
            found.append(_own_parameter(name, ranges[name]))
            continue
        try:
            found += choose(known.values(), [name], schema=schema)
        except InvalidInput as error:
            near = nearest(name, [*known, *words], 1)
            findings.append(fail(name, error.cause, did_you_mean(near, error.remedy)))
    findings += [_not_wanted(name, wanted) for name in ranges if name not in wanted]
    if findings:
        raise InvalidInput.of(findings)
    if not found:
        raise InvalidInput(
            "there is nothing to search: no parameter was named, and the catalog enables none",
            "give ranges: --range learning_rate=0.001..0.5 (custom_param_ranges)",
        )
    return found


def _misfits(schema: Mapping[str, Any] | None, name: str, own: Mapping[str, Any]) -> list[Finding]:
    """Ends and choices of a person's range that the action's schema refuses."""
    ends = [own.get("valid_min"), own.get("valid_max"), *(own.get("valid_options") or ())]
    leaf, known = find_leaf(schema, name) if schema else (None, True)
    if not known:
        return check_value(schema or {}, name, ends[0])
    whole = leaf is not None and leaf.get("type") in ("integer", "int")
    ends = [int(end) if whole and isinstance(end, float) and end.is_integer() else end for end in ends]
    found = [one for end in ends if schema and end is not None for one in check_value(schema, name, end)]
    return [one.model_copy(update={"message": f"the range of {one.message}"}) for one in found]


def _own_parameter(name: str, own: Mapping[str, Any]) -> SearchParameter:
    """A parameter that no catalog knows: its type follows from its range."""
    if own.get("valid_options"):
        return SearchParameter(name=name, type="categorical", options=tuple(own["valid_options"]))
    ends = (own.get("valid_min"), own.get("valid_max"))
    whole = all(isinstance(end, int) for end in ends if end is not None)
    return SearchParameter(name=name, type="int" if whole else "float")


def _not_wanted(name: str, wanted: Sequence[str]) -> Finding:
    remedy = did_you_mean(nearest(name, wanted, 1), "add it to the parameters, or leave its range out")
    return fail(name, f"{name}: it has a range and is not among the parameters to search", remedy)
