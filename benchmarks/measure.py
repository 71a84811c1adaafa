"""What the benchmarks share: timing in turn, a row of results, and the peer in an environment of its own."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PEER = "nvidia-tao-sdk"


class Row(NamedTuple):
    """One line of a table."""

    what: str
    measured: str
    ratio: str = ""
    goal: str = ""


def say(text: str) -> None:
    """A word for the person who waits; the results go elsewhere."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def timed(action: Callable[[], object]) -> float:
    """Seconds that `action` takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def in_turn(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each action, measured in turn so that all meet the same weather."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, action in actions.items():
            times[name].append(timed(action))
    return {name: statistics.median(values) for name, values in times.items()}


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms"


def times(one: float, other: float) -> str:
    return f"{one / other:.2f}x"


def peer_python(peer: str = PEER) -> Path:
    """The interpreter of an environment that holds a peer; made once, below .bench."""
    folder = ROOT / ".bench" / ("peer" if peer == PEER else peer.partition("==")[0])
    python = folder / "bin" / "python"
    if not python.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), peer], check=True)
    return python
