"""What an instance says of its job where its container cannot be asked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.platforms import markers
from prefect_tao.platforms.brev.client import RentedMachine
from prefect_tao.platforms.brev.rental_notes import Rental

EVIDENCE = "brev ls"
# A word that verdicts know: the machine is gone, and another one may run the job.
LOST = "NodeLost"
BOOTING = ("DEPLOYING", "STARTING")
STOPPED = ("STOPPING", "STOPPED")
NOT_STARTED = "the instance runs, and the job was not started on it; launch again if its launcher is gone"


def without_container(
    machine: RentedMachine | None, record: Mapping[str, Any] | None, denied: float, patience: float
) -> Observation | None:
    """Where a job stands whose instance takes no login; None where that tells nothing yet."""
    status = machine.status if machine else ""
    if record and markers.has_ended(record):
        return markers.ended(record, status or "deleted")
    if status in BOOTING:
        return Observation(
            state=JobState.PENDING,
            native_state=status,
            reason=f"the instance is {status.lower()}",
            evidence=EVIDENCE,
            unstarted=True,
        )
    if status in STOPPED:
        return Observation(
            state=JobState.PAUSED,
            native_state=status,
            reason="somebody stopped the instance; brev start lets it go on",
            evidence=EVIDENCE,
        )
    if status == "FAILURE" and not record:
        return unstarted("the instance failed to start", status)
    if status == "FAILURE" or (not status and denied >= patience):
        what = "failed" if status else "is gone"
        return Observation(
            state=JobState.ERROR,
            native_state=LOST,
            reason=f"the instance {what}, and there is no record of how the job ended",
            evidence=EVIDENCE,
            started_at=markers.moment((record or {}).get("started")),
        )
    return None


def unstarted(reason: str = NOT_STARTED, status: str = "RUNNING") -> Observation:
    """An instance without its container: to submit under the name again completes it."""
    return Observation(state=JobState.PENDING, native_state=status, reason=reason, evidence=EVIDENCE, unstarted=True)


def called_off() -> Observation:
    """The end of a job that was cancelled before there was a container."""
    return Observation(
        state=JobState.CANCELED,
        native_state="deleted",
        reason="ended on request before it was started",
        evidence=EVIDENCE,
        ended_by=EndedBy.CANCEL,
    )


def priced(seen: Observation, rental: Rental | None) -> Observation:
    """With what the instance costs, while it does."""
    if rental is None or not rental.price or seen.state.terminal:
        return seen
    cost = f"{rental.type or rental.instance} at ${rental.price:.2f} an hour, up to ${rental.cost():.2f} so far"
    return seen.model_copy(update={"reason": f"{seen.reason}; {cost}" if seen.reason else cost})


def one_silence(found: list[dict[Any, Observation] | BaseException]) -> dict[Any, Observation]:
    """What was seen on several instances; one that is silent hides no other. Raises what each of them raised."""
    seen: dict[Any, Observation] = {}
    silences: list[BaseException] = []
    for one in found:
        if isinstance(one, dict):
            seen |= one
        elif isinstance(one, Unreachable):
            silences.append(one)
        else:
            raise one
    if silences and not seen:
        raise silences[0]
    return seen
