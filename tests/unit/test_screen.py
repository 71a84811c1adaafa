"""What a person sees: a job's words as they are, whole names, and nothing on the screen that can end a run."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from opened_platforms import process_settings
from process_tools import LONG, end_of, job, new_key, runs, swept
from rich.console import Console

from prefect_tao.cli import jobs as commands
from prefect_tao.cli import whereabouts
from prefect_tao.cli.screen import Screen, console, print_outcome, program
from prefect_tao.jobs import verdict as verdicts
from prefect_tao.jobs.events import LogWritten, Progressed, RetryPlanned, StateChanged
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.verdict import POLICIES, Evidence, classify
from prefect_tao.platforms.process import job_folder
from prefect_tao.platforms.process.driver import ProcessPlatform

MARKUP = r"no [/opt/data] here, [red]but :smile: there\ "
HANDLE = JobHandle(target="process", key="0123456789abcdef", attempt=1, results=f"/r/{MARKUP}", labels={"step": "[/s]"})
FAILED = Observation(state=JobState.ERROR, reason=MARKUP)
VERDICT = classify(Evidence(exit_code=1)).model_copy(update={"cause": MARKUP})


@pytest.fixture(params=[False, True], ids=["a file", "a terminal"])
def out(request: pytest.FixtureRequest) -> Console:
    return Console(file=io.StringIO(), force_terminal=request.param, color_system=None, width=80, highlight=False)


def shown(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


# -- foreign words -----------------------------------------------------------------------------------------------------


async def test_what_a_job_says_is_shown_as_it_is_though_it_looks_like_markup(out: Console) -> None:
    screen = Screen(out)
    await screen.hear(StateChanged(HANDLE, Observation(state=JobState.RUNNING, reason=MARKUP)))
    await screen.hear(Progressed(HANDLE, Progress(epoch=1, max_epoch=2, fraction=0.5, metrics={"[/loss]": 1.0})))
    screen.note(MARKUP)
    await screen.hear(RetryPlanned(HANDLE, VERDICT, 15.0))
    await screen.hear(StateChanged(HANDLE, FAILED))
    metrics = Progress(metrics={"[/loss]": 1.0})
    print_outcome(out, Outcome(handle=HANDLE, state=JobState.ERROR, results=HANDLE.results, progress=metrics))
    assert shown(out).count(MARKUP.strip()) >= 4
    assert "[/s]" in shown(out)
    assert "[/loss] 1" in shown(out)


def test_a_jobs_own_last_words_are_shown_at_its_end(out: Console) -> None:
    done = Outcome(handle=HANDLE, state=JobState.COMPLETE, results="/r", last_words="hello [from] a job")
    print_outcome(out, done)
    assert "hello [from] a job" in shown(out)


def test_a_list_of_jobs_shows_whole_names_and_words_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = HANDLE.model_copy(update={"attempt": 12})
    for width in ("80", "40", "20"):
        monkeypatch.setenv("COLUMNS", width)
        commands._print_table([(HANDLE, FAILED), (later, FAILED)], "process")
        rows = capsys.readouterr().out.split("\n")
        assert [sum(row.startswith(f"{handle.name} ") for row in rows) for handle in (HANDLE, later)] == [1, 1]
        assert any("[/opt" in row for row in rows)


def test_an_empty_list_names_the_target_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    commands._print_table([], "slurm/[/x]")
    assert capsys.readouterr().out == "no jobs on slurm/[/x]\n"


# -- readers who leave -------------------------------------------------------------------------------------------------


class Gone(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize("logs", [False, True])
async def test_a_broken_pipe_silences_the_screen_and_nothing_else(monkeypatch: pytest.MonkeyPatch, logs: bool) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    screen = Screen(console(), logs=logs)
    assert screen.wants_logs is logs
    await screen.hear(StateChanged(HANDLE, Observation(state=JobState.RUNNING)))
    assert (screen.out.quiet, screen.wants_logs) == (True, False)
    assert screen.handles == {HANDLE.key: HANDLE}
    await screen.hear(LogWritten(HANDLE, "words\n"))
    await screen.hear(RetryPlanned(HANDLE, VERDICT, 15.0))
    await screen.hear(StateChanged(HANDLE, FAILED))
    assert screen.handles == {}
    screen.quiet()


def test_a_reader_who_leaves_early_does_not_disturb_the_program() -> None:
    code = """
import asyncio, sys
from prefect_tao.cli.screen import Screen, console
from prefect_tao.jobs.events import LogWritten
from prefect_tao.jobs.handle import JobHandle
async def main():
    screen = Screen(console(), logs=True)
    handle = JobHandle(target="process", key="0123456789abcdef", attempt=1)
    for number in range(20000):
        await screen.hear(LogWritten(handle, f"line {number}\\n"))
    screen.out.print("the end")
    print("done", screen.out.quiet)
asyncio.run(main())
"""
    reading, writing = os.pipe()
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=writing, text=True)
    os.close(writing)
    assert os.read(reading, 7) == b"line 0\n"
    os.close(reading)
    told, _ = program.communicate(timeout=60)
    assert (program.returncode, told) == (0, "done True\n")


# -- watching by name --------------------------------------------------------------------------------------------------


class Remembering(ProcessPlatform):
    """A platform that knows what its jobs were asked to do."""

    async def request_of(self, handle: JobHandle) -> JobRequest | None:
        found = job_folder.read_json(self.observer.folder(handle.key, handle.attempt) / job_folder.JOB)
        return JobRequest.model_validate(found["request"]) if found else None


class Forgetful(ProcessPlatform):
    """A platform that does not."""

    async def request_of(self, handle: JobHandle) -> JobRequest | None:
        return None


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with swept(tmp_path):
        yield tmp_path / "root"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same policies with short pauses."""
    short = {category: replace(policy, backoff_seconds=0.1) for category, policy in POLICIES.items()}
    monkeypatch.setattr(verdicts, "POLICIES", short)


async def launched(platform: Platform, request: JobRequest) -> JobHandle:
    return await platform.submit(platform.render(request, new_key(), 1), {})


async def watched(platform: Platform, handle: JobHandle, monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, str]:
    """The outcome that `watch` comes to, and what it shows."""

    async def opened(target: str) -> Platform:
        return platform

    monkeypatch.setattr(whereabouts, "open_any", opened)
    out = Console(file=io.StringIO(), width=80)
    screen = Screen(out)
    outcome = await asyncio.wait_for(commands._watch(handle.name, "process", [screen], screen.note), 30)
    return outcome, shown(out)


PREEMPTED_ONCE = (
    'mktemp "$TAO_RESULTS_DIR/run-XXXXXX"; [ $TAO_ATTEMPT = 2 ] || { sleep 0.5; kill -TERM $PPID; sleep 30; }'
)
NO_CHECKPOINT = """mkdir -p $TAO_RESULTS_DIR/train
    echo '{"epoch": 1, "max_epoch": 1, "status": "RUNNING"}' >> $TAO_RESULTS_DIR/train/status.json"""


@pytest.mark.usefixtures("hasty")
async def test_watching_goes_on_with_the_next_attempt_where_the_request_is_known(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Remembering("process", process_settings(root))
    outcome, told = await watched(platform, await launched(platform, job(PREEMPTED_ONCE)), monkeypatch)
    assert (outcome.state, outcome.handle.attempt, runs(outcome.handle)) == (JobState.COMPLETE, 2, 2)
    assert "Next attempt" in told


@pytest.mark.usefixtures("hasty")
async def test_a_job_that_had_ended_before_is_told_about_and_not_tried_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Remembering("process", process_settings(root))
    handle = await launched(platform, job(PREEMPTED_ONCE))
    await end_of(platform, handle)
    outcome, _ = await watched(platform, handle, monkeypatch)
    assert (outcome.state, outcome.handle.attempt, runs(handle)) == (JobState.ERROR, 1, 1)
    assert outcome.verdict


@pytest.mark.usefixtures("hasty")
async def test_no_attempt_is_started_without_the_secrets_of_the_job(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    platform = Remembering("process", process_settings(root))
    request = job(PREEMPTED_ONCE, secrets=["MY_KEY"])
    outcome, told = await watched(platform, await launched(platform, request), monkeypatch)
    assert (outcome.state, outcome.handle.attempt) == (JobState.ERROR, 1)
    assert "MY_KEY cannot be found here" in told
    monkeypatch.setenv("MY_KEY", "value")
    outcome, _ = await watched(platform, await launched(platform, request), monkeypatch)
    assert (outcome.state, outcome.handle.attempt) == (JobState.COMPLETE, 2)


@pytest.mark.parametrize("kind", [Remembering, Forgetful])
async def test_watching_doubts_a_training_that_left_no_checkpoint(
    root: Path, monkeypatch: pytest.MonkeyPatch, kind: type[ProcessPlatform]
) -> None:
    platform = kind("process", process_settings(root))
    request = job(NO_CHECKPOINT, action="train", labels={"action": "train"})
    outcome, _ = await watched(platform, await launched(platform, request), monkeypatch)
    assert outcome.state is JobState.ERROR
    assert outcome.verdict
    assert "no checkpoint" in outcome.verdict.cause


async def test_watching_follows_a_cancellation_to_its_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Remembering("process", process_settings(root))
    handle = await launched(platform, job(LONG))
    watching = asyncio.create_task(watched(platform, handle, monkeypatch))
    await asyncio.sleep(0.3)
    await platform.cancel([handle], timeout=5)
    outcome, _ = await watching
    assert (outcome.state, outcome.handle.attempt) == (JobState.CANCELED, 1)


def test_the_way_back_of_a_module_that_was_run_is_a_command_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["src/prefect_tao/cli/__main__.py", "run"])
    done = subprocess.run(f"{program()} --version", shell=True, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[:1]) == (0, ["prefect-tao"]), done.stderr
