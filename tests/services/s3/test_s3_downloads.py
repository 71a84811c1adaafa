"""Inputs come from S3 whole and verified, whatever the network does; what cannot come says what to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from http_faults import Fault, Request
from runner_tools import Bucket, Ended, Runner, python_of, until
from s3_jobs import MIB, S3Jobs, refused

from prefect_tao.runner.entrypoint import build_entrypoint
from prefect_tao.runner.inside import lock, retry
from prefect_tao.runner.inside.failures import StorageError
from prefect_tao.runner.inside.stores.s3 import SCHEME

pytestmark = pytest.mark.xdist_group("s3")

ODD_NAMES = ("plain.jpg", "with space.jpg", "ünï 漢字 +&?#[1]*.jpg", "deep/er/x'y\"z.jpg", "empty", "100%.txt")


def large(s3: S3Jobs, key: str = "set/large.bin", parts: int = 5) -> bytes:
    """A large object, uploaded in parts of 8 MiB as all tools do."""
    from boto3.s3.transfer import TransferConfig  # type: ignore[import-untyped]

    data = os.urandom(MIB) * (8 * parts) + b"the end"
    path = s3.runner.folder / "large"
    path.write_bytes(data)
    s3.bucket.client.upload_file(str(path), s3.bucket.name, key, Config=TransferConfig(multipart_chunksize=8 * MIB))
    path.unlink()
    return data


# -- whole -------------------------------------------------------------------------------------------------------------


def test_odd_names_empty_objects_and_large_ones_arrive_as_they_are(either: S3Jobs) -> None:
    wanted = {name: b"" if name == "empty" else name.encode() * 7 for name in ODD_NAMES}
    for name, content in wanted.items():
        either.bucket.put(f"set/{name}", content)
    wanted["large.bin"], wanted["medium.bin"] = large(either), large(either, "set/medium.bin", parts=2)
    ended = either.fetch(either.bucket.uri("set"))
    assert ended.code == 0, ended.log
    assert either.content() == wanted
    assert either.leftovers == []
    moved = sum(request.sent for request in either.faults.reads if "medium" in request.path)
    assert moved == len(wanted["medium.bin"]), "not a byte came twice"


def test_bodies_that_break_off_are_taken_up_where_they_broke(s3: S3Jobs) -> None:
    data, small = large(s3), os.urandom(300_000)
    s3.bucket.put("set/small.bin", small)
    s3.faults.times(6, Fault(cut_after=3 * MIB), lambda request: request.is_object and "large" in request.path)
    s3.faults.times(2, Fault(cut_after=100_000), lambda request: request.is_object and "small" in request.path)
    ended = s3.fetch(s3.bucket.uri("set"))
    assert ended.code == 0, ended.log
    assert s3.content() == {"large.bin": data, "small.bin": small}
    moved = sum(request.sent for request in s3.faults.reads if "large" in request.path)
    assert moved == len(data), "not a byte came twice"


def test_a_connection_that_breaks_is_no_end_for_the_aws_command_either(s3: S3Jobs) -> None:
    s3.use_aws()
    data = large(s3)
    s3.faults.times(2, Fault(cut_after=MIB), lambda request: request.is_object)
    assert s3.fetch(s3.bucket.uri("set")).code == 0
    assert s3.content() == {"large.bin": data}


def test_a_killed_download_is_taken_up_by_the_next_attempt(s3: S3Jobs) -> None:
    data = large(s3, parts=8)
    s3.faults.rules.append(lambda request: Fault(delay=60) if is_late(request) else None)
    job = s3.start_fetch(s3.bucket.uri("set/large.bin"))
    until(lambda: len(parts_log(s3)) >= 4, "the first parts")
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    assert not list(s3.runner.work.rglob("large.bin"))
    s3.faults.rules.clear()
    s3.faults.requests.clear()
    ended = s3.fetch(s3.bucket.uri("set/large.bin"), TAO_ATTEMPT="2")
    assert ended.code == 0, ended.log
    assert s3.data.read_bytes() == data
    assert sum(request.sent for request in s3.faults.reads) <= len(data) - 4 * 8 * MIB
    assert s3.leftovers == []


def is_late(request: Request) -> bool:
    """Whether a request asks for something beyond the first four parts."""
    start = request.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")[0]
    return request.is_object and int(start) >= 4 * 8 * MIB


def parts_log(s3: S3Jobs) -> list[str]:
    return [line for path in s3.runner.work.rglob("*.parts") for line in path.read_text().splitlines()]


def test_a_piece_that_rotted_on_disk_is_not_taken_up(s3: S3Jobs) -> None:
    data = large(s3, parts=8)
    s3.faults.rules.append(lambda request: Fault(delay=60) if is_late(request) else None)
    job = s3.start_fetch(s3.bucket.uri("set/large.bin"))
    until(lambda: len(parts_log(s3)) >= 4, "the first parts")
    job.process.send_signal(signal.SIGKILL)
    job.process.wait()
    s3.faults.rules.clear()
    [part] = s3.runner.work.rglob("*.part")
    with part.open("r+b") as file:
        file.write(b"rotten")
    assert s3.fetch(s3.bucket.uri("set/large.bin"), TAO_ATTEMPT="2").code == 0
    assert s3.data.read_bytes() == data


def test_a_store_that_does_not_tell_of_parts_is_not_asked_twice(s3: S3Jobs) -> None:
    data = large(s3)
    refuse = Fault(status=501, code="NotImplemented")
    s3.faults.rules.append(lambda request: refuse if "partNumber" in request.path else None)
    ended = s3.fetch(s3.bucket.uri("set/large.bin"))
    assert ended.code == 0, ended.log
    assert s3.data.read_bytes() == data
    assert len([request for request in s3.faults.requests if "partNumber" in request.path]) == 1


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_body_that_was_altered_on_its_way_is_fetched_again(s3: S3Jobs, size: str) -> None:
    data = large(s3) if size == "large" else b"some content"
    if size == "small":
        s3.bucket.put("set/large.bin", data)
    s3.faults.times(1, Fault(alter=True), lambda request: request.is_object)
    ended = s3.fetch(s3.bucket.uri("set/large.bin"))
    assert ended.code == 0, ended.log
    assert s3.data.read_bytes() == data


def alter_always(s3: S3Jobs, name: str) -> None:
    s3.faults.rules.append(lambda request: Fault(alter=True) if request.is_object and name in request.path else None)


@pytest.mark.parametrize("size", ["small", "large"])
def test_an_object_that_is_always_altered_is_refused_where_etags_are_checksums(either: S3Jobs, size: str) -> None:
    """Another object of this store had the MD5 that its ETag shows, so the one that has not is damaged."""
    either.bucket.put_bare("set/good", b"good")
    if size == "small":
        either.bucket.put_bare("set/bad", b"some content")
    else:
        large(either, "set/bad")
    alter_always(either, "bad")
    refused(either.fetch(either.bucket.uri("set")), either.bucket.uri("set/bad"), "checksum", "damaged")
    assert not [path for path in either.runner.work.rglob("bad*") if path.is_file()]


def test_an_etag_that_has_not_been_seen_to_be_a_checksum_is_a_warning(either: S3Jobs) -> None:
    """There are stores whose ETags look like an MD5 and are none: their objects can be had."""
    uri = either.bucket.put_bare("set/x", b"content")
    alter_always(either, "/x")
    ended = either.fetch(uri)
    assert ended.code == 0, ended.log
    assert f"WARNING: {uri} came twice with the MD5" in ended.log


def test_a_checksum_that_the_store_keeps_decides_alone(s3: S3Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "TRIES", 2)
    s3.bucket.client.put_object(Bucket=s3.bucket.name, Key="set/x", Body=b"content", ChecksumAlgorithm="CRC32")
    target, store = s3.runner.folder / "x", SCHEME.connect(s3.bucket.env, print)
    alter_always(s3, "/x")
    with pytest.raises(StorageError, match=r"checksum.*damaged"):
        store.fetch(s3.bucket.uri("set/x"), str(target))
    assert not target.exists()
    s3.faults.rules.clear()
    store.fetch(s3.bucket.uri("set/x"), str(target))
    assert target.read_bytes() == b"content"


def test_a_store_that_is_busy_is_asked_again(either: S3Jobs) -> None:
    for index in range(6):
        either.bucket.put(f"set/{index}", b"x")
    either.faults.times(5, Fault(status=503, code="SlowDown"))
    ended = either.fetch(either.bucket.uri("set"))
    assert ended.code == 0, ended.log
    assert len(either.content()) == 6


# -- what changes ------------------------------------------------------------------------------------------------------


def test_an_object_that_changes_during_its_download_comes_as_one_of_the_two(either: S3Jobs) -> None:
    large(either)
    new = os.urandom(MIB) * 45
    change = Fault(before=lambda: either.bucket.put("set/large.bin", new))
    either.faults.times(1, change, lambda request: request.is_object and not request.headers["Range"].endswith("=0-"))
    ended = either.fetch(either.bucket.uri("set/large.bin"))
    assert ended.code == 0, ended.log
    assert either.data.read_bytes() == new
    assert "changes while" in ended.log
    assert either.leftovers == []


def test_an_object_that_never_rests_is_refused(s3: S3Jobs) -> None:
    uri, count = s3.bucket.put("set/x", b"0"), iter(range(1, 1000))
    change = Fault(before=lambda: s3.bucket.put("set/x", b"%d" % next(count)))
    s3.faults.rules.append(lambda request: change if request.is_object else None)
    refused(s3.fetch(uri), uri, "changes all the time", "launch when it is complete")


def test_new_content_of_the_same_size_is_never_taken_for_the_old(either: S3Jobs) -> None:
    uri = either.bucket.put("set/x", b"old")
    assert either.fetch(uri).code == 0
    either.bucket.put("set/x", b"new")
    assert either.fetch(uri, TAO_ATTEMPT="2").code == 0
    assert either.data.read_bytes() == b"new"


def test_what_is_gone_from_the_store_is_gone_from_the_next_attempt(either: S3Jobs) -> None:
    """A broken image that was deleted in the bucket must not come back; what others put there stays."""
    for name in ("a", "broken", "sub/b", "now"):
        either.bucket.put(f"set/{name}", b"1")
    assert either.fetch(either.bucket.uri("set")).code == 0
    (either.data / "made by the command").touch()
    for name in ("broken", "sub/b", "now"):
        either.bucket.client.delete_object(Bucket=either.bucket.name, Key=f"set/{name}")
    either.bucket.put("set/now/a folder", b"1")
    ended = either.fetch(either.bucket.uri("set"), TAO_ATTEMPT="2")
    assert ended.code == 0, ended.log
    assert sorted(either.content()) == ["a", "made by the command", "now/a folder"]


def test_a_file_that_somebody_wrote_to_is_fetched_again(s3: S3Jobs) -> None:
    uri = s3.bucket.put("set/x", b"content")
    assert s3.fetch(uri).code == 0
    s3.data.write_bytes(b"scratch")
    assert s3.fetch(uri, TAO_ATTEMPT="2").code == 0
    assert s3.data.read_bytes() == b"content"


# -- refused, with what to do ------------------------------------------------------------------------------------------


def test_a_bucket_that_is_not_there_says_so(either: S3Jobs) -> None:
    uri = f"s3://no-{either.bucket.name}/x"
    refused(either.fetch(uri), uri, "NoSuchBucket", "create it")


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "InvalidAccessKeyId", "ACCESS_KEY and SECRET_KEY"),
        (403, "SignatureDoesNotMatch", "ACCESS_KEY and SECRET_KEY"),
        (403, "RequestTimeTooSkewed", "clock"),
        (400, "AuthorizationHeaderMalformed", "CLOUD_REGION"),
    ],
)
def test_a_refusal_of_the_store_is_its_last_word_and_says_what_to_do(
    either: S3Jobs, status: int, code: str, advice: str
) -> None:
    either.faults.rules.append(lambda request: Fault(status=status, code=code))
    refused(either.fetch(either.bucket.uri("x")), code, advice)


def test_a_store_that_stays_busy_is_given_up_after_a_while(s3: S3Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "TRIES", 2)
    s3.faults.rules.append(lambda request: Fault(status=503, code="SlowDown"))
    with pytest.raises(StorageError, match=r"SlowDown.*later") as caught:
        SCHEME.connect(s3.bucket.env, print).fetch(s3.bucket.uri("x"), str(s3.runner.folder / "x"))
    assert not caught.value.final


def test_half_a_pair_of_keys_names_the_other_half(either: S3Jobs) -> None:
    ended = either.fetch(either.bucket.uri("x"), AWS_SECRET_ACCESS_KEY=None)
    refused(ended, "set both ACCESS_KEY and SECRET_KEY")
    assert "missing: aws_secret_access_key" in ended.marker["error"].lower()


def test_missing_keys_and_wrong_addresses_say_what_to_set(s3: S3Jobs) -> None:
    none = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
    refused(s3.fetch(s3.bucket.uri("x"), **none), "credentials", "ACCESS_KEY")
    refused(s3.fetch(s3.bucket.uri("x"), AWS_ENDPOINT_URL="minio:9000"), "S3_ENDPOINT_URL", "https://")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (("set/good", "set/../../evil"), ("evil", "leave its folder")),
        (("set/a/b", "set/a"), ("set/a", "both as a file and as a folder")),
        (("set/a/b", "set/a//b"), ("set/a//b", "one file here")),
    ],
)
def test_names_that_no_folder_can_hold_are_refused(
    either: S3Jobs, keys: tuple[str, ...], words: tuple[str, ...]
) -> None:
    for key in keys:
        either.bucket.client.put_object(Bucket=either.bucket.name, Key=key, Body=b"x")
    refused(either.fetch(either.bucket.uri("set/")), *words)
    assert not [path for path in either.runner.folder.rglob("*") if path.name in ("good", "evil")]


# -- only what is named ------------------------------------------------------------------------------------------------


def selective(s3: S3Jobs, annotation: str, text: str, choice: dict[str, Any]) -> Ended:
    specs = {"ann": s3.bucket.put(annotation, text.encode()), "data": s3.bucket.uri("media/")}
    rules = {"ann": {}, "data": {"type": "folder", "selective": {"annotation": "ann", **choice}}}
    return s3.runner.run(build_entrypoint("true", specs=specs, inputs=rules), **s3.bucket.env)


@pytest.mark.parametrize(("form", "way"), [("json", "boto3"), ("jsonl", "boto3"), ("csv", "boto3"), ("json", "aws")])
def test_an_annotation_of_any_form_names_its_media(s3: S3Jobs, form: str, way: str) -> None:
    if way == "aws":
        s3.use_aws()
    names = ["a.mp4", "sub/b c.mp4", *(f"{index}.mp4" for index in range(5))]
    for name in (*names, "unused.mp4"):
        s3.bucket.put(f"media/{name}", name.encode())
    # A name may be a whole location, or start from here.
    listed = [*(f"./{name}" for name in names[1:]), s3.bucket.uri("media/a.mp4")]
    records = [{"video": name, "text": "x"} for name in listed]
    text = {
        "json": json.dumps(records),
        "jsonl": "\n".join(map(json.dumps, records)) + "\n\n",
        "csv": "text,video\n" + "".join(f"x,{name}\n" for name in listed),
    }[form]
    ended = selective(s3, f"ann.{form}", text, {"format": form, "keys": ["video"]})
    assert ended.code == 0, ended.log
    assert s3.content() == {name: name.encode() for name in names}


def test_the_aws_command_fetches_only_what_is_named_also_when_that_is_nearly_all(s3: S3Jobs) -> None:
    s3.use_aws()
    names = [f"{index}.mp4" for index in range(160)]
    for name in names:
        s3.bucket.put(f"media/{name}", name.encode())
    ended = selective(s3, "ann.json", json.dumps([{"video": name} for name in names[:150]]), {"keys": ["video"]})
    assert ended.code == 0, ended.log
    assert sorted(s3.content()) == sorted(names[:150])
    assert len([request for request in s3.faults.reads if "/media/" in request.path]) == 150


def test_media_that_is_missing_is_named(s3: S3Jobs) -> None:
    s3.bucket.put("media/a.mp4", b"a")
    text = json.dumps([{"video": "a.mp4"}, {"video": "b.mp4"}])
    refused(selective(s3, "ann.json", text, {"keys": ["video"]}), "media/b.mp4", "nothing at")
    refused(selective(s3, "ann.json", text, {"keys": ["image"]}), "ann.json", "names no media", "keys")
    refused(selective(s3, "ann.json", "{", {"keys": ["image"]}), "ann.json", "not json")


# -- where the store is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["default", "profile own"])
def test_a_store_of_ones_own_is_asked_by_path_and_region(either: S3Jobs, profile: str) -> None:
    """Also where the image has settings of its own, which stay."""
    (either.runner.folder / ".aws").mkdir()
    settings = f"[{profile}]\noutput = text\nsdk_ua_app_id = own\ns3 =\n  addressing_style = virtual\n  x = y\n"
    (either.runner.folder / ".aws" / "config").write_text(settings)
    env = {"AWS_ENDPOINT_URL": f"http://localhost:{either.faults.port}", "AWS_REGION": "eu-north-1"}
    env |= {"AWS_PROFILE": "own"} if profile != "default" else {}
    ended = either.fetch(either.bucket.put("x", b"1"), **env)
    assert ended.code == 0, ended.log
    requests = either.faults.requests
    assert {request.path.split("/")[1].partition("?")[0] for request in requests} == {either.bucket.name}
    assert all("eu-north-1" in request.headers["Authorization"] for request in requests)
    assert all("app/own" in request.headers["User-Agent"] for request in requests)


# -- the cache ---------------------------------------------------------------------------------------------------------


def job_with_cache(s3: S3Jobs, name: str) -> tuple[S3Jobs, dict[str, str | None]]:
    """Another job with a place of its own and the same cache."""
    runner = Runner(s3.runner.folder / name)
    runner.python, runner.env["PATH"] = s3.runner.python, s3.runner.env["PATH"]
    return S3Jobs(runner, s3.bucket, s3.faults), {"TAO_CACHE_DIR": str(s3.runner.folder / "cache")}


def test_a_second_job_finds_the_data_in_the_cache(either: S3Jobs) -> None:
    wanted = {f"{index}.jpg": b"%d" % index for index in range(6)}
    for name, content in wanted.items():
        either.bucket.put(f"set/{name}", content)
    wanted["large.bin"] = large(either)
    for name in ("one", "two"):
        either.faults.requests.clear()
        job, env = job_with_cache(either, name)
        ended = job.fetch(either.bucket.uri("set"), **env)
        assert ended.code == 0, ended.log
        assert job.content() == wanted
    assert either.faults.reads == []


def test_the_cache_never_serves_what_is_out_of_date_or_was_written_to(either: S3Jobs) -> None:
    uri = either.bucket.put("set/x.jpg", b"old")
    job, env = job_with_cache(either, "one")
    assert job.fetch(uri, **env).code == 0
    assert job.data.suffix == ".jpg"
    assert job.data.resolve().suffix == ".jpg"
    either.bucket.put("set/x.jpg", b"new")
    for name in ("two", "three"):
        job, env = job_with_cache(either, name)
        assert job.fetch(uri, **env).code == 0
        assert job.data.read_bytes() == b"new"
        job.data.write_bytes(b"bad")  # through the link, into the cache


def test_nodes_and_jobs_that_come_together_fetch_once(s3: S3Jobs) -> None:
    for index in range(10):
        s3.bucket.put(f"set/{index}", b"x" * 1000)
    s3.faults.rules.append(lambda request: Fault(delay=0.2) if request.is_object else None)
    started = [
        (job, job.start_fetch(s3.bucket.uri("set"), **env)) for job, env in (job_with_cache(s3, n) for n in "abc")
    ]
    for job, running in started:
        ended = running.end()
        assert ended.code == 0, ended.log
        assert len(job.content()) == 10
    assert len(s3.faults.reads) == 10


def test_nodes_that_share_a_work_folder_fetch_once(s3: S3Jobs) -> None:
    for index in range(10):
        s3.bucket.put(f"set/{index}", b"x" * 1000)
    s3.faults.rules.append(lambda request: Fault(delay=0.2) if request.is_object else None)
    running = [s3.start_fetch(s3.bucket.uri("set"), NODE_RANK=str(rank)) for rank in range(3)]
    assert [job.process.wait() for job in running] == [0, 0, 0]
    assert len(s3.faults.reads) == 10
    assert s3.leftovers == []


def test_a_lock_that_has_lost_its_holder_ends(s3: S3Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was killed leaves its lock behind; the others see that it is not touched any more."""
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.5)
    said: list[str] = []
    with lock.locked(str(s3.runner.folder), "data", said.append):
        [file] = s3.runner.folder.glob(".lock-*")
        shutil.copy(file, s3.runner.folder / "kept")
    shutil.move(s3.runner.folder / "kept", file)
    with lock.locked(str(s3.runner.folder), "data", said.append):
        assert file.exists()
    assert said == ["another process downloads data; waiting for it"]
    assert not file.exists()


def test_a_cache_of_no_use_is_done_without(s3: S3Jobs) -> None:
    uri = s3.bucket.put("set/x", b"1")
    (s3.runner.folder / "file").touch()
    ended = s3.fetch(uri, TAO_CACHE_DIR=str(s3.runner.folder / "file"))
    assert ended.code == 0, ended.log
    assert "the cache cannot take" in ended.log
    assert s3.data.read_bytes() == b"1"


def test_a_plain_command_reads_through_the_cache(s3: S3Jobs, tmp_path: Path) -> None:
    bucket: Bucket = s3.bucket
    bucket.put("set/a/x", b"hello")
    inputs = {str(tmp_path / "in" / "x"): bucket.uri("set/a/x"), str(tmp_path / "in" / "set"): bucket.uri("set")}
    entrypoint = build_entrypoint(f"cat {tmp_path}/in/x {tmp_path}/in/set/a/x", inputs=inputs)
    for attempt in ("1", "2"):
        env = {"TAO_CACHE_DIR": str(tmp_path / "cache"), "TAO_ATTEMPT": attempt}
        ended = s3.runner.run(entrypoint, **bucket.env, **env)
        assert "hellohello" in ended.log, ended.log


def packed(path: Path, name: str, content: bytes) -> bytes:
    path.write_bytes(content)
    with tarfile.open(path.with_suffix(".tar"), "w") as archive:
        archive.add(path, name)
    return path.with_suffix(".tar").read_bytes()


def test_an_archive_in_the_cache_is_unpacked_for_each_job_and_anew_when_it_is_replaced(either: S3Jobs) -> None:
    for content in (b"old", b"new"):
        uri = either.bucket.put("set.tar", packed(either.runner.folder / "x", "code.py", content))
        for name in ("one", "two"):
            job, env = job_with_cache(either, name)
            assert job.fetch(uri, {"type": "folder"}, **env).code == 0
            assert yaml.safe_load(job.runner.spec())["data"].startswith(str(job.runner.work))
            assert job.content() == {"code.py": content}


# -- old and new Pythons -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_the_oldest_and_the_newest_python_fetch_and_keep(s3: S3Jobs, version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here: put python{version} on PATH, or install one with pyenv")
    s3.use_aws()
    s3.runner.python = python
    for index in range(5):
        s3.bucket.put(f"set/{index}", b"%d" % index)
    inputs, out = {str(s3.runner.folder / "in"): s3.bucket.uri("set")}, s3.runner.folder / "out"
    entrypoint = build_entrypoint(f"cp -r {s3.runner.folder}/in {out}", inputs=inputs, outputs=[str(out)])
    ended = s3.run(entrypoint)
    assert ended.code == 0, ended.log
    assert [key for key in s3.bucket.outputs() if key.startswith("out/")] == [f"out/{index}" for index in range(5)]
