"""An event loop that does not wait: where nothing else is to be done, its time jumps to the next thing that is due.

Hours of back-off and polling take milliseconds in it, in the same order as they would come in real time. It is for
code without threads and connections: time does not stop for them.
"""

from __future__ import annotations

import asyncio
import selectors
from datetime import UTC, datetime, timedelta

START = datetime(2030, 1, 1, tzinfo=UTC)
TICK = 1e-6


class _Skipping(selectors.DefaultSelector):
    """Waits for nothing from outside; the time that would have been waited passes at once."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits for something that can never happen")
        # Whatever is done takes a moment: code that waits for the last fraction of a second would wait for ever.
        self.passed += max(timeout, TICK)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Give it to `asyncio.Runner(loop_factory=VirtualLoop)`; keep `jobs.clock` by its `now`."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        """Seconds since the loop was made, waited for or not."""
        return self._skipping.passed

    def now(self) -> datetime:
        """The moment that this time is."""
        return START + timedelta(seconds=self.time())
