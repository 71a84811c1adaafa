"""Fixtures of the tests that use the Prefect server."""

from __future__ import annotations

from typing import Any

import pytest
from prefect_tools import Api


@pytest.fixture
def api(server: Any) -> Api:
    """The server's API."""
    return Api(server.api)
