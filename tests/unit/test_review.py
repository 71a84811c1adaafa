"""The launch review shows what the platform said: when the job may start, and on which GPUs."""

from __future__ import annotations

from gate_tools import resolved

from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.tasks.artifacts.review import review_markdown


def told(**answers: str) -> str:
    found = [
        Finding(level=Level.OK, subject=subject, message=message, checked_from="slurm/polar")
        for subject, message in answers.items()
    ]
    return review_markdown(resolved(), "slurm/polar", "sbatch", {"reachable": found})


def test_an_estimated_start_and_the_gpus_are_in_the_table() -> None:
    page = told(start="estimated start 2026-11-16 14:00", gpus="gpus: 0 and 3 are free")
    assert "| estimated start | 2026-11-16 14:00 |" in page
    assert "| GPUs of the platform | 0 and 3 are free |" in page


def test_what_was_not_said_has_no_row() -> None:
    assert "estimated start" not in told(results="results can be written")
