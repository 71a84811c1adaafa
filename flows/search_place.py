"""Where a search runs, and under which names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prefect.client.schemas.objects import State

from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.platform import Platform
from prefect_tao.tasks.study_records import trial_step


@dataclass(frozen=True)
class SearchPlace:
    """The target of a search, the key of its run, and the step that it is."""

    target: str
    run_key: str | None
    step: str
    minutes: float
    catalog: Catalog
    platform: Platform
    after: tuple[State[Any], ...] = ()

    def trial_step(self, number: int) -> str:
        """The step of one trial; its job's key follows from that."""
        return trial_step(self.step, number)

    def evaluation_step(self, number: int) -> str:
        """The step of the evaluation that a trial is judged by."""
        return f"{self.trial_step(number)}-evaluate"
