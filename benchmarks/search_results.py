"""The table of searches: ours beside random search, Optuna's TPE and nvidia-tao-automl, and what a proposal costs."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from optuna.distributions import CategoricalDistribution, IntDistribution

from benchmarks.kept import kept
from benchmarks.measure import ROOT, Row, peer_python, say
from benchmarks.search_problems import GOOD, TERRIBLE, Problem, all_problems, mf_hartmann6
from benchmarks.search_quality import AT_ONCE, EPOCHS, TRIALS, in_epochs, ours, random_search, suggestion_cpu, tpe

SEEDS = int(os.environ.get("BENCH_SEEDS", "20"))
PEER_SEEDS = min(SEEDS, 6)  # a search of the peer takes half a minute
PEER = "nvidia-tao-automl==7.2.0"
LIMITS = {"Branin": 0.05, "Hartmann3": 0.05, "Hartmann6": 0.8}
OURS = "prefect-tao, bayesian"
IN_RUNGS = {"asha": "bayesian", "hyperband": "random", "bohb": "tpe"}
HERE = Path(__file__).parent
PROBLEMS = HERE / "search_problems.py"
# The code that decides how well a search of ours does, and a search of the peer.
OUR_CODE = (PROBLEMS, HERE / "search_quality.py", *(ROOT / "src" / "prefect_tao" / "searching").glob("*.py"))
PEER_CODE = (PROBLEMS, HERE / "peer_search.py")


def measure() -> list[Row]:
    with ProcessPoolExecutor(os.cpu_count(), initializer=_one_thread) as pool:
        return [*_quality(pool.map), *_fidelity(pool.map), _cost()]


def _one_thread() -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"


def _quality(spread: Callable[..., Any]) -> list[Row]:
    """Regret on each problem; the peer proposes one at a time, as it does nothing else."""
    python = peer_python(PEER)
    rows = []
    for index, problem in enumerate(all_problems()):
        found = {}
        for name in _SEARCHES:
            say(f"{problem.name}: {name}")
            seeds = PEER_SEEDS if name == PEER else SEEDS
            found[name] = statistics.median(spread(partial(_one, name, index, python), range(seeds)))
        limit = LIMITS.get(problem.name)
        for name, regret in found.items():
            is_ours = name == OURS
            goal = f"at most {limit:g}" if is_ours and limit else "below the others" if is_ours else ""
            ratio = "1x" if is_ours else f"{regret / max(found[OURS], 1e-9):.1f}x of ours"
            note = f" ({PEER_SEEDS} seeds)" if name == PEER else ""
            rows.append(Row(f"{problem.name}, {name}: median regret", f"{regret:.4g}{note}", ratio, goal))
    return rows


def _one(name: str, index: int, python: Path, seed: int) -> float:
    problem = all_problems()[index]
    what = f"{name}, {problem.name}, seed {seed}"
    if name == PEER:
        return kept(what, PEER_CODE, lambda: peer(problem, seed, python))
    return kept(what, OUR_CODE, lambda: _SEARCHES[name](problem, seed))


def _fidelity(spread: Callable[..., Any]) -> list[Row]:
    """Searches in rungs, each beside its own sampler with trials that run in full, at the same number of epochs."""
    rows = []
    for word, shape in (("good", GOOD), ("terrible", TERRIBLE)):
        for name, full in IN_RUNGS.items():
            say(f"MF-Hartmann6 with {word} low fidelity: {name}")
            own, other = (
                statistics.median(spread(partial(_in_epochs, one, shape), range(SEEDS))) for one in (name, full)
            )
            what = f"MF-Hartmann6, {word} low fidelity, {name}: median regret after {TRIALS} x {EPOCHS} epochs"
            ratio = f"{own / other:.2f}x of {full} in full ({other:.3g})"
            rows.append(Row(what, f"{own:.3g}", ratio, f"at most {1.1 * other + 0.05:.2f}"))
    return rows


def _in_epochs(name: str, shape: tuple[float, float], seed: int) -> float:
    what = f"{name} in epochs, {shape}, seed {seed}"
    return kept(what, OUR_CODE, lambda: in_epochs(name, mf_hartmann6(*shape), seed))


def _cost() -> Row:
    return Row("CPU of a proposal, 50 trials, 20 axes", f"{suggestion_cpu() * 1000:.0f} ms", "", "at most 200 ms")


def peer(problem: Problem, seed: int, python: Path) -> float:
    """The regret of the existing tool, which proposes in a process of its own environment."""
    program = HERE / "peer_search.py"
    own = {**os.environ, "PYTHONHASHSEED": str(seed), "OPENBLAS_NUM_THREADS": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    best = math.inf
    with subprocess.Popen([str(python), "-W", "ignore", str(program)], env=own, **pipes) as child:
        _say(child, {"space": {name: _axis(problem, name) for name in problem.space}, "seed": seed})
        for line in child.stdout or ():
            values = json.loads(line)
            value = problem.value({name: values[name] for name in problem.space})
            best = min(best, value) if math.isfinite(value) else best
            _say(child, value if math.isfinite(value) else None)
    return best - problem.best


def _say(child: subprocess.Popen[str], what: Any) -> None:
    if child.stdin is not None:
        child.stdin.write(json.dumps(what) + "\n")
        child.stdin.flush()


def _axis(problem: Problem, name: str) -> dict[str, Any]:
    axis: Any = problem.space[name]
    common = {"default": problem.template[name]}
    if isinstance(axis, CategoricalDistribution):
        return {"type": "string", "enum": list(axis.choices), **common}
    kind = "integer" if isinstance(axis, IntDistribution) else "number"
    return {"type": kind, "minimum": axis.low, "maximum": axis.high, **common}


_SEARCHES: dict[str, Callable[[Problem, int], float]] = {
    OURS: ours,
    "random": random_search,
    "Optuna 5 TPE": tpe,
    PEER: ours,  # its own program proposes: see `peer`
}
TITLE = f"Searches: {TRIALS} trials, {AT_ONCE} at once, {SEEDS} seeds"
