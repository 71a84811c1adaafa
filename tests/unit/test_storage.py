"""A storage scheme is one module: what it is registered with, launcher, gates and jobs know it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import toy_scheme
from gate_tools import launch, resolved
from opened_platforms import process_at
from runner_tools import Runner, old_python

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.checks.credentials import platform_needs, secret_values
from prefect_tao.preflight.checks.visibility import used_schemes
from prefect_tao.preflight.gates import run_gate
from prefect_tao.runner.entrypoint import build_entrypoint, program_files
from prefect_tao.runner.inside import schemes
from prefect_tao.runner.zipped import zipped
from prefect_tao.storage import known_schemes, locations
from prefect_tao.storage.objects import NotThere, ObjectStore

MIB = 1 << 20


@pytest.fixture
def box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a bucket of toys; the scheme is registered for this test."""
    monkeypatch.setattr(schemes, "REGISTERED", {})
    known_schemes.register(toy_scheme)
    place = tmp_path / "toys" / "box"
    (place / "set" / "deep").mkdir(parents=True)
    (place / "set" / "a.txt").write_bytes(b"first")
    (place / "set" / "deep" / "b.txt").write_bytes(b"second" * 100)
    (place / "set" / "large.bin").write_bytes(b"0123456789abcdef" * (40 * MIB // 16))
    return place


@pytest.fixture
def keys(box: Path) -> dict[str, str]:
    return {"TOY_KEY": "sesame", "TOY_ROOT": str(box.parent)}


def test_what_was_there_before_is_known_by_its_module() -> None:
    assert {scheme.name for scheme in known_schemes.everything()} >= {"s3", "hf_model", "hf_dataset", "ngc"}
    assert known_schemes.scheme_for("/a/path") is None
    assert known_schemes.scheme_for("file:///a/path") is None
    assert known_schemes.scheme_for("toy://box/x") is None
    assert known_schemes.scheme_for("not-a.name://box/x") is None


# -- the launcher ------------------------------------------------------------------------------------------------------


def test_the_launcher_looks_lists_reads_and_downloads(keys: dict[str, str], box: Path, tmp_path: Path) -> None:
    assert locations.exists("toy://box/set", keys)
    assert not locations.exists("toy://box/se", keys)
    files = locations.listing("toy://box/set", keys)
    assert [file.name for file in files] == ["a.txt", "deep/b.txt", "large.bin"]
    store = ObjectStore(keys)
    assert store.entries("toy://box/set") == ["toy://box/set/a.txt", "toy://box/set/deep/", "toy://box/set/large.bin"]
    assert store.read("toy://box/set/a.txt", 3) == b"fir"
    assert store.measure("toy://box/set/deep", 10**6) == (600, 1, True)
    assert store.try_writing("toy://box/results")
    assert not list(box.rglob(".prefect-tao-probe"))
    locations.download(files, tmp_path / "copies", keys)
    for file in files:
        assert (tmp_path / "copies" / file.name).read_bytes() == (box / "set" / file.name).read_bytes()
    assert not list((tmp_path / "copies").rglob("*.part*"))


def test_the_launcher_uploads(keys: dict[str, str], box: Path, tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"new")
    done: list[str] = []
    store = ObjectStore(keys).store("toy://box")
    store.send([(str(tmp_path / "made"), "toy://box/sent/made", True, lambda: done.append("made"))])
    assert (box / "sent" / "made").read_bytes() == b"new"
    assert done == ["made"]


def test_what_the_scheme_refuses_is_said_in_its_words(keys: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="stays closed") as caught:
        locations.exists("toy://box/set", {**keys, "TOY_KEY": "please"})
    assert caught.value.remedy == "set TOY_KEY"
    with pytest.raises(NotThere):
        ObjectStore(keys).read("toy://box/none", 1)
    with pytest.raises(InvalidInput, match="names no bucket"):
        locations.exists("toy://", keys)


async def test_a_platform_answers_for_it(keys: dict[str, str], tmp_path: Path) -> None:
    platform = process_at(tmp_path / "home")
    platform.take_credentials(keys)
    assert await platform.check_path("toy://box/set")
    assert await platform.list_path("toy://box/set/deep") == ["toy://box/set/deep/b.txt"]


# -- the gates ---------------------------------------------------------------------------------------------------------


async def look(credentials: dict[str, str], uri: str) -> Finding:
    ask = resolved("kubernetes", {"key": uri})
    [found] = await run_gate("datasets", launch("kubernetes", ask=ask, credentials=credentials))
    return found


async def test_the_gates_look_into_it_and_ask_for_its_keys(keys: dict[str, str]) -> None:
    assert (await look(keys, "toy://box/set")).level is Level.OK
    assert (await look(keys, "toy://box/none")).level is Level.FAIL
    closed = await look({}, "toy://box/set")
    assert (closed.level, closed.message) == (Level.UNKNOWN, "input key: toy://box/set: not checked: TOY_KEY missing")
    ask = resolved("kubernetes", {"key": "toy://box/set"})
    credentials = await run_gate("platform_credentials", launch("kubernetes", ask=ask))
    assert [finding.subject for finding in credentials] == ["credential TOY_KEY"]
    assert credentials[0].level is Level.FAIL


async def test_results_there_are_tried_and_its_keys_reach_the_job(keys: dict[str, str], box: Path) -> None:
    specs = {"results_dir": "toy://box/kept"}
    request = JobRequest.build(command="true", specs=specs, outputs={"results_dir": {}})
    launched = launch("kubernetes", ask=resolved("kubernetes", request=request, spec=specs), credentials=keys)
    findings = await run_gate("datasets", launched)
    assert "results results_dir: toy://box/kept can be written" in [finding.message for finding in findings]
    assert not (box / "kept" / ".prefect-tao-probe").exists()
    entry = launched.catalog.platforms["kubernetes"]
    assert [scheme.keys for scheme in used_schemes(request, entry, keys)] == [("TOY_KEY",)]
    assert [need.preferred for need in platform_needs(launched.catalog, "kubernetes", ["toy://box/x"])] == ["TOY_KEY"]
    assert set(secret_values(launched.catalog, keys)) == {"TOY_KEY"}


# -- the job -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", [False, True])
def test_a_job_fetches_and_keeps_there(runner: Runner, keys: dict[str, str], box: Path, script: bool) -> None:
    runner.python = runner.python if script else old_python() or runner.python
    specs = {"data": "toy://box/set", "out": "toy://box/kept"}
    command = "test -f {config_path} && cp work/inputs/data/set/deep/b.txt work/outputs/out/copy"
    entrypoint = build_entrypoint(
        command, specs=specs, inputs={"data": {"type": "folder"}}, outputs={"out": {}}, workdir=str(runner.folder)
    )
    ended = runner.run(entrypoint, script=script, **keys)
    assert ended.code == 0, ended.log
    assert (runner.work / "inputs/data/set/large.bin").read_bytes() == (box / "set/large.bin").read_bytes()
    assert (box / "kept" / "copy").read_bytes() == b"second" * 100
    assert ended.marker["outputs"] == {"out": "toy://box/kept"}


def test_a_job_that_may_not_go_there_says_so(runner: Runner, keys: dict[str, str]) -> None:
    inputs = {str(runner.folder / "x"): "toy://box/set/a.txt"}
    ended = runner.run(build_entrypoint("true", inputs=inputs), **{**keys, "TOY_KEY": ""})
    assert ended.code == 125
    assert "the toy box stays closed; set TOY_KEY" in ended.marker["error"]


def test_the_module_travels_in_every_form(box: Path) -> None:
    assert b"prefect_tao" not in program_files()["inside/stores/toy.py"]
    assert b"the toy box" in zipped()


def test_another_distribution_adds_its_scheme_by_an_entry_point(tmp_path: Path) -> None:
    shutil.copy(toy_scheme.__file__, tmp_path / "their_toys.py")
    facts = tmp_path / "their_toys-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: their-toys\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[prefect_tao.storage]\ntoy = their_toys\n")
    code = "from prefect_tao.runner.entrypoint import program_files\nfrom prefect_tao.storage import known_schemes\n"
    code += "print(known_schemes.is_seen('toy://box/x'), 'inside/stores/toy.py' in program_files())"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_results_cannot_be_kept_where_things_are_only_fetched() -> None:
    with pytest.raises(InvalidInput, match="cannot be kept at"):
        build_entrypoint("true {config_path}", specs={"out": "hf_model://a/b"}, outputs={"out": {}})
