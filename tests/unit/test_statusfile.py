"""What a TAO status file is taken to say, from clean runs to files cut off, repeated or mangled."""

import json
import math
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest

from prefect_tao.jobs.statusfile import HISTORY_LIMIT, Progress, parse_status


def line(**fields: Any) -> str:
    """One line as TAO writes it: loop data first, then the fixed part."""
    return json.dumps(
        {**fields, "date": "1/7/2026", "time": "9:5:3", "status": "RUNNING", "verbosity": "INFO"} | fields
    )


def read(*lines: str) -> Progress:
    progress = parse_status("\n".join(lines) + "\n")
    assert progress is not None
    return progress


def curve(progress: Progress, metric: str) -> dict[int | None, float]:
    return {point.epoch: point.metrics[metric] for point in progress.history if metric in point.metrics}


def test_a_line_gives_status_message_place_and_time() -> None:
    progress = read(line(epoch=3, max_epoch=12, step=30, max_step=120, message="Training loop in progress"))
    assert (progress.status, progress.message) == ("RUNNING", "Training loop in progress")
    assert (progress.epoch, progress.max_epoch, progress.step, progress.max_step) == (3, 12, 30, 120)
    assert progress.updated_at == datetime(2026, 1, 7, 9, 5, 3)


@pytest.mark.parametrize("text", ["", "\n\n", "Epoch 1: 10%\r", '{"status": "RUN', "[1, 2]\n3\nnull", '{"other": 1}'])
def test_a_file_without_a_usable_line_says_nothing(text: str) -> None:
    assert parse_status(text) is None


def test_garbage_blank_and_half_written_lines_are_skipped() -> None:
    text = "\r\n".join(
        ["", "Traceback (most recent call last):", line(epoch=1, max_epoch=4), "Epoch 2:  50%|##  |\r" + line(epoch=2)]
    )
    progress = parse_status(text + "\r\n" + line(epoch=3)[:-20])
    assert progress is not None
    assert (progress.epoch, progress.max_epoch) == (2, 4)


def test_every_cut_of_a_file_can_be_read() -> None:
    text = "\n".join([line(status="STARTED"), line(epoch=1, max_epoch=2, eta="0:00:05", kpi={"val_loss": 0.5})])
    whole = parse_status(text)
    assert whole is not None
    for end in range(len(text)):
        part = parse_status(text[:end])
        assert part is None or part.epoch in (None, whole.epoch)


def test_impossible_dates_leave_the_last_good_time() -> None:
    progress = read(line(date="12/31/2025", time="23:59:59"), line(date="31/12/2025"), line(date=None, time=7))
    assert progress.updated_at == datetime(2025, 12, 31, 23, 59, 59)


@pytest.mark.parametrize("holder", ["kpi", "metrics", "data"])
def test_metrics_and_place_are_found_in_each_holder(holder: str) -> None:
    progress = read(line(**{holder: {"epoch": 2, "max_epoch": 8, "train/loss": 0.25, "eta": "0:01:00"}}))
    assert progress.metrics == {"train/loss": 0.25}
    assert (progress.epoch, progress.max_epoch, progress.eta_seconds) == (2, 8, 60)


def test_iterations_count_as_steps_and_make_the_history_when_there_is_no_epoch() -> None:
    progress = read(
        line(cur_iter=100, max_iter=400, kpi={"loss": 2.0}),
        line(cur_iter=200, max_iter=400, kpi={"loss": 1.0}),
    )
    assert (progress.step, progress.max_step, progress.fraction) == (200, 400, 0.5)
    assert [(point.epoch, point.step, point.metrics) for point in progress.history] == [
        (None, 100, {"loss": 2.0}),
        (None, 200, {"loss": 1.0}),
    ]


def test_numbers_written_as_text_count_and_other_values_do_not() -> None:
    progress = read(
        line(epoch="4", kpi={"hmean": "0.93", "ok": True, "name": "resnet", "per_class": [1, 2], "n": None})
    )
    assert progress.epoch == 4
    assert progress.metrics == {"hmean": 0.93}


@pytest.mark.parametrize(
    ("eta", "seconds"),
    [
        ("0:00:07", 7),
        ("1:02:03", 3723),
        ("0:00:01.500000", 1.5),
        ("1 day, 2:03:04", 93784),
        ("3 days, 0:00:00", 259200),
        (90, 90),
        ("12.5", 12.5),
    ],
)
def test_eta_is_read_in_every_form(eta: Any, seconds: float) -> None:
    assert read(line(epoch=1, eta=eta)).eta_seconds == seconds


@pytest.mark.parametrize("eta", ["soon", "-1 day, 23:59:59", -5, math.nan, {}])
def test_an_eta_that_makes_no_sense_is_not_taken(eta: Any) -> None:
    assert read(line(epoch=1, eta=eta)).eta_seconds is None


def test_a_missing_eta_is_computed_from_the_pace() -> None:
    progress = read(line(epoch=4, max_epoch=10, time_per_epoch="0:02:00"))
    assert (progress.seconds_per_epoch, progress.eta_seconds) == (120, 720)


def test_an_old_eta_is_not_kept_for_a_newer_epoch() -> None:
    progress = read(line(epoch=1, max_epoch=3, time_per_epoch="0:00:10", eta="0:00:20"), line(epoch=2))
    assert progress.eta_seconds == 10


def test_a_repeated_kpi_belongs_to_the_epoch_where_it_changed() -> None:
    progress = read(
        line(epoch=1, kpi={"val_loss": 0.9}),
        line(epoch=2, kpi={"val_loss": 0.9}),
        line(epoch=3, kpi={"val_loss": 0.7}),
        line(message="Train finished successfully.", kpi={"val_loss": 0.7}),
    )
    assert curve(progress, "val_loss") == {1: 0.9, 3: 0.7}
    assert [point.epoch for point in progress.history] == [1, 2, 3]


def test_metrics_on_lines_of_their_own_find_their_epoch() -> None:
    """Lightning networks write validation before the epoch's line and training results after it."""
    lines = []
    for epoch in (0, 1, 2):
        val, train = {"val_loss": 0.5 - epoch / 10, "val_acc": 1.0}, {"train_loss": 0.4 - epoch / 10}
        lines += [line(kpi=val), line(epoch=epoch, max_epoch=2, kpi=val), line(kpi=train)]
    progress = read(line(status="STARTED"), *lines, line(message="Training loop complete.", kpi=train))
    assert curve(progress, "val_loss") == {0: 0.5, 1: 0.4, 2: 0.3}
    assert curve(progress, "val_acc") == {0: 1.0, 1: 1.0, 2: 1.0}
    assert curve(progress, "train_loss") == {0: 0.4, 1: pytest.approx(0.3), 2: pytest.approx(0.2)}
    assert progress.metrics.keys() == {"val_loss", "val_acc", "train_loss"}


def test_validation_results_still_waiting_for_their_epoch_do_not_replace_known_ones() -> None:
    progress = read(line(epoch=1, kpi={"val_loss": 0.5}), line(kpi={"val_loss": 0.4, "val_acc": 0.8}))
    assert curve(progress, "val_loss") == {1: 0.5}
    assert curve(progress, "val_acc") == {1: 0.8}
    assert progress.metrics["val_loss"] == 0.4


def test_metrics_without_any_epoch_or_step_are_kept_without_a_history() -> None:
    progress = read(line(status="STARTED"), line(kpi={"test_accuracy": 0.9}))
    assert progress.metrics == {"test_accuracy": 0.9}
    assert progress.history == []
    assert progress.fraction is None


def test_a_later_attempt_replaces_what_it_does_again() -> None:
    first = [line(status="STARTED"), *(line(epoch=epoch, kpi={"val_loss": 9.0 - epoch}) for epoch in (1, 2, 3, 4))]
    second = [line(status="STARTED"), line(epoch=3, kpi={"val_loss": 0.3})]
    progress = read(*first, *second)
    assert curve(progress, "val_loss") == {1: 8.0, 2: 7.0, 3: 0.3}


def test_a_restart_forgets_the_old_eta_but_not_how_far_the_job_was() -> None:
    progress = read(line(epoch=2, max_epoch=4, eta="0:10:00", kpi={"val_loss": 0.5}), line(status="STARTED"))
    assert (progress.status, progress.epoch, progress.eta_seconds) == ("STARTED", 2, None)
    assert progress.metrics == {"val_loss": 0.5}


@pytest.mark.parametrize(
    ("fields", "fraction"),
    [
        ({}, None),
        ({"epoch": 3}, None),
        ({"epoch": 3, "max_epoch": 12}, 0.25),
        ({"epoch": 13, "max_epoch": 12}, 1.0),
        ({"epoch": 0, "max_epoch": 0}, 1.0),
        ({"epoch": 0, "max_epoch": 9, "step": 10, "max_step": 100}, 0.1),
        ({"epoch": 3, "max_epoch": 10, "step": 250, "max_step": 1000}, 0.25),
        ({"epoch": 8, "max_epoch": 10, "step": 5, "max_step": 10}, 0.75),
        ({"step": 5, "max_step": 20}, 0.25),
        ({"epoch": 1, "max_epoch": 2, "step": 5, "max_step": -1}, 0.5),
    ],
)
def test_the_fraction_uses_epochs_and_steps(fields: dict[str, int], fraction: float | None) -> None:
    assert read(line(**fields)).fraction == (None if fraction is None else pytest.approx(fraction))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan"])
def test_values_that_are_not_finite_are_named_and_left_out(value: Any) -> None:
    progress = read(line(epoch=1, kpi={"train_loss": value, "val_accuracy": 0.33}))
    assert progress.not_finite == ("train_loss",)
    assert progress.metrics == {"val_accuracy": 0.33}
    assert progress.history[0].metrics == {"val_accuracy": 0.33}


def test_a_loss_beside_the_kpi_counts() -> None:
    assert read(line(epoch=1, loss=math.nan)).not_finite
    assert read(line(epoch=1, loss=0.5)).metrics == {"loss": 0.5}


def test_a_loss_that_recovers_is_no_longer_reported() -> None:
    progress = read(line(epoch=1, kpi={"loss": math.nan}), line(epoch=2, kpi={"loss": 0.5}))
    assert not progress.not_finite
    assert progress.metrics == {"loss": 0.5}


def test_the_picture_survives_json() -> None:
    progress = read(
        line(epoch=1, max_epoch=2, eta="0:00:09", kpi={"loss": math.nan, "acc": 0.5}),
        line(epoch=2, kpi={"loss": math.inf, "acc": 0.6}),
    )
    again = Progress.model_validate_json(progress.model_dump_json())
    assert again == progress
    assert again.not_finite
    assert json.loads(progress.model_dump_json())["metrics"] == {"acc": 0.6}


def test_a_long_history_is_thinned_evenly() -> None:
    progress = read(*(line(epoch=epoch, kpi={"loss": 1 / epoch}) for epoch in range(1, 5002)))
    epochs = [point.epoch or 0 for point in progress.history]
    assert len(epochs) == HISTORY_LIMIT == 2000
    assert (epochs[0], epochs[-1]) == (1, 5001)
    assert {after - before for before, after in pairwise(epochs)} == {2, 3}


def test_the_spellings_of_a_finished_run_are_one() -> None:
    assert read(line(status="completed")).status == "SUCCESS"
    assert read(line(status="FAILURE")).status == "FAILURE"


def test_a_line_without_a_status_keeps_the_last_one() -> None:
    assert read(line(), '{"epoch": 2, "loss": 0.5}').status == "RUNNING"
