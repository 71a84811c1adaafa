"""Brackets of successive halving, from the most careful one to the boldest."""

from __future__ import annotations

from collections.abc import Sequence

from prefect_tao.searching.asha import ranked_at
from prefect_tao.searching.fidelity import lowest_that_decides
from prefect_tao.searching.trial_record import Slot, Standing
from prefect_tao.searching.whole_trials import Move


class Hyperband:
    """A rung is decided when all of it is told; meanwhile the next bracket begins, so that no place stays empty.

    The first bracket is the one in which every trial climbs to the top: with it ranks are measured. A bracket that
    would begin on a rung that decides nothing begins on the first one that does.
    """

    def __init__(self, rungs: Sequence[int], eta: int, most: int | None) -> None:
        self._rungs = rungs
        self._eta = eta
        self._most = most
        self.top = len(rungs) - 1

    def size(self, start: int) -> int:
        """How many trials a bracket that starts at a rung begins with."""
        below = self.top - start
        return -(-(self.top + 1) * int(self._eta**below) // (below + 1))

    def next(self, slots: Sequence[Slot]) -> Move | None:
        lowest = lowest_that_decides(slots, self.top)
        begun, place = 0, 0
        while place < len(slots):
            size = self._begins_with(begun, slots[place].first_rung, place)
            bracket = slots[place : place + size]
            move = self._promotion(bracket, size, begun == 0, lowest)
            if move is None and len(bracket) < size:
                move = self._begin(begun, bracket[0].first_rung)
            if move is not None:
                return move
            begun, place = begun + 1, place + size
        if begun > self.top if self._most is None else place >= self._most:
            return None
        return self._begin(begun, max(self._start(begun), lowest) if begun else 0)

    @property
    def most_jobs(self) -> int:
        if self._most is not None:
            return self._most * len(self._rungs)
        return sum(self.size(start) * (self.top - start + 1) for start in range(self.top + 1))

    def _start(self, begun: int) -> int:
        return self.top - begun % (self.top + 1)

    def _begins_with(self, begun: int, start: int, place: int) -> int:
        size = self.size(self.top if begun == 0 else start)
        return size if self._most is None else min(size, self._most - place)

    def _begin(self, begun: int, start: int) -> Move:
        return Move(start, self._rungs[start])

    def _promotion(self, bracket: Sequence[Slot], size: int, are_probes: bool, lowest: int) -> Move | None:
        left = size
        for rung in range(bracket[0].first_rung, self.top):
            here = [slot for slot in bracket if slot.last.rung >= rung]
            ahead = left if are_probes else max(1, left // self._eta)
            is_decided = are_probes or (len(here) == left and not any(_is_open(slot, rung) for slot in here))
            if not is_decided or (rung < lowest and not are_probes):
                return None
            for slot in ranked_at(bracket, rung)[:ahead]:
                if slot.last.rung == rung and slot.last.end is Standing.PAUSED:
                    return Move(rung + 1, self._rungs[rung + 1], slot.at(rung))
            left = min(ahead, len(ranked_at(bracket, rung)))
        return None


def _is_open(slot: Slot, rung: int) -> bool:
    return slot.last.rung == rung and slot.is_running
