"""Successive halving without waiting: whatever is among the best of its rung goes on as soon as a place is free."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_tao.searching.fidelity import PROBES, lowest_that_decides
from prefect_tao.searching.trial_record import Slot, Standing
from prefect_tao.searching.whole_trials import Move


class Asha:
    """Promotion type: a trial pauses at the end of its rung, and its promotion pays for the new epochs only.

    The first few configurations climb to the top whatever they are worth. Where ranks at a rung do not agree with
    those at the top, that rung decides nothing: new trials go past it, and those that pause there stay there.
    """

    def __init__(self, rungs: Sequence[int], eta: int, most: int) -> None:
        self._rungs = rungs
        self._eta = eta
        self._most = most
        self._probes = min(PROBES, max(3, most // eta))
        self.top = len(rungs) - 1

    def next(self, slots: Sequence[Slot]) -> Move | None:
        lowest = lowest_that_decides(slots, self.top)
        for rung in reversed(range(self.top)):
            slot = self._promoted(slots, rung, lowest)
            if slot is not None:
                return Move(rung + 1, self._rungs[rung + 1], slot.at(rung))
        if sum(not self._is_left(slot, lowest) for slot in slots) >= self._most:
            return None
        start = lowest if len(slots) >= self._probes else 0
        return Move(start, self._rungs[start])

    @property
    def most_jobs(self) -> int:
        return self._most * len(self._rungs)

    def _is_left(self, slot: Slot, lowest: int) -> bool:
        return slot.last.end is Standing.PAUSED and slot.last.rung < lowest

    def _promoted(self, slots: Sequence[Slot], rung: int, lowest: int) -> Slot | None:
        probes = [slot for slot in slots[: self._probes] if _pauses_at(slot, rung)]
        if probes:
            return probes[0]
        if rung < lowest:
            return None
        ranked = ranked_at(slots, rung)
        first = {slot.origin for slot in slots[: self._probes]}
        others = [slot for slot in ranked if slot.origin not in first]
        ahead = sum(slot.last.rung > rung for slot in others)
        if ahead >= len(others) // self._eta:  # a sampler that learns would see each new trial among the best
            return None
        best = ranked[: len(ranked) // self._eta]
        return next((slot for slot in best if _pauses_at(slot, rung)), None)


def ranked_at(slots: Sequence[Slot], rung: int) -> list[Slot]:
    """Those that reached the end of a rung, best first; what failed has no value and is never among them."""
    found = [
        (loss, slot)
        for slot in slots
        if (loss := slot.loss(rung)) is not None and slot.last.end is not Standing.STOPPED
    ]
    return [slot for _, slot in sorted(found, key=lambda one: (one[0], one[1].origin))]


def _pauses_at(slot: Slot, rung: int) -> bool:
    return slot.last.rung == rung and slot.last.end is Standing.PAUSED
