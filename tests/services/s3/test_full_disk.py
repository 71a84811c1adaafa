"""A disk that is full: told with what to do, and no file of which only a part is there under its final name."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_faults import Fault
from runner_tools import KEY
from s3_jobs import MIB, S3Jobs, refused
from s3_server import aws_alone
from small_disk import small_disk

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.runner.entrypoint import build_entrypoint
from prefect_tao.runner.inside.failures import StorageError
from prefect_tao.runner.inside.stores.s3 import SCHEME
from prefect_tao.runner.inside.stores.s3.awscli import CliStore
from prefect_tao.runner.inside.transfers import downloads
from prefect_tao.storage import locations

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


@pytest.mark.parametrize("taken", [2 * MIB, MIB], ids=["in the midst", "at the end"])
def test_a_large_file_of_which_the_disk_took_less_gets_no_name(
    s3: S3Jobs, small_disk: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write finds too little room, and before the next one there is enough."""
    monkeypatch.setattr(downloads, "RANGED", MIB)
    uri = s3.bucket.put("set/x", os.urandom(3 * MIB))
    store = SCHEME.connect(s3.bucket.env, print)
    read, other = store.read, small_disk / "other"

    def freeing(*asked: Any) -> tuple[Any, Iterator[bytes]]:
        checksum, chunks = read(*asked)
        other.write_bytes(bytes(taken + 100_000))

        def freed() -> Iterator[bytes]:
            for chunk in chunks:
                yield chunk
                if not os.statvfs(small_disk).f_bavail:
                    other.unlink(missing_ok=True)

        return checksum, freed()

    monkeypatch.setattr(store, "read", freeing)
    with pytest.raises(StorageError, match="No space left"):
        store.fetch(uri, str(small_disk / "work" / "x"))
    assert files(small_disk / "work") == {}


def test_an_archive_that_does_not_fit_unpacked_leaves_nothing_behind(s3: S3Jobs, small_disk: Path) -> None:
    with zipfile.ZipFile(s3.runner.folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(6 * MIB))
    ended = s3.fetch(str(s3.runner.folder / "x.zip"), TAO_WORK_DIR=str(small_disk / "work"))
    refused(ended, "cannot unpack", "No space left", "free space")
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
    assert "free space" in ended.log
    assert files(small_disk / KEY) == {"out/small": 2}


def test_a_full_folder_for_temporary_files_lets_no_half_file_through(
    s3: S3Jobs, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The aws command is given copies of small files, and some of them do not fit."""
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    for name, value in s3.bucket.env.items():
        monkeypatch.setenv(name, value)
    data, kept, seen = os.urandom(900_000), s3.bucket.uri("kept"), set[int]()
    for index in range(6):
        (s3.runner.folder / str(index)).write_bytes(data)

    def look() -> None:
        seen.update(len(s3.bucket.get(key)) for key in s3.bucket.keys(""))

    s3.faults.rules.append(lambda request: Fault(before=look))
    store = CliStore(f"{aws_alone(s3.runner.folder / 'aws')}/aws", s3.bucket.env)
    with contextlib.suppress(StorageError):  # in the end there may be room for none
        store.send([(str(s3.runner.folder / str(n)), f"{kept}/{n}", False, lambda: None) for n in range(6)])
    look()
    assert seen == {len(data)}


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
