"""Real bounds for search parameters: what a schema leaves open or infinite becomes a finite range worth searching.

A finite bound that the schema states is kept. The rest follows from the default value:

- Learning rates and weight decay are searched on a log scale, so the lower bound is above zero: a hundredth of the
  default where the schema says zero or nothing, and the upper bound is ten times the default. Without a default above
  zero the range is 1e-6 to 0.1.
- Factors, momenta, probabilities and ratios end at 1.
- Numbers of layers end at twice the default, everything else at four times; without a default above zero a whole number
  gets a hundred steps and any other number ten.
- Each element of a list is searched between a tenth of the smallest and four times the largest default; fractions stay
  below 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from prefect_tao.catalog.nouns import SearchParameter

_RATE = re.compile(r"(^|_)(lr|learning_rate)(_backbone)?$|weight_decay|^wd$")
_FRACTION = re.compile(r"momentum|decay|prob|ratio|mult$|dropout")
_WHOLE = ("int", "ordered_int")
_NUMBERS = (*_WHOLE, "float")


def search_parameter(leaf: Mapping[str, Any]) -> SearchParameter:
    """A parameter from a schema's words: name, type, default, min, max, options, option_weights, math_cond..."""
    kind = leaf.get("type") or "float"
    fields = {
        "name": leaf["name"],
        "type": kind,
        "default": leaf.get("default"),
        "options": leaf.get("options") or (),
        "weights": leaf.get("option_weights") or (),
        "condition": leaf.get("math_cond") or "",
        "depends_on": leaf.get("depends_on") or "",
    }
    if kind in _NUMBERS and not fields["options"]:
        log = is_rate(leaf["name"])
        low, high = (_log_range if log else _range)(leaf, kind)
        fields |= {"min": low, "max": high, "log": log}
    elif kind.startswith("list"):
        fields |= _list_range(fields["default"])
    return SearchParameter.model_validate(fields)


def is_rate(name: str) -> bool:
    """Whether a parameter is a learning rate or a weight decay, which are searched by orders of magnitude."""
    return bool(_RATE.search(_last(name)))


def finite(value: Any) -> float | None:
    """A number, or None for what is missing, infinite or no number."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _log_range(leaf: Mapping[str, Any], kind: str) -> tuple[float, float]:
    default, low, high = finite(leaf.get("default")), finite(leaf.get("min")), finite(leaf.get("max"))
    if low is None or low <= 0:
        low = _tidy(default / 100) if default and default > 0 else 1e-06
    if high is None:
        high = _tidy(default * 10) if default and default > 0 else 0.1
    return low, high if high > low else _tidy(low * 1000)


def _range(leaf: Mapping[str, Any], kind: str) -> tuple[float, float]:
    default, low, high = finite(leaf.get("default")), finite(leaf.get("min")), finite(leaf.get("max"))
    last = _last(leaf["name"])
    if low is None:
        low = 0.0 if default is None or default >= 0 else default
    if last.endswith("step_size"):
        low = max(low, 1)  # a scheduler cannot step every zero epochs, whatever the schema admits
    if high is None:
        high = _upper(last, default, low, kind)
    return low, high if high > low else low + 1


def _upper(last: str, default: float | None, low: float, kind: str) -> float:
    if kind == "float" and _FRACTION.search(last) and (default or 0) <= 1:
        return 1.0
    if default is None or default <= 0:
        return low + (100 if kind in _WHOLE else 10)
    return _tidy(default * (2 if last.endswith("layers") else 4))


def _list_range(default: Any) -> dict[str, float]:
    numbers = [number for number in map(finite, default if isinstance(default, list) else ()) if number is not None]
    if not numbers or min(numbers) <= 0:
        return {}
    if max(numbers) < 1:
        return {"min": _tidy(min(numbers) / 10), "max": 0.9999}
    return {"min": max(1, min(numbers) // 10), "max": max(numbers) * 4}


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _tidy(number: float) -> float:
    """Without the last digits that binary arithmetic adds: 6e-07, not 6.000000000000001e-07."""
    return float(f"{number:.6g}")
