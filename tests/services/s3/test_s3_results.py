"""Results in S3 are found, listed and downloaded from here as they were kept there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from http_faults import Fault
from opened_platforms import process_at
from runner_tools import KEY
from s3_jobs import MIB, S3Jobs

from prefect_tao.jobs.errors import Elsewhere, InvalidInput, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.platform import Listing
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms import site_notes
from prefect_tao.platforms.files import BucketFiles
from prefect_tao.runner.entrypoint import build_entrypoint
from prefect_tao.runner.inside import retry
from prefect_tao.runner.inside.checkpoints import CHECKPOINTS
from prefect_tao.storage import locations
from prefect_tao.storage.objects import NotThere, ObjectStore
from prefect_tao.storage.result_files import Results

pytestmark = pytest.mark.xdist_group("s3")


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def test_what_a_job_kept_in_s3_is_listed_and_downloaded(
    s3: S3Jobs, credentials: dict[str, str], tmp_path: Path
) -> None:
    command = 'cd "$TAO_RESULTS_DIR"; mkdir "a b"; printf 12345 > "a b/ü.txt"; head -c 40000000 /dev/zero > model.pth'
    assert s3.run(build_entrypoint(command)).code == 0
    handle = JobHandle(target="process", key="ab" * 8, attempt=1, results=s3.bucket.uri(f"results/{KEY}"))
    found = Results(process_at(tmp_path / "home"), handle, credentials)
    files = await found.files()
    assert {file.name: file.size for file in files} == {"results_dir/a b/ü.txt": 5, "results_dir/model.pth": 40_000_000}
    s3.faults.times(2, Fault(cut_after=MIB), lambda request: request.is_object)
    told: list[str] = []
    await found.download(files, tmp_path / "copies", lambda file: told.append(file.name))
    assert content(tmp_path / "copies") == {
        "results_dir/a b/ü.txt": b"12345",
        "results_dir/model.pth": bytes(40_000_000),
    }
    assert sorted(told) == [file.name for file in files]
    s3.faults.requests.clear()
    await found.download(files, tmp_path / "copies")
    assert s3.faults.reads == [], "what is there stays"


async def test_storage_that_a_job_may_have_named_itself_is_not_read_with_the_keys_of_those_who_ask(
    s3: S3Jobs, credentials: dict[str, str], tmp_path: Path
) -> None:
    place = s3.bucket.uri("private")
    s3.bucket.put("private/secret.txt", b"1")
    platform = process_at(tmp_path / "home")
    asked = JobRequest.build(command="test -f {config_path}", specs={"out": place}, outputs={"out": {}})
    handle = (await launch(platform, asked, "ab" * 8, s3.bucket.env)).handle
    await Watcher(platform).wait(handle)
    named = Results(platform, handle, credentials)
    assert [file.name for file in await named.files()] == ["out/secret.txt"]
    platform.jobs_own_requests = True
    s3.faults.requests.clear()
    assert await named.files() == []
    assert s3.faults.requests == []


async def test_the_command_finds_an_output_of_a_job_here_that_is_kept_in_s3(
    s3: S3Jobs, credentials: dict[str, str], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.bucket.env.items():
        monkeypatch.setenv(name, value)
    platform = process_at(home)
    request = JobRequest.build(
        command='echo 1 > "$TAO_RESULTS_DIR/m.pth"; test -f {config_path}',
        specs={"results_dir": s3.bucket.uri("mine/exp")},
        outputs={"results_dir": {}},
    )
    handle = (await launch(platform, request, "cd" * 8, {})).handle
    await Watcher(platform).wait(handle)
    for name in s3.bucket.env:
        monkeypatch.delenv(name)
    words = [sys.executable, "-m", "prefect_tao.cli", "results", handle.name, "--download", str(tmp_path / "copies")]
    done = subprocess.run(words, env={**os.environ, **credentials}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert content(tmp_path / "copies") == {"results_dir/m.pth": b"1\n"}


def test_locations_in_s3_are_told_apart(s3: S3Jobs, credentials: dict[str, str]) -> None:
    for key in ("set/a", "set/b/c", "set-2/x", "one"):
        s3.bucket.put(key, key.encode())
    there = ("set", "set/", "set/a", "set/b", "one", "")
    assert all(locations.exists(s3.bucket.uri(key), credentials) for key in there)
    assert not any(locations.exists(s3.bucket.uri(key), credentials) for key in ("se", "set/a/", "on", "set/c"))
    assert [file.name for file in locations.listing(s3.bucket.uri("set"), credentials)] == ["a", "b/c"]
    assert [file.name for file in locations.listing(s3.bucket.uri("set"), credentials, skip=["b"])] == ["a"]
    assert [file.name for file in locations.listing(s3.bucket.uri("one"), credentials)] == ["one"]
    assert locations.listing(s3.bucket.uri("none"), credentials) == []


def test_looking_into_s3_tells_kinds_sizes_and_content(s3: S3Jobs, credentials: dict[str, str]) -> None:
    for key in ("set/a b", "set/ü/c", "set//odd", "set/", "set-2/x", "empty"):
        s3.bucket.client.put_object(Bucket=s3.bucket.name, Key=key, Body=b"" if key == "empty" else key.encode())
    store, uri = ObjectStore(credentials), s3.bucket.uri
    assert (store.kind(uri("set")), store.kind(uri("set/a b"))) == ("prefix", "object")
    assert store.entries(uri("set")) == store.entries(uri("set/")) == [uri("set/a b"), uri("set/ü/")]
    assert store.entries(uri("set/a b")) == [uri("set/a b")]
    assert (store.read(uri("set/a b"), 3), store.read(uri("set/a b"), 99)) == (b"set", b"set/a b")
    assert store.read(uri("empty"), 99) == b""
    assert store.measure(uri("set/a b"), 5) == (7, 1, True)
    assert store.measure(uri("set-2"), 100) == (7, 1, True)
    assert not store.measure(uri("set"), 5).whole
    with pytest.raises(NotThere):
        store.entries(uri("se"))
    with pytest.raises(NotThere):
        store.read(uri("set-2"), 1)


def test_keys_that_are_supplied_win_over_those_around(
    s3: S3Jobs, credentials: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    around = {
        "ACCESS_KEY_ID": "x",
        "SECRET_ACCESS_KEY": "x",
        "SESSION_TOKEN": "x",
        "ENDPOINT_URL": "http://127.0.0.1:9",
    }
    for name, value in around.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3.bucket.put("x", b"1")
    assert ObjectStore(credentials).exists(s3.bucket.uri("x"))
    assert all("Credential=test/" in request.headers["Authorization"] for request in s3.faults.requests)
    assert not any("X-Amz-Security-Token" in request.headers for request in s3.faults.requests)


async def test_a_process_platform_answers_for_s3_too(s3: S3Jobs, credentials: dict[str, str], tmp_path: Path) -> None:
    for key in ("set/a", "set/b/c", "set/skipped/d"):
        s3.bucket.put(key, b"1")
    platform, uri = process_at(tmp_path / "home"), s3.bucket.uri
    platform.take_credentials(credentials)
    assert await platform.check_path(uri("set"))
    assert not await platform.check_path(uri("none"))
    assert await platform.list_path(uri("set")) == [uri("set/a"), uri("set/b/"), uri("set/skipped/")]
    assert await platform.list_files(uri("set"), 3, 100, ["skipped"]) == Listing((uri("set/a"), uri("set/b/c")))
    with pytest.raises(InvalidInput, match="there is nothing"):
        await platform.list_path(uri("none"))


def test_what_cannot_be_had_says_what_to_do(
    s3: S3Jobs, credentials: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match="bucket does not exist") as caught:
        locations.listing("s3://no-such-bucket-here/x", credentials)
    assert "create it" in caught.value.remedy
    with pytest.raises(InvalidInput, match="names no bucket"):
        locations.exists("s3://", credentials)
    s3.bucket.client.put_object(Bucket=s3.bucket.name, Key="set/../evil", Body=b"x")
    with pytest.raises(InvalidInput, match="would leave"):
        locations.download(locations.listing(s3.bucket.uri("set/"), credentials), tmp_path / "copies", credentials)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of another key")
    for missing in ("ACCESS_KEY", "SECRET_KEY"):
        with pytest.raises(InvalidInput, match=f"^{missing} is not set"):
            locations.exists(s3.bucket.uri("x"), {**credentials, missing: ""})
    monkeypatch.setattr(retry, "TRIES", 1)
    with pytest.raises(Unreachable, match="listing"):
        locations.listing(s3.bucket.uri("x"), {**credentials, "S3_ENDPOINT_URL": "http://127.0.0.1:9"})


def test_a_result_that_changes_meanwhile_is_not_copied(s3: S3Jobs, credentials: dict[str, str], tmp_path: Path) -> None:
    s3.bucket.put("set/x", b"old")
    files = locations.listing(s3.bucket.uri("set"), credentials)
    s3.faults.times(1, Fault(before=lambda: s3.bucket.put("set/x", b"new")), lambda request: request.is_object)
    with pytest.raises(Unreachable, match="changed while it was being read") as caught:
        locations.download(files, tmp_path / "copies", credentials)
    assert caught.value.remedy == "ask again"
    assert content(tmp_path / "copies") == {}


def test_the_command_for_s3_that_the_page_shows_can_be_typed(s3: S3Jobs, credentials: dict[str, str]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    [block] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    s3.bucket.put("set/x", b"1")
    words = shlex.split(block.replace("\\\n", "").replace("my-bucket", s3.bucket.name))[1:]
    run = [sys.executable, "-m", "prefect_tao.cli", words[0], "--dry-run", *words[1:]]
    done = subprocess.run(run, env={**os.environ, **credentials}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert any(
        f"/{s3.bucket.name}/set" in request.path or "prefix=set" in request.path for request in s3.faults.requests
    )


def test_checkpoints_below_one_folder_are_removed_and_nothing_else(s3: S3Jobs, credentials: dict[str, str]) -> None:
    files = BucketFiles(credentials)
    lost, won = (s3.bucket.uri(f"results/{name}") for name in ("lost", "lost-not"))
    for folder in (lost, won):
        for name in ("train/model_epoch_001.pth", "train/log.txt"):
            files.write(f"{folder}/{name}", b"x")
    files.remove_below(lost, CHECKPOINTS)
    assert not files.exists(f"{lost}/train/model_epoch_001.pth")
    assert files.exists(f"{lost}/train/log.txt")
    assert files.exists(f"{won}/train/model_epoch_001.pth")


def test_in_a_bucket_too_the_first_site_that_takes_an_attempt_has_it(s3: S3Jobs, credentials: dict[str, str]) -> None:
    key = "ab" * 8
    files, results = BucketFiles(credentials), s3.bucket.uri(f"results/{key}")
    first, second = (
        JobHandle(target=f"local-docker/{site}", key=key, attempt=1, site=site, results=results) for site in "ab"
    )
    site_notes.leave(files, first)
    with pytest.raises(Elsewhere, match="local-docker/a"):
        site_notes.leave(files, second)
    assert [one.site for one in site_notes.others(files, [second])] == ["a"]
    site_notes.drop(files, first)
    site_notes.leave(files, second)
