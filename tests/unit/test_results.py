"""`prefect-tao results` lists what a job has left, wherever that is, and copies it whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from opened_platforms import process_at, process_settings

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.platform import Listing, Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.storage import locations
from prefect_tao.storage.result_files import Results

KEY = "cd" * 8


async def finished(home: Path, command: str, **fields: Any) -> tuple[ProcessPlatform, JobHandle]:
    platform = process_at(home)
    handle = (await launch(platform, JobRequest.build(command=command, **fields), KEY, {})).handle
    await Watcher(platform).wait(handle)
    return platform, handle


def results(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "prefect_tao.cli", "results", *words], capture_output=True, text=True, timeout=60
    )


def content(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


MAKE = (
    'cd "$TAO_RESULTS_DIR"; mkdir -p "a b" inputs; printf 12345 > "a b/ü.txt"; echo 1 > x; ln -s x y; echo > inputs/i'
)


async def test_the_files_of_a_job_are_listed_with_their_sizes(home: Path) -> None:
    _, handle = await finished(home, MAKE)
    done = results(handle.name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["5 B  results_dir/a b/ü.txt", "2 B  results_dir/x", "2 B  results_dir/y"]
    assert f"3 files, 9 B, in {handle.results}" in done.stderr


async def test_a_link_out_of_the_results_is_neither_listed_nor_followed(home: Path, tmp_path: Path) -> None:
    """A job chooses what lies in its results, not what else of this machine is copied."""
    private = tmp_path / "private"
    private.mkdir()
    (private / ".env").write_text("SECRET=1")
    plant = f'cd "$TAO_RESULTS_DIR"; echo 1 > x; ln -s x y; ln -s {private}/.env leak; ln -s {private} folder'
    platform, handle = await finished(home, plant)
    found = Results(platform, handle)
    files = await found.files()
    assert [file.name for file in files] == ["results_dir/x", "results_dir/y"]
    planted = Path(handle.results, "results_dir", "x")
    planted.unlink()
    planted.symlink_to(private / ".env")
    with pytest.raises(InvalidInput, match="leads out of the results"):
        await found.download(files, tmp_path / "copies")
    assert not [path for path in (tmp_path / "copies").rglob("*") if path.is_file()]


async def test_they_are_copied_whole_and_once(home: Path, tmp_path: Path) -> None:
    _, handle = await finished(home, MAKE)
    folder = tmp_path / "copies"
    assert results(handle.name, "--download", str(folder)).returncode == 0
    wanted = {"results_dir/a b/ü.txt": "12345", "results_dir/x": "1\n", "results_dir/y": "1\n"}
    assert content(folder) == wanted
    before = os.stat(folder / "results_dir" / "x")
    (folder / "results_dir" / "y").write_text("scribbled")
    again = results(handle.name, "--download", str(folder), "--json")
    assert json.loads(again.stdout)["downloaded"] == str(folder)
    assert content(folder) == wanted
    assert os.stat(folder / "results_dir" / "x").st_ino == before.st_ino, "what is there stays"


async def test_json_tells_where_each_file_is(home: Path) -> None:
    _, handle = await finished(home, MAKE)
    told = json.loads(results(handle.name, "--json").stdout)
    assert (told["name"], told["results"], told["downloaded"]) == (handle.name, handle.results, None)
    assert told["files"][1] == {"name": "results_dir/x", "size": 2, "uri": f"{handle.results}/results_dir/x"}


async def test_outputs_that_are_kept_elsewhere_belong_to_the_results(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    _, handle = await finished(
        home,
        f"echo model > {elsewhere}/m.onnx; test -f {{config_path}}",
        specs={"export": {"out": str(elsewhere)}},
        outputs={"export.out": {}},
    )
    assert results(handle.name, "--download", str(tmp_path / "copies")).returncode == 0
    assert content(tmp_path / "copies") == {"export.out/m.onnx": "model\n"}


async def test_what_a_job_writes_into_its_record_leads_to_no_other_folder(home: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / ".env").write_text("SECRET=1")
    platform, handle = await finished(home, 'echo 1 > "$TAO_RESULTS_DIR/x"')
    record = Path(handle.results, "attempts", "1.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "outputs": {"leak": str(private)}}))
    assert [file.name for file in await Results(platform, handle).files()] == ["results_dir/x"]


async def test_a_request_that_was_changed_since_the_launch_leads_to_no_other_folder(home: Path, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / ".env").write_text("SECRET=1")
    specs = {"export": {"out": str(tmp_path / "private")}}
    platform, handle = await finished(home, "true", specs=specs, outputs={"export.out": {}})
    assert await Results(platform, handle).files() != []
    assert await Results(platform, handle.model_copy(update={"digest": "0" * 16})).files() == []


async def test_a_job_that_is_not_there_is_bad_input(home: Path) -> None:
    done = results(f"tao-{KEY}-1")
    assert done.returncode == 2
    assert "no target knows the job" in done.stderr


class Far(ProcessPlatform):
    """A platform whose files cannot be reached by path from here; the driver lists and reads them."""

    runs_here = False
    read_path = Platform.read_path

    def _here(self, uri: str) -> Path:
        assert uri.startswith("/far/")
        return self.results_root / uri.removeprefix("/far/")

    async def list_files(self, uri: str, depth: int, limit: int, skip: Collection[str]) -> Listing:
        found = [path for path in self._here(uri).rglob("*") if path.is_file() and path.parent.name not in skip]
        return Listing(tuple(sorted(f"{uri}/{path.relative_to(self._here(uri))}" for path in found)))


class Readable(Far):
    async def read_path(self, uri: str, limit: int) -> bytes:
        return self._here(uri).read_bytes()[:limit]


async def test_files_of_another_machine_come_through_its_driver(home: Path, tmp_path: Path) -> None:
    await finished(home, MAKE)
    handle = JobHandle(target="far", key=KEY, attempt=1, results=f"/far/{KEY}")
    found = Results(Readable("far", process_settings(home)), handle)
    files = await found.files()
    assert [file.name for file in files] == ["results_dir/a b/ü.txt", "results_dir/x", "results_dir/y"]
    await found.download(files, tmp_path / "copies")
    assert content(tmp_path / "copies")["results_dir/x"] == "1\n"
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "results_dir").touch()
    with pytest.raises(InvalidInput, match="cannot be copied"):
        await found.download(files, tmp_path / "taken")
    blind = Results(Far("far", process_settings(home)), handle)
    with pytest.raises(Unreachable, match="cannot be read from here") as caught:
        await blind.download(await blind.files(), tmp_path / "none")
    assert "rsync" in caught.value.remedy
    assert not (tmp_path / "none" / "results_dir").exists()


async def test_a_folder_that_cannot_be_written_is_bad_input(home: Path, tmp_path: Path) -> None:
    _, handle = await finished(home, MAKE)
    (tmp_path / "file").touch()
    done = results(handle.name, "--download", str(tmp_path / "file"))
    assert done.returncode == 2
    assert "choose another folder" in done.stderr


def test_local_locations_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    assert locations.exists(f"file://{tmp_path}")
    assert not locations.exists(str(tmp_path / "y"))
    assert [file.name for file in locations.listing(f"file://{tmp_path}/x")] == ["x"]
    assert locations.listing(str(tmp_path / "y")) == []
    with pytest.raises(InvalidInput, match="neither a path nor in a known storage"):
        locations.exists("gopher://x")
