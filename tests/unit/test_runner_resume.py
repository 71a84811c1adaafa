"""An attempt goes on from the newest whole checkpoint of the job's own earlier attempts, and from nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from runner_tools import KEY, Bucket, Ended, Runner, checkpoint, cut_short

from prefect_tao.runner.entrypoint import build_entrypoint
from prefect_tao.runner.inside.checkpoints import checkpoint_rank, valid_checkpoint

LEAF = "resume_training_checkpoint_path"


def attempt(runner: Runner, train: dict[str, Any] | None = None, **env: str | None) -> Ended:
    """A training that tells where its environment says to go on."""
    specs = {"train": train if train is not None else {LEAF: None, "lr": 0.1}, "results_dir": ""}
    entrypoint = build_entrypoint('echo "from=$TAO_RESUME_CHECKPOINT="', specs=specs, outputs={"results_dir": {}})
    ended = runner.run(entrypoint, **{"TAO_ATTEMPT": "2", **env})
    assert ended.code == 0, ended.log
    return ended


def resumed(runner: Runner) -> Any:
    return yaml.safe_load(runner.spec())["train"][LEAF]


# -- on a mount --------------------------------------------------------------------------------------------------------


def test_the_newest_epoch_wins_whatever_the_clock_says(runner: Runner) -> None:
    train = runner.base / "results_dir" / "train"
    newest = checkpoint(train / "model_epoch_010_step_00100.pth")
    for name in ("model_epoch_009_step_00090.pth", "model_epoch_002_step_00020.pth", "model_latest.pth"):
        checkpoint(train / name)
    os.utime(newest, (1, 1))
    ended = attempt(runner)
    assert resumed(runner) == str(newest)
    assert f"from={newest}=" in ended.log


def test_without_epochs_in_their_names_the_clock_decides(runner: Runner) -> None:
    older, newer = (checkpoint(runner.base / "results_dir" / name) for name in ("b.tlt", "a.tlt"))
    os.utime(older, (1, 1))
    attempt(runner)
    assert resumed(runner) == str(newer)


def test_checkpoints_that_are_not_whole_are_passed_over(runner: Runner) -> None:
    train = runner.base / "results_dir"
    whole = checkpoint(train / "model_epoch_3.pth")
    cut_short(train / "model_epoch_4.pth")
    (train / "model_epoch_5.pth").write_bytes(b"x")
    (train / "model_epoch_6.pth").write_bytes(b"")
    (train / "model_epoch_7.pth").symlink_to("/nowhere/model_epoch_7.pth")
    ended = attempt(runner)
    assert resumed(runner) == str(whole)
    assert "model_epoch_4.pth is incomplete" in ended.log


def test_pretrained_weights_and_inputs_are_never_resumed(runner: Runner) -> None:
    for folder in ("ptm", "inputs", "train/inputs"):
        checkpoint(runner.base / "results_dir" / folder / "model_epoch_9.pth")
    ended = attempt(runner)
    assert resumed(runner) is None
    assert "from==" in ended.log


def test_auto_resume_can_be_turned_off(runner: Runner) -> None:
    checkpoint(runner.base / "results_dir" / "model_epoch_1.pth")
    ended = attempt(runner, TAO_AUTO_RESUME="0")
    assert resumed(runner) is None
    assert "from==" in ended.log


def test_an_explicit_checkpoint_is_never_replaced(runner: Runner) -> None:
    checkpoint(runner.base / "results_dir" / "model_epoch_1.pth")
    attempt(runner, {LEAF: "/my/own.pth"})
    assert resumed(runner) == "/my/own.pth"


@pytest.mark.parametrize("value", [None, "", "???"])
def test_every_empty_resume_key_is_filled_and_no_key_is_added(runner: Runner, value: str | None) -> None:
    newest = str(checkpoint(runner.base / "results_dir" / "model_epoch_1.pth"))
    attempt(runner, {LEAF: value, "stages": [{LEAF: value}, {"other": value}]})
    assert yaml.safe_load(runner.spec())["train"] == {LEAF: newest, "stages": [{LEAF: newest}, {"other": value}]}


def test_the_results_of_a_first_start_are_its_own_too(runner: Runner) -> None:
    """A platform may start an attempt anew without saying so; its results folder is still its own."""
    newest = checkpoint(runner.base / "results_dir" / "model_epoch_1.pth")
    attempt(runner, TAO_ATTEMPT="1")
    assert resumed(runner) == str(newest)


def test_a_folder_that_others_use_too_is_resumed_from_only_by_who_was_there(runner: Runner) -> None:
    shared = runner.folder / "experiments"
    theirs = checkpoint(shared / "model_epoch_1.pth")
    specs = {"train": {LEAF: None}, "results_dir": str(shared)}
    entrypoint = build_entrypoint("true", specs=specs, outputs={"results_dir": {}})
    assert runner.run(entrypoint).code == 0
    assert resumed(runner) is None, "somebody else's checkpoint is no start for a new job"
    assert runner.run(entrypoint).code == 0
    assert resumed(runner) == str(theirs), "the same attempt, started anew by its platform"
    other = Runner(runner.folder / "other")
    assert other.run(entrypoint, TAO_RESTARTS="1").code == 0
    assert resumed(other) == str(theirs)


def test_a_plain_command_learns_its_checkpoint_from_the_environment(runner: Runner) -> None:
    out = runner.folder / "out"
    newest = checkpoint(runner.base / "out" / "epoch=3.ckpt")
    checkpoint(runner.root / "another-job" / "epoch=9.ckpt")
    entrypoint = build_entrypoint('echo "from=$TAO_RESUME_CHECKPOINT="', outputs=[str(out), str(runner.root)])
    assert f"from={newest}=" in runner.run(entrypoint, TAO_ATTEMPT="2").log


# -- in a bucket -------------------------------------------------------------------------------------------------------


def test_a_new_container_fetches_the_newest_whole_checkpoint_of_the_one_before(runner: Runner, bucket: Bucket) -> None:
    made = runner.folder / "made"
    command = f'cp -r {made}/. "$TAO_RESULTS_DIR"/; kill -9 $$'
    checkpoint(made / "train" / "model_epoch_2.pth")
    whole = checkpoint(made / "train" / "model_epoch_10.pth").read_bytes()
    cut_short(made / "train" / "model_epoch_11.pth")
    (made / "train" / "model_epoch_12.pth").write_bytes(b"x")
    checkpoint(made / "inputs" / "model_epoch_99.pth")
    specs = {"train": {LEAF: None}}
    first = runner.run(build_entrypoint(command, specs=specs, outputs={"results_dir": {}}), **bucket.only)
    assert first.code == 137
    second = Runner(runner.folder / "another container")
    attempt(second, TAO_ATTEMPT="2", **bucket.only)
    assert Path(resumed(second)).read_bytes() == whole
    assert Path(resumed(second)).name == "model_epoch_10.pth"
    assert [bucket.marker(number)["exit_code"] for number in (1, 2)] == [137, 0]


def test_a_first_attempt_does_not_look_for_checkpoints_but_one_started_anew_does(
    runner: Runner, bucket: Bucket
) -> None:
    data = checkpoint(runner.folder / "made.pth").read_bytes()
    bucket.put(f"results/{KEY}/results_dir/model_epoch_1.pth", data)
    attempt(runner, TAO_ATTEMPT="1", **bucket.only)
    assert resumed(runner) is None
    again = Runner(runner.folder / "another container")
    attempt(again, TAO_ATTEMPT="1", **bucket.only)
    assert Path(resumed(again)).read_bytes() == data


# -- how checkpoints are told apart ------------------------------------------------------------------------------------


def test_positions_in_names_are_numbers() -> None:
    names = ["last.ckpt", "epoch_2.pth", "epoch=9-step=10.ckpt", "epoch=9-step=100.ckpt", "model_epoch_010.tlt"]
    assert sorted(names, key=lambda name: checkpoint_rank(name, 0)) == names
    assert checkpoint_rank("iteration_20.pth", 0) > checkpoint_rank("iteration_3.pth", 0)


@pytest.mark.parametrize(("version", "start"), [(0, 40), (1, 44), (2, 28), (3, 28)])
def test_a_weights_file_of_hdf5_is_as_long_as_its_header_says(tmp_path: Path, version: int, start: int) -> None:
    data = bytearray(b"\x89HDF\r\n\x1a\n" + bytes([version]) + b"\xff" * 991)
    data[start : start + 8] = (1000).to_bytes(8, "little")
    path = tmp_path / "model.hdf5"
    path.write_bytes(data)
    assert valid_checkpoint(str(path))
    path.write_bytes(data[:999])
    assert not valid_checkpoint(str(path))


def test_a_checkpoint_of_an_unknown_format_counts_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "model.tlt"
    path.write_bytes(os.urandom(64))
    assert valid_checkpoint(str(path))
    path.write_bytes(b"x" * 63)
    assert not valid_checkpoint(str(path))
    assert not valid_checkpoint(str(tmp_path / "missing.tlt"))
