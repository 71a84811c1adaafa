"""Fixtures of tests that need S3: one server for a session, and for each test a proxy in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_faults import Faults
from s3_server import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server."""
    with S3Server() as server:
        yield server


@pytest.fixture
def faults(s3_server: S3Server) -> Iterator[Faults]:
    """The way to it, which can misbehave."""
    with Faults(s3_server.port) as proxy:
        yield proxy
