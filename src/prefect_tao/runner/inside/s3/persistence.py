"""Tries again for as long as that helps."""

from __future__ import annotations

import random
import time

from .errors import Changed, StorageError, explained, is_final

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TRIES = 6
LONGEST_PAUSE = 8.0


def persist(what: str, action: Callable[[], Any], position: Callable[[], int] = lambda: 0) -> Any:
    """Try `action` with pauses that grow, as long as trying helps; what moves `position` on counts as a new start."""
    tries, before = 0, position()
    while True:
        try:
            return action()
        except (StorageError, Changed):
            raise
        except Exception as error:
            if position() != before:
                tries, before = 0, position()
            tries += 1
            if is_final(error) or tries >= TRIES:
                raise explained(what, error)
            time.sleep(min(0.5 * 2**tries, LONGEST_PAUSE) * random.uniform(0.6, 1.1))
