"""The tiny trainer learns for real and keeps TAO's habits, good and bad, that the product has to live with."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from prefect_tao.examples.tiny_trainer import checkpoint
from prefect_tao.examples.tiny_trainer.__main__ import main
from prefect_tao.examples.tiny_trainer.model import load_export
from prefect_tao.jobs.statusfile import parse_status

LATEST = "tiny_model_latest.ckpt"


def write_spec(folder: Path, **values: Any) -> Path:
    path = folder / "spec.json"
    path.write_text(json.dumps({"results_dir": str(folder), **values}))
    return path


def tiny(action: str, folder: Path, **values: Any) -> int:
    return main([action, "-e", str(write_spec(folder, **values))])


def command(spec: Path, action: str = "train") -> list[str]:
    return [sys.executable, "-m", "prefect_tao.examples.tiny_trainer", action, "-e", str(spec)]


def status_lines(folder: Path, action: str = "train") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / action / "status.json").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training with nothing but defaults."""
    folder = tmp_path_factory.mktemp("trained")
    assert tiny("train", folder) == 0
    return folder


def test_the_defaults_learn_quickly_from_the_command_line(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(f"results_dir: {tmp_path}\n")
    started = time.monotonic()
    done = subprocess.run(command(spec), capture_output=True, text=True, check=True)
    assert time.monotonic() - started < 10
    assert len(re.findall(r"^Epoch \d+/12: .*val_accuracy=", done.stdout, re.MULTILINE)) == 12
    assert done.stdout.endswith("Execution status: PASS\n")
    progress = parse_status((tmp_path / "train" / "status.json").read_text())
    assert progress is not None
    assert progress.metrics["val_accuracy"] > 0.9


def test_status_lines_have_the_form_of_tao(trained: Path) -> None:
    lines = status_lines(trained)
    assert [line["status"] for line in lines] == ["STARTED"] * 2 + ["RUNNING"] * 14
    assert list(lines[2]) == [
        "epoch",
        "max_epoch",
        "time_per_epoch",
        "eta",
        "date",
        "time",
        "status",
        "verbosity",
        "message",
        "kpi",
    ]
    assert (lines[2]["epoch"], lines[2]["max_epoch"]) == (1, 12)
    assert lines[2]["kpi"].keys() == {"train_loss", "val_loss", "val_accuracy"}
    assert lines[-1]["kpi"] == lines[-3]["kpi"]
    assert re.fullmatch(r"[1-9]\d?/[1-9]\d?/\d{4}", lines[0]["date"])
    assert all(part == str(int(part)) for part in lines[0]["time"].split(":"))


def test_the_status_file_is_understood_by_the_parser(trained: Path) -> None:
    progress = parse_status((trained / "train" / "status.json").read_text())
    assert progress is not None
    assert (progress.epoch, progress.max_epoch, progress.fraction, progress.eta_seconds) == (12, 12, 1.0, 0)
    assert [point.epoch for point in progress.history] == list(range(1, 13))
    losses = [point.metrics["train_loss"] for point in progress.history]
    assert losses[-1] < losses[0] / 2


def test_every_epoch_leaves_a_checkpoint_and_no_partial_file(trained: Path) -> None:
    names = {path.name for path in (trained / "train").iterdir()}
    assert names == {f"model_epoch_{epoch:03d}.ckpt" for epoch in range(1, 13)} | {LATEST, "status.json"}
    assert (trained / "train" / LATEST).read_bytes() == (trained / "train" / "model_epoch_012.ckpt").read_bytes()
    with zipfile.ZipFile(trained / "train" / LATEST) as archive:
        assert archive.namelist() == ["weights.json", "meta.json"]
        assert json.loads(archive.read("meta.json"))["epoch"] == 12


def test_checkpoints_follow_the_interval_and_include_the_last_epoch(tmp_path: Path) -> None:
    assert tiny("train", tmp_path, train={"num_epochs": 5, "checkpoint_interval": 2}, dataset={"samples": 60}) == 0
    names = sorted(path.name for path in (tmp_path / "train").glob("model_*.ckpt"))
    assert names == ["model_epoch_002.ckpt", "model_epoch_004.ckpt", "model_epoch_005.ckpt"]


def test_a_resumed_training_ends_like_one_never_interrupted(trained: Path, tmp_path: Path) -> None:
    halfway = trained / "train" / "model_epoch_005.ckpt"
    assert tiny("train", tmp_path, train={"resume_training_checkpoint_path": str(halfway)}) == 0
    assert [line["epoch"] for line in status_lines(tmp_path) if "epoch" in line] == list(range(6, 13))
    for name in ("model_epoch_006.ckpt", "model_epoch_012.ckpt"):
        assert (tmp_path / "train" / name).read_bytes() == (trained / "train" / name).read_bytes()


def test_another_seed_gives_other_weights(trained: Path, tmp_path: Path) -> None:
    assert tiny("train", tmp_path, train={"num_epochs": 1, "seed": 2}) == 0
    name = "model_epoch_001.ckpt"
    assert (tmp_path / "train" / name).read_bytes() != (trained / "train" / name).read_bytes()


def test_resuming_a_finished_training_passes_without_a_step(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = str(trained / "train" / LATEST)
    assert tiny("train", tmp_path, train={"resume_training_checkpoint_path": done}) == 0
    assert "Execution status: PASS" in capsys.readouterr().out
    assert not list((tmp_path / "train").glob("*.ckpt"))


def test_a_checkpoint_cut_short_is_refused(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes((trained / "train" / LATEST).read_bytes()[:-30])
    assert tiny("train", tmp_path, train={"resume_training_checkpoint_path": str(cut)}) == 1
    printed = capsys.readouterr()
    assert f"damaged or not one of this trainer: {cut}" in printed.err
    assert printed.out.endswith("Execution status: FAIL\n")
    assert status_lines(tmp_path)[-1]["status"] == "FAILURE"


def test_evaluate_reports_test_metrics(trained: Path) -> None:
    assert tiny("evaluate", trained) == 0
    metrics = json.loads((trained / "evaluate" / "metrics.json").read_text())
    assert metrics.keys() == {"test_accuracy", "test_loss"}
    assert metrics["test_accuracy"] > 0.9
    assert status_lines(trained, "evaluate")[-1]["kpi"] == metrics


def test_evaluate_takes_the_checkpoint_it_is_given(trained: Path, tmp_path: Path) -> None:
    early = str(trained / "train" / "model_epoch_001.ckpt")
    assert tiny("evaluate", tmp_path, evaluate={"checkpoint": early}) == 0
    assert tiny("evaluate", trained) == 0
    first, last = (json.loads((folder / "evaluate" / "metrics.json").read_text()) for folder in (tmp_path, trained))
    assert first["test_loss"] > last["test_loss"]


def test_an_exported_model_predicts_the_same(trained: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "portable.json"
    latest = trained / "train" / LATEST
    assert tiny("export", tmp_path, export={"checkpoint": str(latest), "file": str(target)}) == 0
    content = json.loads(target.read_text())
    assert (content["format"], content["version"], content["activation"]) == ("tiny-mlp", 1, "tanh")
    network, _ = checkpoint.load(latest)
    exported = load_export(target)
    for x, y in ((0.1, 0.2), (-0.7, 0.4), (0.3, -0.9)):
        assert exported.probabilities(x, y) == network.probabilities(x, y)
        assert exported.predict(x, y) in content["classes"]


def test_export_goes_below_the_results_by_default(trained: Path) -> None:
    assert tiny("export", trained) == 0
    assert (trained / "export" / "model.json").is_file()


def test_a_csv_file_can_be_the_dataset(tmp_path: Path) -> None:
    table = tmp_path / "points.csv"
    rows = [f"{x / 20 - 1},{(x * 7 % 40) / 20 - 1},{'left' if x < 20 else 'right'}" for x in range(40)]
    table.write_text("\n".join(["x,y,label", *rows]) + "\n")
    assert tiny("train", tmp_path, dataset={"path": str(table)}) == 0
    assert tiny("evaluate", tmp_path, dataset={"path": str(table)}) == 0
    assert checkpoint.load(tmp_path / "train" / LATEST)[0].classes == ["left", "right"]
    assert tiny("evaluate", tmp_path) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset": {"path": "/no/such/points.csv"}}, "dataset.path does not exist: /no/such/points.csv"),
        ({"trian": {}}, "unknown key in the spec: trian"),
        ({"train": {"num_epochs": "many"}}, "train.num_epochs must be a number of at least 0, not 'many'"),
        ({"train": {"batch_size": 2.5}}, "train.batch_size must be a whole number, not 2.5"),
        ({"train": {"optim": 3}}, "train.optim must be a mapping, not 3"),
        ({"results_dir": None}, "results_dir is missing"),
        ({"train": {"resume_training_checkpoint_path": "/no.ckpt"}}, "the checkpoint does not exist: /no.ckpt"),
    ],
)
def test_mistakes_are_named_and_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: dict[str, Any], message: str
) -> None:
    assert tiny("train", tmp_path, **values) == 1
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out.endswith("Execution status: FAIL\n")


def test_a_bad_row_is_shown_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "points.csv"
    table.write_text("0,0,a\n1,b\n")
    assert tiny("train", tmp_path, dataset={"path": str(table)}) == 1
    assert "points.csv line 2: expected x,y,label, found '1,b'" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "{", "results_dir: [", "- 1"])
def test_an_unreadable_spec_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None) -> None:
    spec = tmp_path / ("spec.json" if content == "{" else "spec.yaml")
    if content is not None:
        spec.write_text(content)
    assert main(["train", "-e", str(spec)]) == 1
    printed = capsys.readouterr()
    assert "spec" in printed.err
    assert printed.out.endswith("Execution status: FAIL\n")


def test_a_diverging_training_writes_nan_and_passes_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny("train", tmp_path, train={"num_epochs": 4, "optim": {"lr": "1e9"}}) == 0
    assert capsys.readouterr().out.endswith("Execution status: PASS\n")
    last = status_lines(tmp_path)[-1]
    assert math.isnan(last["kpi"]["train_loss"])
    progress = parse_status((tmp_path / "train" / "status.json").read_text())
    assert progress is not None
    assert progress.not_finite == ("train_loss", "val_loss")
    assert tiny("export", tmp_path) == 0


def test_an_epoch_can_be_made_to_last(tmp_path: Path) -> None:
    started = time.monotonic()
    assert tiny("train", tmp_path, train={"num_epochs": 2, "epoch_seconds": 0.15}, dataset={"samples": 30}) == 0
    assert time.monotonic() - started >= 0.3
    progress = parse_status((tmp_path / "train" / "status.json").read_text())
    assert progress is not None
    assert progress.seconds_per_epoch == pytest.approx(0.15, abs=0.1)


def test_a_terminated_training_dies_of_the_signal_and_leaves_whole_checkpoints(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, train={"num_epochs": 1000, "epoch_seconds": 0.02}, dataset={"samples": 60})
    with subprocess.Popen(command(spec), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("Epoch 3/"):
            assert process.poll() is None
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
    assert checkpoint.load(tmp_path / "train" / LATEST)[1] >= 3


def test_only_the_standard_library_is_loaded() -> None:
    check = (
        "import sys, prefect_tao.examples.tiny_trainer.__main__; "
        "print([name for name in ('prefect', 'pydantic', 'numpy', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
