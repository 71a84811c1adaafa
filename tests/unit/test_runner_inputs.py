"""Declared inputs are there, whole, before the command starts; one that cannot be had ends the job by its name."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from http_faults import Faults
from runner_tools import Bucket, Ended, Runner, make_bucket, until, without_boto3

from prefect_tao.runner import inside
from prefect_tao.runner.entrypoint import build_entrypoint
from prefect_tao.runner.inside.parallel import run_parallel


def run(runner: Runner, value: Any, rule: dict[str, Any] | None = None, **env: str | None) -> Ended:
    """A job whose spec has `value` at data, which is a declared input."""
    entrypoint = build_entrypoint("test -f {config_path}", specs={"data": value}, inputs={"data": rule or {}})
    return runner.run(entrypoint, **env)


def seen(runner: Runner) -> Any:
    """What the command's spec had at data."""
    return yaml.safe_load(runner.spec())["data"]


def refused(ended: Ended, *words: str) -> None:
    """The runner itself failed, in its phase inputs, and said why."""
    assert ended.code == 125, ended.log
    assert ended.marker["exit_code"] == 125
    assert ended.marker["phase"] == "inputs"
    assert ended.marker["ended_by"] == "none"
    for word in words:
        assert word in ended.marker["error"]
        assert word in ended.log


# -- places on this machine --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "file://", "lustre://", "slurm://"])
def test_a_file_of_this_machine_is_used_where_it_is(runner: Runner, prefix: str) -> None:
    data = runner.folder / "data.json"
    data.write_text("{}")
    assert run(runner, f"{prefix}{data}").code == 0
    assert seen(runner) == str(data)


def test_a_missing_file_ends_the_job_before_its_command(runner: Runner) -> None:
    missing = runner.folder / "missing.json"
    refused(run(runner, f"file://{missing}"), str(missing), "does not exist")
    assert not (runner.work / "spec.yaml").exists()


def test_all_inputs_are_looked_at_and_the_missing_one_is_named(runner: Runner) -> None:
    here = runner.folder / "here"
    here.mkdir()
    refused(run(runner, [str(here), "/nowhere/at/all", str(here)]), "/nowhere/at/all")


def test_an_optional_input_may_be_missing(runner: Runner) -> None:
    assert run(runner, "file:///nowhere/at/all", {"optional": True}).code == 0
    assert seen(runner) == "/nowhere/at/all"


@pytest.mark.parametrize("value", [None, "", "???"])
def test_an_input_without_a_value_is_left_alone(runner: Runner, value: str | None) -> None:
    assert run(runner, value).code == 0
    assert seen(runner) == value


def test_a_pattern_is_left_to_the_command(runner: Runner) -> None:
    assert run(runner, "/videos/*.mp4", {"type": "local_glob"}).code == 0
    assert seen(runner) == "/videos/*.mp4"


def test_words_of_a_list_are_no_files_and_stay(runner: Runner) -> None:
    data = runner.folder / "more.txt"
    data.touch()
    assert run(runner, ["red car", "person", str(data)], {"type": "list"}).code == 0
    assert seen(runner) == ["red car", "person", str(data)]
    refused(run(runner, ["red car", "/no/such/file"], {"type": "list"}), "/no/such/file")


def test_a_place_of_an_unknown_kind_is_refused(runner: Runner) -> None:
    refused(run(runner, "gopher://host/x"), "gopher://host/x", "s3://")


def test_pointers_name_inputs_deep_in_a_spec(runner: Runner) -> None:
    data = runner.folder / "images"
    data.mkdir()
    specs = {"dataset": {"sources": [{"dir": "/unchanged"}, {"dir": f"file://{data}"}]}}
    entrypoint = build_entrypoint("true", specs=specs, inputs={"dataset.sources[1].dir": {"type": "folder"}})
    assert runner.run(entrypoint).code == 0
    assert yaml.safe_load(runner.spec())["dataset"]["sources"] == [{"dir": "/unchanged"}, {"dir": str(data)}]


# -- archives ----------------------------------------------------------------------------------------------------------


def tar(path: Path, members: dict[str, bytes], *extra: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz" if path.name.endswith("gz") else "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in extra:
            archive.addfile(info)
    return path


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(("make", "name"), [(tar, "images.tar.gz"), (tar, "images.tar"), (zipped, "images.zip")])
def test_an_archive_becomes_the_folder_it_holds(runner: Runner, make: Callable[..., Path], name: str) -> None:
    archive = make(runner.folder / name, {"a/one.jpg": b"1", "two.jpg": b"2"})
    assert run(runner, str(archive), {"type": "folder"}).code == 0
    folder = Path(seen(runner))
    assert folder.name == "images"
    assert folder.is_relative_to(runner.work / "inputs" / "data")
    assert {path.name: path.read_bytes() for path in folder.rglob("*.jpg")} == {"one.jpg": b"1", "two.jpg": b"2"}


def test_an_archive_of_one_folder_of_its_own_name_is_that_folder(runner: Runner) -> None:
    archive = tar(runner.folder / "images.tgz", {"images/one.jpg": b"1"})
    assert run(runner, str(archive)).code == 0
    assert os.listdir(seen(runner)) == ["one.jpg"]


def test_an_archive_may_be_unpacked_for_its_parent(runner: Runner) -> None:
    archive = tar(runner.folder / "images.tgz", {"images/one.jpg": b"1"})
    assert run(runner, str(archive), {"extract_to_parent": True}).code == 0
    assert (Path(seen(runner)) / "images" / "one.jpg").exists()


def test_an_archive_that_is_wanted_as_a_file_is_left_alone(runner: Runner) -> None:
    archive = zipped(runner.folder / "model.zip", {"x": b"1"})
    assert run(runner, str(archive), {"type": "file"}).code == 0
    assert seen(runner) == str(archive)


def test_unpacked_files_belong_to_the_job_and_bear_no_special_rights(runner: Runner) -> None:
    info = tarfile.TarInfo("tool")
    info.mode, info.uid, info.gid, info.uname, info.gname = 0o4000, 1, 1, "daemon", "daemon"
    archive = tar(runner.folder / "x.tar", {}, info)
    assert run(runner, str(archive)).code == 0
    facts = os.stat(Path(seen(runner)) / "tool")
    assert (facts.st_uid, stat.S_IMODE(facts.st_mode)) == (os.getuid(), 0o600)


def test_an_archive_that_was_replaced_is_unpacked_anew_and_the_old_one_goes(runner: Runner) -> None:
    for attempt, content in (("1", b"old"), ("2", b"new")):
        archive = tar(runner.folder / "x.tar", {"x": content})
        assert run(runner, str(archive), TAO_ATTEMPT=attempt).code == 0
        found = [path for path in (runner.work / "inputs").rglob("x") if path.is_file()]
        assert [path.read_bytes() for path in found] == [content]
    assert run(runner, str(archive), TAO_ATTEMPT="3").code == 0
    assert seen(runner) == str(found[0].parent), "what is unpacked already stays"


EVIL: dict[str, Callable[[Path], Path]] = {
    "a tar member above": lambda f: tar(f / "x.tar.gz", {"good": b"1", "../../../evil": b"2"}),
    "an absolute tar member": lambda f: tar(f / "x.tar", {"good": b"1", str(f / "evil"): b"2"}),
    "a symbolic link": lambda f: tar(f / "x.tar", {"good": b"1"}, link("out", str(f))),
    "a hard link": lambda f: tar(f / "x.tar", {"good": b"1"}, link("out", str(f / "secret"), tarfile.LNKTYPE)),
    "a device": lambda f: tar(f / "x.tar", {"good": b"1"}, link("null", "", tarfile.CHRTYPE)),
    "a zip member above": lambda f: zipped(f / "x.zip", {"good": b"1", "a/../../../../evil": b"2"}),
    "an absolute zip member": lambda f: zipped(f / "x.zip", {"good": b"1", str(f / "evil"): b"2"}),
    "a link in a zip": lambda f: zip_link(f / "x.zip", str(f)),
}


def zip_link(path: Path, target: str) -> Path:
    info = zipfile.ZipInfo("out")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good", b"1")
        archive.writestr(info, target)
    return path


@pytest.mark.parametrize("kind", EVIL)
def test_an_archive_that_would_write_elsewhere_is_refused_as_a_whole(runner: Runner, kind: str) -> None:
    (runner.folder / "secret").write_text("secret")
    archive = EVIL[kind](runner.folder)
    refused(run(runner, str(archive)), str(archive), "refused")
    assert not list(runner.folder.rglob("evil"))
    assert not list((runner.work / "inputs").rglob("*good*")), "nothing of it is left behind"


@pytest.mark.parametrize("name", ["x.tar.gz", "x.zip"])
def test_a_damaged_archive_is_refused_by_name(runner: Runner, name: str) -> None:
    make = zipped if name.endswith("zip") else tar
    archive = make(runner.folder / name, {"a": os.urandom(20_000)})
    data = bytearray(archive.read_bytes())
    data[9000:9100] = bytes(100)
    archive.write_bytes(data)
    refused(run(runner, str(archive)), "cannot unpack", name)
    assert not [path for path in (runner.work / "inputs").rglob("*") if path.is_file()]


# -- plain commands ----------------------------------------------------------------------------------------------------


def test_a_plain_command_finds_its_inputs_where_it_expects_them(runner: Runner) -> None:
    (runner.folder / "source").mkdir()
    (runner.folder / "source" / "x").write_text("hello")
    spot, file, empty = (runner.folder / "made" / name for name in ("train", "one.txt", "empty"))
    empty.mkdir(parents=True)
    here = runner.folder / "source"
    inputs = {str(spot): f"file://{here}", str(file): str(here / "x"), str(empty): str(here), str(here): str(here)}
    entrypoint = build_entrypoint(f"cat {spot}/x {file} {empty}/x", inputs=inputs)
    first, second = runner.run(entrypoint), runner.run(entrypoint)
    assert (first.code, second.code) == (0, 0)
    assert first.log.count("hello") == 3


def test_an_input_never_takes_the_place_of_something_else(runner: Runner) -> None:
    spot, source = runner.folder / "taken", runner.folder / "source"
    spot.mkdir()
    source.mkdir()
    (spot / "of the image").touch()
    refused(runner.run(build_entrypoint("true", inputs={str(spot): str(source)})), str(spot), "something else")


def test_a_plain_command_misses_its_input_by_name(runner: Runner) -> None:
    refused(runner.run(build_entrypoint("true", inputs={"/x/y": "/nowhere/at/all"})), "/nowhere/at/all")


# -- tools of the image ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "tool"), [("hf_model://org/m", "hf "), ("hf_dataset://org/d", "hf "), ("ngc://org/team/m:1.0", "ngc ")]
)
def test_a_hub_without_its_tool_names_the_tool(runner: Runner, uri: str, tool: str) -> None:
    entrypoint = build_entrypoint("true", specs={"model": {"weights": [uri]}})
    refused(runner.run(entrypoint, PATH="/nowhere"), uri, f"needs the {tool}command")


def fake_tool(folder: Path, name: str, text: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{text}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_a_hub_location_anywhere_in_a_spec_becomes_its_only_weights_file_or_its_folder(runner: Runner) -> None:
    record = runner.folder / "calls"
    folder = 'while [ "$1" != --local-dir ]; do shift; done; mkdir -p "$2/sub"'
    path = fake_tool(runner.folder / "bin", "hf", f'echo "$@" >> {record}; {folder}; touch "$2/config.json" "$2/w.pth"')
    specs = {"a": ["hf_model://org/m/sub/w.pth@v2", "hf_dataset://org/d"], "b": {"c": "hf_model://org/m"}}
    ended = runner.run(build_entrypoint("true", specs=specs, inputs={"b.c": {"type": "folder"}}), PATH=path)
    assert ended.code == 0, ended.log
    spec = yaml.safe_load(runner.spec())
    assert spec["a"][0] == str(runner.work / "ptm" / "a_0_" / "w.pth_v2" / "w.pth")
    assert spec["b"]["c"] == str(runner.work / "inputs" / "b.c" / "m" / "w.pth")
    calls = sorted(record.read_text().splitlines())
    assert len(calls) == 3, "a location that is an input is fetched once"
    assert calls[0].startswith("download org/d --repo-type dataset --local-dir")
    assert calls[2].startswith("download org/m sub/w.pth --repo-type model --local-dir")
    assert calls[2].endswith("--revision v2")


def test_a_hub_that_hiccups_is_asked_again(runner: Runner) -> None:
    once = runner.folder / "once"
    path = fake_tool(runner.folder / "bin", "ngc", f"test -f {once} || {{ touch {once}; exit 3; }}; touch $6/w.tlt")
    assert runner.run(build_entrypoint("true", specs={"w": "ngc://org/m:1"}), PATH=path).code == 0
    assert yaml.safe_load(runner.spec())["w"].endswith("/ptm/w/m_1/w.tlt")


# -- object storage ----------------------------------------------------------------------------------------------------


def test_an_object_is_fetched(runner: Runner, bucket: Bucket) -> None:
    bucket.put("data/train.json2", b"another")
    uri = bucket.put("data/train.json", b"whole")
    assert run(runner, uri, {"type": "file"}, **bucket.env).code == 0
    assert Path(seen(runner)).read_bytes() == b"whole"
    assert Path(seen(runner)).name == "train.json"


def test_folders_of_many_small_objects_are_fetched_whole(runner: Runner, bucket: Bucket) -> None:
    bucket.put("set/train/", b"")  # consoles make such markers
    bucket.put("set/train2/other", b"not ours")
    for index in range(24):
        bucket.put(f"set/train/{index % 3}/{index}.jpg", b"x" * index)
    ended = run(runner, [bucket.uri("set/train"), bucket.uri("set/train/")], {"type": "folder"}, **bucket.env)
    assert ended.code == 0, ended.log
    for folder in seen(runner):
        files = {path.name: path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()}
        assert files == {f"{index}.jpg": index for index in range(24)}


def test_transfers_run_side_by_side_and_one_failure_does_not_stop_the_others() -> None:
    meeting, ended = threading.Barrier(4), []

    def transfer(number: int) -> None:
        meeting.wait(10)  # breaks unless all four are under way at once
        if number == 1:
            raise OSError("the second")
        time.sleep(0.05)
        ended.append(number)

    with pytest.raises(OSError, match="the second"):
        run_parallel([partial(transfer, number) for number in range(4)])
    assert sorted(ended) == [0, 2, 3]


def test_several_inputs_arrive_together_and_apart(runner: Runner, bucket: Bucket) -> None:
    uris = [bucket.put(f"{name}/data.json", name.encode()) for name in ("a", "b", "c")]
    specs = {"data": uris, "one": uris[0], "two": uris[1]}
    rules: dict[str, Any] = {"data": {"container_path": str(runner.folder / "at")}, "one": {}, "two": {}}
    ended = runner.run(build_entrypoint("true", specs=specs, inputs=rules), **bucket.env)
    assert ended.code == 0, ended.log
    spec = yaml.safe_load(runner.spec())
    assert [Path(path).read_text() for path in (*spec["data"], spec["one"], spec["two"])] == ["a", "b", "c", "a", "b"]
    assert spec["data"][2] == str(runner.folder / "at" / "2" / "data.json")


def test_inputs_whose_keys_come_to_the_same_never_meet(runner: Runner, bucket: Bucket) -> None:
    specs = {key: bucket.put(f"{index}/data.json", key.encode()) for index, key in enumerate(("a b", "a_b"))}
    ended = runner.run(build_entrypoint("true", specs=specs, inputs={key: {} for key in specs}), **bucket.env)
    assert ended.code == 0, ended.log
    spec = yaml.safe_load(runner.spec())
    assert {key: Path(spec[key]).read_text() for key in specs} == {key: key for key in specs}


def test_an_archive_in_the_store_is_unpacked(runner: Runner, bucket: Bucket) -> None:
    archive = tar(runner.folder / "images.tar.gz", {"one.jpg": b"1"})
    uri = bucket.put("sets/images.tar.gz", archive.read_bytes())
    assert run(runner, uri, {"type": "folder"}, **bucket.env).code == 0
    assert os.listdir(seen(runner)) == ["one.jpg"]


def test_parts_and_truncated_files_of_a_dead_attempt_are_never_taken_for_the_whole(
    runner: Runner, bucket: Bucket
) -> None:
    uri = bucket.put("set/big.bin", b"w" * 1000)
    folder = runner.work / "inputs" / "data"
    folder.mkdir(parents=True)
    (folder / "big.bin").write_bytes(b"x" * 10)
    (folder / "big.bin.0000.part").write_bytes(b"x" * 1000)
    assert run(runner, uri, **bucket.env).code == 0
    assert Path(seen(runner)).read_bytes() == b"w" * 1000


def test_a_whole_file_of_an_earlier_attempt_is_not_fetched_again(runner: Runner, bucket: Bucket) -> None:
    uri = bucket.put("set/big.bin", b"w" * 1000)
    assert run(runner, uri, **bucket.env).code == 0
    before = os.stat(seen(runner)).st_mtime_ns
    assert run(runner, uri, TAO_ATTEMPT="2", **bucket.env).code == 0
    assert os.stat(seen(runner)).st_mtime_ns == before


def test_nodes_that_share_a_work_folder_do_not_disturb_each_other(runner: Runner, bucket: Bucket) -> None:
    for index in range(20):
        bucket.put(f"set/{index}", b"x" * 1000)
    archive = tar(runner.folder / "images.tar.gz", {f"{index}.jpg": b"1" for index in range(50)})
    specs = {"data": bucket.uri("set"), "more": str(archive)}
    entrypoint = build_entrypoint("ls $(dirname {config_path})", specs=specs, inputs={"data": {}, "more": {}})
    jobs = [runner.start(entrypoint, NODE_RANK=str(rank), **bucket.env) for rank in range(3)]
    for job in jobs:
        ended = job.end()
        assert ended.code == 0, ended.log
    assert len(os.listdir(runner.work / "inputs" / "data" / "set")) == 20
    assert [path.name for path in (runner.work / "inputs" / "more").glob("*/*/*")] == ["images"]
    assert sorted(os.listdir(runner.base / "attempts")) == ["1.json", "1.rank1.json", "1.rank2.json"]


def test_nothing_at_a_location_ends_the_job_at_once(runner: Runner, bucket: Bucket) -> None:
    with Faults(int(bucket.env["AWS_ENDPOINT_URL"].rpartition(":")[2])) as way:
        env = {**bucket.env, "AWS_ENDPOINT_URL": way.endpoint}
        refused(run(runner, bucket.uri("none"), **env), bucket.uri("none"), "nothing at")
        assert run(runner, bucket.uri("none"), {"optional": True}, **env).code == 0
    assert len(way.requests) == 4, "each job looks once for an object and once for a folder: no use in trying again"


def test_a_bucket_that_is_not_there_is_the_stores_word_and_not_asked_twice(runner: Runner, bucket: Bucket) -> None:
    started = time.monotonic()
    refused(run(runner, "s3://no-such-bucket-here/x", **bucket.env), "s3://no-such-bucket-here/x", "NoSuchBucket")
    assert time.monotonic() - started < 4


def test_a_plain_command_gets_objects_and_folders_at_its_paths(runner: Runner, bucket: Bucket) -> None:
    bucket.put("set/a/x", b"hello")
    file, folder = runner.folder / "in" / "x.txt", runner.folder / "in" / "set"
    inputs = {str(file): bucket.uri("set/a/x"), str(folder): bucket.uri("set/"), "rel": bucket.uri("set/a/x")}
    entrypoint = build_entrypoint(f"cat {file} {folder}/a/x rel", inputs=inputs)
    ended = runner.run(entrypoint, **bucket.env)
    assert ended.code == 0, ended.log
    assert "hellohellohello" in ended.log


def test_only_the_media_that_an_annotation_names_are_fetched(runner: Runner, bucket: Bucket) -> None:
    for name in ("a.mp4", "sub/b.mp4", "unused.mp4"):
        bucket.put(f"media/{name}", name.encode())
    records = [{"video": "a.mp4", "text": "x"}, {"video": "sub/b.mp4"}, {"video": None}]
    specs = {"ann": bucket.put("ann.json", json.dumps(records).encode()), "media": bucket.uri("media/")}
    rules = {"ann": {}, "media": {"type": "folder", "selective": {"annotation": "ann", "keys": ["video"]}}}
    ended = runner.run(build_entrypoint("true", specs=specs, inputs=rules), **bucket.env)
    assert ended.code == 0, ended.log
    folder = Path(yaml.safe_load(runner.spec())["media"])
    assert {str(path.relative_to(folder)) for path in folder.rglob("*.mp4")} == {"a.mp4", "sub/b.mp4"}


def test_a_selective_input_on_this_machine_is_used_where_it_is(runner: Runner) -> None:
    rules = {"media": {"type": "folder", "selective": {"annotation": "ann"}}}
    specs = {"ann": "x.json", "media": f"file://{runner.folder}"}
    assert runner.run(build_entrypoint("true", specs=specs, inputs=rules)).code == 0
    assert yaml.safe_load(runner.spec())["media"] == str(runner.folder)
    missing = build_entrypoint("true", specs={**specs, "media": "/nowhere/at/all"}, inputs=rules)
    refused(runner.run(missing), "/nowhere/at/all")


def test_an_image_with_neither_boto3_nor_aws_is_told_so(runner: Runner, bucket: Bucket) -> None:
    runner.python = without_boto3(runner.folder / "venv")
    refused(run(runner, bucket.uri("x"), PATH="/nowhere", **bucket.env), "boto3", "the aws command", "in the image")


def test_a_python_started_without_its_packages_finds_boto3_when_it_needs_it(runner: Runner, bucket: Bucket) -> None:
    lean = runner.folder / "lean"
    lean.write_text(f'#!/bin/bash\nexec {runner.python} -I -S "$@"\n')
    lean.chmod(0o755)
    runner.python = str(lean)
    assert run(runner, bucket.put("x.json", b"1"), PATH="/nowhere", **bucket.env).code == 0


def test_any_other_package_is_found_likewise_and_one_that_is_missing_is_none(runner: Runner) -> None:
    program = "from inside.packages import package; print(package('pytest').__name__, package('no_such_thing'))"
    words = [runner.python, "-S", "-c", program]
    done = subprocess.run(words, cwd=Path(inside.__file__).parents[1], capture_output=True, text=True, timeout=60)
    assert done.stdout == "pytest None\n", done.stderr


def test_a_stop_does_not_wait_for_a_transfer(runner: Runner) -> None:
    """The store accepts the connection and then says nothing."""
    import signal
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        env = {**make_bucket().env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        entrypoint = build_entrypoint("true", specs={"data": "s3://b/x"}, inputs={"data": {}})
        job = runner.start(entrypoint, **env)
        connection, _ = silent.accept()
        with connection:
            started = time.monotonic()
            job.signal(signal.SIGTERM)
            ended = job.end()
    assert time.monotonic() - started < 3
    assert ended.code == 143
    assert (ended.marker["ended_by"], ended.marker["phase"], ended.marker["exit_code"]) == ("preempt", "inputs", 143)
    until(lambda: "stopped before the command" in job.log, "the reason")
