"""A step is followed through its attempts: retried where that can help, continued after a time limit, and judged."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from opened_platforms import process_at, process_settings
from process_tools import COUNTED, LONG, end_of, job, new_key, runs, start, swept

from prefect_tao.jobs import verdict as verdicts
from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.events import Event, RetryPlanned
from prefect_tao.jobs.following import follow
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import submit_once
from prefect_tao.jobs.listening import Listener
from prefect_tao.jobs.outcome import Outcome, collect, with_last_words
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.verdict import POLICIES, Category, Verdict
from prefect_tao.jobs.watcher import ShouldCancel, Watcher
from prefect_tao.platforms.process.driver import ProcessPlatform

TINY = f"{sys.executable} -m prefect_tao.examples.tiny_trainer train -e {{config_path}}"
# What a preemption looks like from inside: the runner, our parent, is told to make room.
PREEMPTED = "kill -TERM $PPID; sleep 30"
LOST_LINE = "echo 'ConnectionError: Connection reset by peer' >&2; exit 1"


class Ear(Listener):
    """Remembers the retries it heard of."""

    def __init__(self) -> None:
        self.retries: list[tuple[int, Category, float]] = []

    async def hear(self, event: Event) -> None:
        if isinstance(event, RetryPlanned):
            self.retries.append((event.handle.attempt, event.verdict.category, event.delay))


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[ProcessPlatform]:
    with swept(tmp_path):
        yield process_at(tmp_path / "root")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same policies with short pauses, and one retry for each kind of trouble but a time limit."""
    short = {
        category: replace(policy, backoff_seconds=0.1, budget=policy.budget if policy.needs_progress else 1)
        for category, policy in POLICIES.items()
    }
    monkeypatch.setattr(verdicts, "POLICIES", short)


async def followed(
    platform: ProcessPlatform,
    request: JobRequest,
    ear: Listener | None = None,
    should_cancel: ShouldCancel | None = None,
) -> Outcome:
    handle = await platform.submit(platform.render(request, new_key(), 1), {})
    return await asyncio.wait_for(follow(Watcher(platform), request, handle, {}, ear, should_cancel), 60)


def by_attempt(first: str, *later: str) -> str:
    """A command that does something else in each attempt."""
    cases = "".join(f"{number}) {command};; " for number, command in enumerate((first, *later), 1))
    return f"{COUNTED}; case $TAO_ATTEMPT in {cases} esac"


# -- retries -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
async def test_a_preempted_attempt_is_followed_by_another_with_the_same_results(platform: ProcessPlatform) -> None:
    ear = Ear()
    command = by_attempt(f"echo 1 > $TAO_RESULTS_DIR/first; {PREEMPTED}", "cat $TAO_RESULTS_DIR/first")
    outcome = await followed(platform, job(command), ear)
    assert (outcome.state, outcome.handle.attempt, outcome.verdict) == (JobState.COMPLETE, 2, None)
    assert ear.retries == [(1, Category.PREEMPTED, 0.1)]
    assert outcome.total_seconds > (outcome.seconds or 0)  # the first one has cost something too
    assert runs(outcome.handle) == 2
    assert outcome.results == outcome.handle.results
    assert f"{outcome.results}/results_dir/first" in outcome.files
    assert not any("/attempts/" in path for path in outcome.files)


async def test_an_error_of_the_program_is_not_retried(platform: ProcessPlatform) -> None:
    ear = Ear()
    outcome = await followed(platform, job("echo 'KeyError: lr' >&2; exit 2", action="train"), ear)
    assert (outcome.state, outcome.exit_code, outcome.handle.attempt) == (JobState.ERROR, 2, 1)
    assert outcome.verdict
    assert outcome.verdict.category is Category.PROGRAM
    assert "KeyError: lr" in outcome.verdict.log_excerpt
    assert ear.retries == []


@pytest.mark.usefixtures("hasty")
async def test_each_kind_of_trouble_has_its_own_budget(platform: ProcessPlatform) -> None:
    ear = Ear()
    outcome = await followed(platform, job(by_attempt(PREEMPTED, LOST_LINE, PREEMPTED, "exit 0")), ear)
    assert (outcome.state, outcome.handle.attempt) == (JobState.ERROR, 3)
    assert [(attempt, category) for attempt, category, _ in ear.retries] == [
        (1, Category.PREEMPTED),
        (2, Category.NETWORK),
    ]
    assert outcome.verdict
    assert outcome.verdict.category is Category.PREEMPTED


@pytest.mark.usefixtures("hasty")
async def test_an_attempt_that_somebody_else_started_is_adopted_as_the_next(platform: ProcessPlatform) -> None:
    request = job(by_attempt(PREEMPTED, "exit 0"))
    handle = await platform.submit(platform.render(request, new_key(), 1), {})
    both = [follow(Watcher(each), request, handle, {}) for each in (platform, process_at(platform.root))]
    outcomes = await asyncio.gather(*both)
    assert [(one.state, one.handle.attempt) for one in outcomes] == [(JobState.COMPLETE, 2)] * 2
    assert runs(handle) == 2


@pytest.mark.usefixtures("hasty")
async def test_further_attempts_are_submitted_as_the_caller_wants_when_the_last_one_is_over(
    platform: ProcessPlatform,
) -> None:
    asked: list[tuple[int, int]] = []

    async def in_turn(
        platform: Platform, request: JobRequest, key: str, attempt: int, secrets: Mapping[str, str]
    ) -> JobHandle:
        asked.append((attempt, await platform.in_flight()))
        return await submit_once(platform, request, key, attempt, secrets)

    request = job(by_attempt(PREEMPTED, LOST_LINE, "exit 0"))
    handle = await platform.submit(platform.render(request, new_key(), 1), {})
    outcome = await asyncio.wait_for(follow(Watcher(platform), request, handle, {}, submit=in_turn), 60)
    assert (outcome.state, outcome.handle.attempt) == (JobState.COMPLETE, 3)
    assert asked == [(2, 0), (3, 0)]


async def test_a_cancelled_job_is_not_tried_again(platform: ProcessPlatform) -> None:
    handle = await start(platform, LONG)
    following = asyncio.create_task(follow(Watcher(platform), job(LONG), handle, {}))
    await platform.cancel([handle], timeout=5)
    outcome = await following
    assert (outcome.state, outcome.handle.attempt) == (JobState.CANCELED, 1)
    assert outcome.verdict
    assert outcome.verdict.category is Category.CANCELED


async def test_who_cancels_between_two_attempts_gets_no_further_one(platform: ProcessPlatform) -> None:
    ear = Ear()

    async def after_the_first() -> bool:
        return bool(ear.retries)

    outcome = await asyncio.wait_for(followed(platform, job(PREEMPTED), ear, after_the_first), 10)
    assert (outcome.state, outcome.handle.attempt) == (JobState.CANCELED, 1)
    assert ear.retries == [(1, Category.PREEMPTED, POLICIES[Category.PREEMPTED].backoff_seconds)]
    assert len((await platform.find([outcome.handle.key]))[outcome.handle.key]) == 1


async def test_a_platform_that_cannot_say_why_is_asked_until_it_can(platform: ProcessPlatform) -> None:
    class Shy(ProcessPlatform):
        silent = 1

        async def diagnose(self, handle: JobHandle) -> Verdict:
            if self.silent:
                self.silent -= 1
                raise Unreachable("not now", "wait")
            return await super().diagnose(handle)

    outcome = await followed(Shy("process", process_settings(platform.root)), job("echo 'KeyError: lr'; exit 2"))
    assert outcome.verdict
    assert outcome.verdict.category is Category.PROGRAM


@pytest.mark.usefixtures("hasty")
async def test_a_listener_that_fails_hears_of_no_other_attempt_and_ends_none(
    platform: ProcessPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Listener):
        told = 0

        async def hear(self, event: Event) -> None:
            if isinstance(event, RetryPlanned):
                self.told += 1
                raise BrokenPipeError("the screen is gone")

    broken = Broken()
    outcome = await followed(platform, job(by_attempt(PREEMPTED, LOST_LINE, "exit 0")), broken)
    assert (outcome.state, outcome.handle.attempt) == (JobState.COMPLETE, 3)
    assert broken.told == 1
    assert [one.name for one in caplog.records if "the screen is gone" in one.message] == ["prefect_tao.listening"]


# -- time limits -------------------------------------------------------------------------------------------------------


def training(limit: float | None = None, **train: Any) -> JobRequest:
    return job(
        TINY,
        specs={"results_dir": "", "train": {"resume_training_checkpoint_path": None, **train}},
        outputs={"results_dir": {"type": "folder"}},
        action="train",
        resources={"time_limit": limit},
    )


@pytest.mark.usefixtures("hasty")
async def test_a_training_crosses_time_limits_by_itself_and_loses_no_epoch(platform: ProcessPlatform) -> None:
    ear = Ear()
    # An attempt has time for three epochs at most, so that seven need three attempts.
    outcome = await followed(platform, training(1.7, num_epochs=7, epoch_seconds=0.5), ear)
    assert outcome.state is JobState.COMPLETE
    assert outcome.handle.attempt >= 3
    assert {(category, delay) for _, category, delay in ear.retries} == {(Category.TIME_LIMIT, 0.1)}
    names = {Path(path).name for path in outcome.checkpoints}
    assert {f"model_epoch_{epoch:03}.ckpt" for epoch in range(1, 8)} <= names
    assert outcome.progress
    assert (outcome.progress.epoch, outcome.progress.max_epoch, outcome.progress.fraction) == (7, 7, 1.0)
    epochs = [point.epoch for point in outcome.progress.history if point.epoch]
    assert epochs == sorted(set(epochs))
    assert (epochs[0], epochs[-1]) == (1, 7)
    assert "resuming from" in (await platform.logs(outcome.handle)).text


@pytest.mark.usefixtures("hasty")
async def test_a_time_limit_without_progress_stops_the_step(platform: ProcessPlatform) -> None:
    same_epoch = """mkdir -p $TAO_RESULTS_DIR/train
        echo '{"epoch": 1, "max_epoch": 9, "status": "RUNNING"}' >> $TAO_RESULTS_DIR/train/status.json; sleep 30"""
    limit = {"time_limit": 0.6}
    nothing, stuck = await asyncio.gather(
        followed(platform, job("sleep 30", action="train", resources=limit)),
        followed(platform, job(same_epoch, action="train", resources=limit)),
    )
    assert [one.handle.attempt for one in (nothing, stuck)] == [1, 2]
    for outcome in (nothing, stuck):
        assert outcome.state is JobState.ERROR
        assert outcome.verdict
        assert outcome.verdict.category is Category.TIME_LIMIT
        assert "checkpoint" in outcome.verdict.remedy


# -- exit 0 is no proof ------------------------------------------------------------------------------------------------


async def test_a_good_training_is_not_doubted(platform: ProcessPlatform) -> None:
    outcome = await followed(platform, training(num_epochs=2))
    assert (outcome.state, outcome.verdict) == (JobState.COMPLETE, None)
    assert "val_accuracy" in outcome.metrics
    assert outcome.checkpoints
    assert outcome.seconds


async def test_a_training_without_sense_fails_although_it_exits_with_0(platform: ProcessPlatform) -> None:
    no_checkpoint = training(num_epochs=1).model_copy(update={"command": f"{TINY} && rm $TAO_RESULTS_DIR/train/*.ckpt"})
    requests = [training(num_epochs=2, optim={"lr": 1e200}), training(num_epochs=0), no_checkpoint]
    outcomes = await asyncio.gather(*(followed(platform, request) for request in requests))
    for outcome, cause in zip(outcomes, ("is not a number", "without a single step", "no checkpoint"), strict=True):
        assert (outcome.state, outcome.exit_code) == (JobState.ERROR, 0)
        assert outcome.verdict
        assert outcome.verdict.category is Category.PROGRAM
        assert cause in outcome.verdict.cause
        assert outcome.verdict.remedy


async def test_only_a_training_with_a_status_file_is_doubted(platform: ProcessPlatform) -> None:
    evaluation = training(num_epochs=0).model_copy(update={"action": "evaluate"})
    silent = job("echo trained", action="train")
    outcomes = await asyncio.gather(followed(platform, evaluation), followed(platform, silent))
    assert [(one.state, one.verdict) for one in outcomes] == [(JobState.COMPLETE, None)] * 2


async def test_a_training_that_had_nothing_left_to_do_is_complete(platform: ProcessPlatform) -> None:
    request, key = training(num_epochs=2), new_key()
    first = await platform.submit(platform.render(request, key, 1), {})
    assert (await end_of(platform, first)).state is JobState.COMPLETE
    second = await platform.submit(platform.render(request, key, 2), {})
    outcome = await follow(Watcher(platform), request, second, {})
    assert (outcome.state, outcome.verdict) == (JobState.COMPLETE, None)
    assert "resuming from" in (await platform.logs(second)).text


async def test_a_training_whose_results_could_not_be_listed_is_not_doubted(platform: ProcessPlatform) -> None:
    class Shy(ProcessPlatform):
        async def list_path(self, uri: str) -> list[str]:
            raise Unreachable("not now", "wait")

    outcome = await followed(Shy("process", process_settings(platform.root)), training(num_epochs=1))
    assert (outcome.state, outcome.files, outcome.all_listed) == (JobState.COMPLETE, (), False)


async def test_the_last_words_of_a_job_without_progress_are_kept(platform: ProcessPlatform) -> None:
    outcome = await followed(platform, job("echo hello from a job"))
    assert outcome.last_words == ""
    assert (await with_last_words(platform, outcome)).last_words == "hello from a job"


# -- the files of an outcome -------------------------------------------------------------------------------------------


class Shelves(ProcessPlatform):
    """A platform whose folders are a map in memory."""

    def __init__(self, root: Path, folders: dict[str, list[str]]) -> None:
        super().__init__("process", process_settings(root))
        self.folders = folders

    async def check_path(self, uri: str) -> bool:
        return uri in self.folders

    async def list_path(self, uri: str) -> list[str]:
        return [f"{uri}/{name}" for name in self.folders[uri]]


async def collected(tmp_path: Path, **folders: list[str]) -> Outcome:
    shelves = Shelves(tmp_path, {f"/r/{name}" if name != "top" else "/r": inside for name, inside in folders.items()})
    handle = JobHandle(target="process", key=new_key(), attempt=1, results="/r/")
    return await collect(shelves, handle, Observation(state=JobState.COMPLETE))


async def test_few_files_are_all_named_with_the_checkpoints_first(tmp_path: Path) -> None:
    outcome = await collected(tmp_path, top=["a.log", "train/"], train=["b.pth", "c.json"])
    assert outcome.files == ("/r/train/b.pth", "/r/a.log", "/r/train/c.json")
    assert (outcome.file_count, outcome.all_listed) == (3, True)


async def test_of_many_files_five_hundred_are_named_and_all_are_counted(tmp_path: Path) -> None:
    images = [f"{number:05}.jpg" for number in range(1000)]
    outcome = await collected(tmp_path, top=["images/", "train/"], images=images, train=["best.pth", "epoch_1.pth"])
    assert outcome.checkpoints == ["/r/train/best.pth", "/r/train/epoch_1.pth"]
    assert outcome.files[2:] == tuple(f"/r/images/{name}" for name in images[:498])
    assert (len(outcome.files), outcome.file_count, outcome.all_listed) == (500, 1002, True)


async def test_of_too_many_checkpoints_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    numbered = [f"model_epoch_{number:03}.pth" for number in range(600)]
    outcome = await collected(tmp_path, top=["model_best.pth", *numbered, "model_latest.pth", "status.json"])
    kept = ["model_best.pth", *numbered[-498:], "model_latest.pth"]
    assert outcome.files == tuple(f"/r/{name}" for name in kept)
    assert outcome.file_count == 603


async def test_walking_stops_at_a_bound_and_says_so(tmp_path: Path) -> None:
    images = [f"{number}.jpg" for number in range(30_000)]
    outcome = await collected(tmp_path, top=["images/", "train/"], images=images, train=["a.pth"])
    assert (outcome.file_count, outcome.all_listed) == (19_998, False)
    assert len(outcome.files) == 500


async def test_what_no_attempt_has_written_is_no_result(tmp_path: Path) -> None:
    strange = {name: ["x.pth"] for name in ("attempts", "inputs", "ptm", "__pycache__")}
    outcome = await collected(tmp_path, top=[f"{name}/" for name in strange], **strange)
    assert (outcome.files, outcome.file_count) == ((), 0)
