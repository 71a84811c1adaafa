"""Says for how long something has been going on, so that a wait never looks like a program that hangs."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_tao.cli.screen import Screen

LIVE_SECONDS, LINE_SECONDS = 1.0, 3.0  # where a line is drawn in place, and where each is a new one


def interval(screen: Screen) -> float:
    """Seconds between two such words."""
    return LIVE_SECONDS if screen.out.is_terminal else LINE_SECONDS


class Ticker:
    """What is done now, with the seconds since the beginning, until it is told to stop."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._doing, self._began = "", time.monotonic()
        self._over = threading.Event()
        threading.Thread(target=self._tick, daemon=True).start()

    def tell(self, text: str) -> None:
        """Say what begins now."""
        self._doing = text
        self._screen.quiet()
        self._screen.out.print(text, soft_wrap=True, markup=False)

    def stop(self) -> None:
        """Say nothing more by itself."""
        self._over.set()
        self._screen.quiet()

    def _tick(self) -> None:
        while not self._over.wait(interval(self._screen)):
            self._screen.note(f"{self._doing} ({time.monotonic() - self._began:.0f} s)")
