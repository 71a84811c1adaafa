"""How long it takes until the command line answers and the engine is there, against importing Prefect."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.measure import Row, in_turn, ms, times

ROUNDS = 7
ENGINE = "import prefect_tao.jobs.following, prefect_tao.preflight, prefect_tao.platforms.process.driver"


def _python(*words: str) -> None:
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)


def measure() -> list[Row]:
    found = in_turn(
        {
            "prefect": lambda: _python("-c", "import prefect"),
            "help": lambda: _python("-m", "prefect_tao.cli", "--help"),
            "engine": lambda: _python("-c", ENGINE),
        },
        ROUNDS,
    )
    return [
        Row("import prefect", ms(found["prefect"]), "1x"),
        Row("prefect-tao --help", ms(found["help"]), times(found["help"], found["prefect"]), "at most 300 ms"),
        Row("import of the engine", ms(found["engine"]), times(found["engine"], found["prefect"])),
    ]
