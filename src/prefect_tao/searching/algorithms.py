"""The algorithms that a person can name: which sampler proposes, and which schedule says how long trials run."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from prefect_tao.jobs.errors import InvalidInput


@dataclass(frozen=True)
class Algorithm:
    """What stands behind a name."""

    sampler: str
    schedule: str = "whole"
    stops_early: bool = False
    takes_many: bool = False  # whether it can look for several metrics


ALGORITHMS = {
    "bayesian": Algorithm("bayesian"),
    "tpe": Algorithm("tpe", takes_many=True),
    "random": Algorithm("random", takes_many=True),
    "grid": Algorithm("grid", takes_many=True),
    "qmc": Algorithm("qmc", takes_many=True),
    "cma-es": Algorithm("cma-es"),
    "nsga-ii": Algorithm("nsga-ii", takes_many=True),
    "asha": Algorithm("bayesian", "asha"),
    "hyperband": Algorithm("random", "hyperband"),
    "hyperband-es": Algorithm("random", "hyperband", stops_early=True),
    "bohb": Algorithm("tpe", "hyperband"),
    "dehb": Algorithm("dehb", "hyperband"),
    "pbt": Algorithm("qmc", "pbt"),
}
ALIASES = {
    "b": "bayesian",
    "bfbo": "bayesian",
    "cmaes": "cma-es",
    "h": "hyperband",
    "hes": "hyperband-es",
    "motpe": "tpe",
    "nsga2": "nsga-ii",
    "sobol": "qmc",
}
LANGUAGE_MODELS = ("llm", "autoresearch", "hybrid")


def algorithm_named(word: str) -> str:
    """The algorithm that a person means. Raises InvalidInput."""
    known = str(word).strip().lower().replace("_", "-")
    known = ALIASES.get(known, known)
    if known in ALGORITHMS:
        return known
    if known in LANGUAGE_MODELS:
        remedy = "use bayesian, which needs no language model"
        raise InvalidInput(f"{word}: searches led by a language model are not offered", remedy)
    near = difflib.get_close_matches(known, [*ALGORITHMS, *ALIASES], 1)
    remedy = f"did you mean {near[0]}? " if near else ""
    raise InvalidInput(f"there is no algorithm {word!r}", f"{remedy}there are {', '.join(ALGORITHMS)}")
