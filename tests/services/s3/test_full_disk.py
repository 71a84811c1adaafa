"""A disk that is full: told with what to do, and no file of which only a part is there under its final name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from http_faults import Fault
from runner_tools import KEY
from s3_jobs import MIB, S3Jobs, refused
from small_disk import small_disk

from prefect_tao.jobs import locations
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.runner.entrypoint import build_entrypoint

__all__ = ["small_disk"]
pytestmark = pytest.mark.xdist_group("s3")


def files(folder: Path) -> dict[str, int]:
    """All files below a folder with their sizes, without the records of attempts."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "attempts")
    return {str(path.relative_to(folder)): path.stat().st_size for path in found}


def test_what_does_not_fit_is_refused_before_it_is_fetched(either: S3Jobs, small_disk: Path) -> None:
    uri = either.bucket.put("set/x", bytes(5 * MIB))
    ended = either.fetch(uri, TAO_WORK_DIR=str(small_disk / "work"))
    refused(ended, "5.24 MB", "free space", "TAO_WORK_DIR")
    assert either.faults.reads == []


def test_a_disk_that_fills_up_leaves_no_part_behind(either: S3Jobs, small_disk: Path) -> None:
    uri = either.bucket.put("set/x", bytes(3 * MIB))
    fill = Fault(before=lambda: (small_disk / "other").write_bytes(bytes(2 * MIB)))
    either.faults.times(1, fill, lambda request: request.is_object)
    ended = either.fetch(uri, TAO_WORK_DIR=str(small_disk / "work"))
    refused(ended, "No space left", "free space", "TAO_WORK_DIR")
    assert files(small_disk / "work") == {}


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_cache_without_room_is_done_without_and_keeps_no_part(either: S3Jobs, small_disk: Path, when: str) -> None:
    data = os.urandom(5 * MIB if when == "before" else 3 * MIB)
    uri = either.bucket.put("set/x", data)
    if when == "during":
        fill = Fault(before=lambda: (small_disk / "other").write_bytes(bytes(2 * MIB)))
        either.faults.times(1, fill, lambda request: request.is_object)
    ended = either.fetch(uri, TAO_CACHE_DIR=str(small_disk / "cache"))
    assert ended.code == 0, ended.log
    assert "the cache cannot take" in ended.log
    assert either.data.read_bytes() == data
    assert files(small_disk / "cache") == {}


def test_outputs_that_do_not_fit_on_the_mount_fail_the_job_and_the_others_are_kept(
    s3: S3Jobs, small_disk: Path
) -> None:
    out = s3.runner.folder / "out"
    command = f"mkdir {out}; echo 1 > {out}/small; head -c {6 * MIB} /dev/zero > {out}/large.pth"
    mount = {"TAO_RESULTS_ROOT": str(small_disk)}
    ended = s3.runner.run(build_entrypoint(command, outputs=[str(out)]), **mount)
    assert ended.code == 125, ended.log
    assert "outputs were not all saved" in ended.log
    assert "No space left" in ended.log
    assert files(small_disk / KEY) == {"out/small": 2}


def test_results_that_do_not_fit_here_are_refused_by_name(
    s3: S3Jobs, small_disk: Path, credentials: dict[str, str], tmp_path: Path
) -> None:
    s3.bucket.put("set/large", bytes(6 * MIB))
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "large").write_bytes(bytes(6 * MIB))
    for source in (s3.bucket.uri("set"), str(tmp_path / "source")):
        with pytest.raises(InvalidInput, match="No space left") as caught:
            locations.download(locations.listing(source, credentials), small_disk / "copies", credentials)
        assert "free space" in caught.value.remedy
        assert files(small_disk) == {}
