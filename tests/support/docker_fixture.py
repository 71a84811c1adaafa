"""The Docker engine as a fixture, apart from what makes it: tests of other things need no Docker client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """One Docker engine of our own for all tests of the session; it starts when the first one wants it."""
    from docker_engine import new_engine

    running = new_engine()
    yield running
    running.remove()
