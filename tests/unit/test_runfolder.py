"""A run as files: what is there after each piece of news, and never a half-written file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.runfolder import LOG_LINES, RunFolder, Together
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import Evidence, classify

HANDLE = JobHandle(target="process", key="ab" * 8, attempt=1, native_id="7")


def read(folder: RunFolder, name: str) -> object:
    return json.loads((folder.folder / name).read_text())


async def test_the_files_tell_what_runs_where_it_stands_and_why_it_failed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "night", {"target": "process"})
    assert read(folder, "metadata.json")["target"] == "process"  # type: ignore[index]
    await folder.on_state(HANDLE, Observation(state=JobState.RUNNING))
    assert [job["native_id"] for job in read(folder, "active_jobs.json")] == ["7"]  # type: ignore[attr-defined]
    await folder.on_progress(HANDLE, Progress(epoch=2, metrics={"loss": 0.5}))
    status = read(folder, "status.json")["jobs"][HANDLE.name]  # type: ignore[index]
    assert (status["state"], status["progress"]["epoch"]) == ("Running", 2)
    verdict = classify(Evidence(exit_code=3, log_tail="ValueError: no such class"))
    await folder.on_state(HANDLE, Observation(state=JobState.ERROR, exit_code=3))
    folder.failed(HANDLE.name, verdict)
    assert read(folder, "active_jobs.json") == []
    assert read(folder, "failure_analysis.json")["err_class"] == "ERR_PROGRAM"  # type: ignore[index]
    events = [json.loads(line) for line in (folder.folder / "status_events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["state", "progress", "state"]
    assert not [path for path in folder.folder.iterdir() if path.name.startswith(".")]


async def test_the_log_keeps_its_newest_lines(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "night", {})
    await folder.on_log(HANDLE, "".join(f"{number}\n" for number in range(LOG_LINES + 5)))
    lines = (folder.folder / "latest_logs.txt").read_text().split()
    assert (lines[0], lines[-1], len(lines)) == ("5", str(LOG_LINES + 4), LOG_LINES)


def test_a_folder_that_cannot_be_made_is_said_before_anything_is_launched(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be written"):
        RunFolder(tmp_path / "file", "night", {})


async def test_a_listener_that_fails_keeps_no_news_from_the_others(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path, "gone", {}), RunFolder(tmp_path, "kept", {})
    for path in first.folder.iterdir():
        path.unlink()
    first.folder.rmdir()
    both = Together(first, second)
    assert both.wants_logs
    await both.on_state(HANDLE, Observation(state=JobState.RUNNING))
    assert read(second, "status.json")["jobs"][HANDLE.name]["state"] == "Running"  # type: ignore[index]
