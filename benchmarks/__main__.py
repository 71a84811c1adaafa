"""Run every benchmark and write RESULTS.md."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import (
    data_path,
    docker_jobs,
    gates,
    kubernetes_jobs,
    process_jobs,
    runner,
    search_flow,
    search_results,
    slurm_jobs,
    startup,
    sweep,
)
from benchmarks.measure import Row, peer_python, say

RESULTS = Path(__file__).with_name("RESULTS.md")


def table(rows: list[Row]) -> list[str]:
    lines = ["| what | measured | ratio | goal |", "|---|---|---|---|"]
    return lines + [f"| {row.what} | {row.measured} | {row.ratio} | {row.goal} |" for row in rows]


def main() -> None:
    peer = peer_python()
    sections: dict[str, Callable[[], list[Row]]] = {
        "A process job, from submit to known (driver level)": partial(process_jobs.measure, peer),
        "The in-container runner": partial(runner.measure, peer),
        f"The launch gate, when every answer of the platform takes {gates.ANSWER_SECONDS:g} s": gates.measure,
        "Data from S3 and back": data_path.measure,
        "Containers on a Docker engine": docker_jobs.measure,
        f"{slurm_jobs.JOBS} jobs on a SLURM cluster": slurm_jobs.measure,
        "Jobs on a Kubernetes cluster (the stand-in of the tests)": kubernetes_jobs.measure,
        "A sweep": sweep.measure,
        search_results.TITLE: search_results.measure,
        "A search as a flow": search_flow.measure,
        "Start-up": startup.measure,
    }
    lines = [
        "# Results",
        "",
        "Written by `make bench`; every ratio compares two things measured in turn in the same run.",
        f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores. Times are medians.",
    ]
    for title, measure in sections.items():
        say(title)
        lines += ["", f"## {title}", "", *table(measure())]
    RESULTS.write_text("\n".join(lines) + "\n")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
