"""A store or a way to it that alters what it sends, each time alike: such a download is never taken for whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from http_faults import Fault, Faults
from runner_tools import Bucket, Runner
from s3_jobs import S3Jobs, refused
from s3_server import S3Server

pytestmark = pytest.mark.xdist_group("s3")


@pytest.fixture
def s3(tmp_path: Path, s3_server: S3Server, faults: Faults) -> S3Jobs:
    return S3Jobs(Runner(tmp_path), Bucket(s3_server.endpoint, faults.endpoint), faults)


def alter(s3: S3Jobs, name: str) -> None:
    """From here on one bit of this object is another one in every answer."""
    s3.faults.rules.append(
        lambda request: (
            Fault(alter=True) if request.is_object and request.path.partition("?")[0].endswith(name) else None
        )
    )


def test_an_object_that_differs_from_its_md5_is_refused_where_another_has_matched(s3: S3Jobs) -> None:
    s3.bucket.put_bare("set/good.bin", b"some content")
    s3.bucket.put_bare("set/wrong.bin", b"some other content")
    alter(s3, "wrong.bin")
    refused(s3.fetch(s3.bucket.uri("set")), "wrong.bin")


def test_an_object_that_differs_from_what_may_be_its_md5_is_warned_of(s3: S3Jobs) -> None:
    s3.bucket.put_bare("set/wrong.bin", b"some other content")
    alter(s3, "wrong.bin")
    ended = s3.fetch(s3.bucket.uri("set"))
    assert ended.code == 0, ended.log
    assert "wrong.bin" in ended.log
