"""One S3 server for the tests of this folder, and a proxy in front of it for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from http_faults import Faults
from runner_tools import Bucket, Runner
from s3_jobs import S3Jobs
from s3_server import S3Server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def faults(s3_server: S3Server) -> Iterator[Faults]:
    with Faults(s3_server.port) as proxy:
        yield proxy


@pytest.fixture
def s3(tmp_path: Path, s3_server: S3Server, faults: Faults) -> S3Jobs:
    return S3Jobs(Runner(tmp_path), Bucket(s3_server.endpoint, faults.endpoint), faults)


@pytest.fixture
def credentials(s3: S3Jobs) -> dict[str, str]:
    """The keys as a person supplies them."""
    return {"ACCESS_KEY": "test", "SECRET_KEY": "test", "S3_ENDPOINT_URL": s3.faults.endpoint}


@pytest.fixture(params=["boto3", "aws"])
def either(request: pytest.FixtureRequest, s3: S3Jobs) -> S3Jobs:
    """The same, once with boto3 and once with the aws command alone."""
    if request.param == "aws":
        s3.use_aws()
    return s3
