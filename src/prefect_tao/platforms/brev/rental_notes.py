"""What is written down of rented instances among the results, because nothing of them is left once they are deleted.

Before an instance is made, that it is: since when, of what, for how much. Before it is deleted, how its job ended, why,
and its log. All of it lies beside the runner's own records, by the number of the attempt.
"""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import Observation
from prefect_tao.jobs.verdict import Verdict
from prefect_tao.platforms import markers
from prefect_tao.platforms.files import BucketFiles, LocalFiles

MOST_BYTES = 1 << 20
MOST_LOG = 1 << 28
RENT, END, LOG, FOUND = "rent.json", "end.json", "log", "found.json"


class Rental(BaseModel):
    """An instance that is made for a job; `native_id` is the job's container, once it was started there."""

    model_config = ConfigDict(frozen=True)

    instance: str
    since: float = Field(default_factory=time.time)
    type: str = ""
    price: float = 0.0
    native_id: str = ""

    def cost(self, step: float = 300.0) -> float:
        """What it has cost by now, to the end of the minutes that have begun: a sum that changes now and then."""
        return self.price * (1 + (time.time() - self.since) // step) * step / 3600


class RentedEnd(BaseModel):
    """How a job ended whose instance is deleted, or will be."""

    model_config = ConfigDict(frozen=True)

    handle: JobHandle
    end: Observation
    verdict: Verdict | None = None


class RentalNotes:
    """Reads and writes them. Methods block; they raise Unreachable, InvalidInput, MissingDependency."""

    def __init__(self, files: BucketFiles | LocalFiles) -> None:
        self.files = files
        self._rentals: dict[str, Rental] = {}

    def rent(self, handle: JobHandle, rental: Rental) -> None:
        """Note that an instance is going to be made."""
        self.files.write(_place(handle, RENT), rental.model_dump_json().encode())
        self._rentals.pop(_place(handle, RENT), None)

    def rental(self, handle: JobHandle) -> Rental | None:
        """What is noted of the job's instance; not asked for again once the job is started."""
        place = _place(handle, RENT)
        if place in self._rentals:
            return self._rentals[place]
        try:
            found = Rental.model_validate_json(self.files.read(place, MOST_BYTES) or b"")
        except ValidationError:
            return None
        if found.native_id:
            self._rentals[place] = found
        return found

    def found(self, handle: JobHandle, instance: str) -> Rental:
        """Since when an instance is known here of whose making nothing is noted here: since the first look at it."""
        own = Rental(instance=instance)
        kept = self.files.put_first(_place(handle, FOUND), own.model_dump_json().encode())
        try:
            return Rental.model_validate_json(kept)
        except ValidationError:
            return own

    def keep(self, kept: RentedEnd, log: bytes | None = None) -> None:
        """Write down an end, and the log before it; what was written first stays."""
        if log is not None:
            self.files.write(_place(kept.handle, LOG), log)
        place, data = _place(kept.handle, END), kept.model_dump_json().encode()
        self.files.put_first(place, data)
        if self.files.read(place, 1) is None:  # in storage that cannot tell who is first
            self.files.write(place, data)

    def end(self, handle: JobHandle) -> RentedEnd | None:
        """The end that is written down. The job could write it too: it tells nothing of where anything lies."""
        try:
            kept = RentedEnd.model_validate_json(self.files.read(_place(handle, END), MOST_BYTES) or b"")
        except ValidationError:
            return None
        if handle.site and kept.handle.site != handle.site:
            return None
        told = kept.handle.model_dump(include={"native_id", "digest", "labels"})
        return kept.model_copy(update={"handle": handle.model_copy(update=told)})

    def log(self, handle: JobHandle) -> bytes:
        """The log as the engine sent it; empty where none was kept."""
        return self.files.read(_place(handle, LOG), MOST_LOG) or b""

    def record(self, handle: JobHandle) -> dict[str, object] | None:
        """What the job's runner wrote."""
        found = markers.read_record(self.files.read(f"{handle.results}/attempts/{handle.attempt}.json", MOST_BYTES))
        return found if found and markers.is_of(found, handle.native_id, handle.site) else None

    def attempts(self, one: JobHandle) -> list[int]:
        """The attempts of a key that left a record or an end, or were started on their instance."""
        folder = f"{one.results}/attempts"
        stems = [name.removesuffix(".json") for name in self.files.names([folder]).get(folder, [])]
        found = {int(stem) for stem in (stem.removesuffix(".end") for stem in stems) if stem.isdigit()}
        rented = [int(stem) for stem in (name.removesuffix(".rent") for name in stems) if stem.isdigit()]
        for number in set(rented) - found:
            rental = self.rental(one.model_copy(update={"attempt": number}))
            found |= {number} if rental and rental.native_id else set()
        return sorted(found)


def _place(handle: JobHandle, what: str) -> str:
    return f"{handle.results}/attempts/{handle.attempt}.{what}"
