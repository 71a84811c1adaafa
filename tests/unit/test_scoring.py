"""What a trial is judged by: the metric by its many names, the epoch that counts, and what is no number."""

from __future__ import annotations

import math

from prefect_tao.jobs.scoring import Score, chosen, curve, has_diverged, in_file, in_log, spelling
from prefect_tao.jobs.statusfile import parse_status


def test_a_metric_is_found_by_the_name_that_a_job_gives_it() -> None:
    assert spelling("test_mAP50", ["loss", "val_mAP50"]) == "val_mAP50"
    assert spelling("val_loss", ["train_loss", "Validation Loss"]) == "Validation Loss"
    assert spelling("val_loss", ["val_loss", "test_loss"]) == "val_loss"
    assert spelling("accuracy", ["val/accuracy"]) == "val/accuracy"
    assert spelling("loss", ["glosses"]) is None


def status(*values: str) -> str:
    return "\n".join(
        f'{{"epoch": {epoch}, "max_epoch": 9, "kpi": {{"val_loss": {value}}}}}' for epoch, value in enumerate(values, 1)
    )


def test_the_best_epoch_counts_or_the_last_one() -> None:
    scores = curve(parse_status(status("0.5", "0.2", "0.3")), "val_loss")
    assert scores == [Score(0.5, 1), Score(0.2, 2), Score(0.3, 3)]
    assert chosen(scores, "minimize") == Score(0.2, 2)
    assert chosen(scores, "maximize") == Score(0.5, 1)
    assert chosen(scores, "minimize", "last") == Score(0.3, 3)


def test_what_is_no_number_is_no_score() -> None:
    assert curve(parse_status(status("0.5", "NaN")), "val_loss") == [Score(0.5, 1)]
    assert curve(parse_status(status("NaN")), "val_loss") == []
    assert curve(parse_status(status("0.5")), "mAP") == []
    assert chosen([], "minimize") is None
    assert curve(None, "val_loss") == []


def test_a_metric_that_is_no_number_is_told_from_one_that_is_not_there() -> None:
    assert has_diverged(parse_status(status("0.5", "NaN")), "val_loss")
    assert not has_diverged(parse_status(status("NaN", "0.5")), "val_loss")
    assert not has_diverged(parse_status(status("NaN")), "mAP")
    assert not has_diverged(None, "val_loss")
    found = [in_file(b'{"loss": NaN}', "loss"), in_log("loss: 0.3\nloss: nan\n", "loss"), in_log("loss=-inf", "loss")]
    assert [math.isfinite(one.value) for one in found if one] == [False] * 3
    assert in_file(b'{"lr": NaN}', "loss") is None
    assert in_log("loss: infinite patience, loss: nano", "loss") is None


def test_a_file_of_results_holds_the_metric_nested_or_line_by_line() -> None:
    assert in_file(b'{"metrics": {"mAP": 0.4}}', "mAP") == Score(0.4)
    assert in_file(b'{"loss": 2}\n{"loss": 1}\n', "loss") == Score(1.0)
    assert in_file(b"nonsense", "loss") is None
    assert in_file(b"", "loss") is None


def test_the_last_word_of_a_log_counts() -> None:
    text = "val_loss: 0.9\nmy_val_loss: 0.1\nval loss = 3.5e-1\nval_loss_epoch: 7\n"
    assert in_log(text, "val_loss") == Score(0.35)
    assert in_log(text, "mAP") is None
    assert math.isclose(getattr(in_log('"acc": -0.25,', "acc"), "value", 0.0), -0.25)
