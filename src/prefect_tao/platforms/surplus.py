"""Where two jobs may bear one name: which of them has it, and which wait under it without need. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from prefect_tao.jobs.state import JobState


class NamedJob(Protocol):
    """A job as its platform lists it; its state is None where the platform's word for it is not known."""

    @property
    def id(self) -> str:
        """What the platform calls it; ids of later jobs are greater."""

    @property
    def job_state(self) -> JobState | None:
        """Where it stands."""


L = TypeVar("L", bound=NamedJob)


def bearer(listed: Sequence[L], claimed: str | None, noted: str | None) -> tuple[L | None, tuple[str, ...]]:
    """The job that has the name, and the ids of others that wait under it without need.

    Only what all watchers see alike makes a job needless: the claim, or the id that was noted first. Otherwise two of
    them could each cancel the job of the other.
    """
    alive = [one for one in listed if one.job_state is None or not one.job_state.terminal]
    if claimed:
        chosen = next((one for one in listed if one.id == claimed), None)
    elif not (chosen := next((one for one in alive or listed if one.id == noted), None)):
        return min(alive or listed, key=lambda one: int(one.id.split("_")[0]), default=None), ()
    # One that has begun either has the name or leaves by itself.
    return chosen, tuple(one.id for one in alive if one is not chosen and one.job_state is JobState.PENDING)
