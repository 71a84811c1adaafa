"""Jobs with a bucket of their own, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_faults import Faults
from runner_tools import Bucket, Runner
from s3_jobs import S3Jobs
from s3_server import S3Server


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
