"""A run as files: what is there after each piece of news, and never a half-written file."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from prefect_tao.jobs.chain_outcome import StepOutcome, StepState
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.events import (
    JobEnded,
    LogWritten,
    PointChanged,
    Progressed,
    RetryPlanned,
    StateChanged,
    StepChanged,
    SweepStarted,
)
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.listening import Audience
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.points import PointOutcome, SweepOutcome
from prefect_tao.jobs.runfolder import LOG_LINES, WRITE_SECONDS, RunFolder
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import Evidence, classify

HANDLE = JobHandle(target="process", key="ab" * 8, attempt=1, native_id="7")


def read(folder: RunFolder, name: str) -> object:
    return json.loads((folder.folder / name).read_text())


async def test_the_files_tell_what_runs_where_it_stands_and_why_it_failed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "night", {"target": "process"})
    assert read(folder, "metadata.json")["target"] == "process"  # type: ignore[index]
    await folder.hear(StateChanged(HANDLE, Observation(state=JobState.RUNNING)))
    assert [job["native_id"] for job in read(folder, "active_jobs.json")] == ["7"]  # type: ignore[attr-defined]
    await folder.hear(Progressed(HANDLE, Progress(epoch=2, metrics={"loss": 0.5})))
    folder.close()
    status = read(folder, "status.json")["jobs"][HANDLE.name]  # type: ignore[index]
    assert (status["state"], status["progress"]["epoch"]) == ("Running", 2)
    verdict = classify(Evidence(exit_code=3, log_tail="ValueError: no such class"))
    await folder.hear(StateChanged(HANDLE, Observation(state=JobState.ERROR, exit_code=3)))
    await folder.hear(JobEnded(Outcome(handle=HANDLE, state=JobState.ERROR, verdict=verdict)))
    folder.close()
    assert read(folder, "active_jobs.json") == []
    assert read(folder, "failure_analysis.json")["err_class"] == "ERR_PROGRAM"  # type: ignore[index]
    events = [json.loads(line) for line in (folder.folder / "status_events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["state", "progress", "state"]
    assert not [path for path in folder.folder.iterdir() if path.name.startswith(".")]


async def test_the_log_keeps_its_newest_lines(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "night", {})
    await folder.hear(LogWritten(HANDLE, "".join(f"{number}\n" for number in range(LOG_LINES + 5))))
    folder.close()
    lines = (folder.folder / "latest_logs.txt").read_text().split()
    assert (lines[0], lines[-1], len(lines)) == ("5", str(LOG_LINES + 4), LOG_LINES)


async def test_many_jobs_are_written_once_in_a_while_and_whole_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    write = RunFolder._write_text

    def counted(self: RunFolder, name: str, text: str) -> None:
        written.append(name)
        write(self, name, text)

    monkeypatch.setattr(RunFolder, "_write_text", counted)
    folder = RunFolder(tmp_path, "night", {})
    handles = [HANDLE.model_copy(update={"key": f"{number:016x}"}) for number in range(500)]
    began = time.monotonic()
    for handle in handles:
        await folder.hear(StateChanged(handle, Observation(state=JobState.RUNNING)))
    assert written.count("status.json") <= 1 + (time.monotonic() - began) / WRITE_SECONDS
    count = len(written)
    await asyncio.sleep(1.5 * WRITE_SECONDS)  # what is too early is written a moment later
    assert len(written) > count
    await folder.hear(StateChanged(handles[0], Observation(state=JobState.COMPLETE)))
    folder.close()
    assert len(read(folder, "status.json")["jobs"]) == 500  # type: ignore[index]
    assert len(read(folder, "active_jobs.json")) == 499  # type: ignore[arg-type]


async def test_every_job_that_failed_has_its_analysis(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "night", {})
    verdict = classify(Evidence(exit_code=3, log_tail="ValueError: no such class"))
    for number in range(3):
        handle = HANDLE.model_copy(update={"key": f"{number:016x}", "labels": {"step": f"point-{number}"}})
        await folder.hear(JobEnded(Outcome(handle=handle, state=JobState.ERROR, verdict=verdict)))
    await folder.hear(JobEnded(Outcome(handle=HANDLE, state=JobState.COMPLETE)))
    folder.close()
    found: Any = read(folder, "failure_analysis.json")
    assert [one["step"] for one in found["failures"]] == ["point-0", "point-1", "point-2"]
    assert found["err_class"] == "ERR_PROGRAM"  # of the newest, as for one job


async def test_a_secret_that_a_job_prints_is_in_no_file(tmp_path: Path) -> None:
    value = "printed-by-the-job-itself"
    folder = RunFolder(tmp_path, "night", {})
    ears = Audience(folder, secrets={"HF_TOKEN": value})
    verdict = classify(Evidence(exit_code=1, log_tail=f"ValueError: no {value}\n"))
    for piece in (f"token={value[:9]}", value[9:], " and on\n", f"{value}\nlast words {value[:3]}"):
        await ears.hear(LogWritten(HANDLE, piece))
    await ears.hear(RetryPlanned(HANDLE, verdict, 1.0))
    await ears.hear(StateChanged(HANDLE, Observation(state=JobState.ERROR, reason=f"refused {value}")))
    await ears.hear(JobEnded(Outcome(handle=HANDLE, state=JobState.ERROR, verdict=verdict)))
    folder.close()
    log = (folder.folder / "latest_logs.txt").read_text()
    assert log == f"token=***HF_TOKEN*** and on\n***HF_TOKEN***\nlast words {value[:3]}"
    assert not [path.name for path in folder.folder.iterdir() if value in path.read_text()]


def test_a_folder_that_cannot_be_made_is_said_before_anything_is_launched(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be written"):
        RunFolder(tmp_path / "file", "night", {})


async def test_a_listener_that_fails_keeps_no_news_from_the_others(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path, "gone", {}), RunFolder(tmp_path, "kept", {})
    for path in first.folder.iterdir():
        path.unlink()
    first.folder.rmdir()
    both = Audience(first, second)
    assert both.wants_logs
    await both.hear(StateChanged(HANDLE, Observation(state=JobState.RUNNING)))
    assert read(second, "status.json")["jobs"][HANDLE.name]["state"] == "Running"  # type: ignore[index]


async def test_the_steps_of_a_chain_and_the_points_of_a_sweep_are_in_the_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "night", {})
    train = StepOutcome(name="train", target="process")
    await folder.hear(StepChanged(train.running(2)))
    await folder.hear(StepChanged(train.complete(Outcome(handle=HANDLE, state=JobState.COMPLETE, results="/out"))))
    await folder.hear(StepChanged(StepOutcome(name="export", target="process", after=("train",)).skipped(["train"])))
    points = [PointOutcome(name=f"point-{number}", label=f"lr={number}", overrides={"lr": number}) for number in (1, 2)]
    await folder.hear(SweepStarted(SweepOutcome(points=tuple(points), metric="loss")))
    await folder.hear(PointChanged(points[0].ended(StepState.ERROR, "no such class")))
    folder.close()
    status: Any = read(folder, "status.json")
    assert (status["steps"]["train"]["state"], status["steps"]["train"]["job"]) == ("Complete", HANDLE.name)
    assert status["steps"]["export"]["state"] == "Skipped"
    assert [point["state"] for point in status["points"].values()] == ["Error", "Waiting"]
    events = [json.loads(line) for line in (folder.folder / "status_events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["step", "step", "step", "sweep", "point"]
    assert (events[-1]["point"], events[-1]["message"]) == ("point-1", "no such class")
