"""Every model of the packaged catalog resolves: its training from dataset roots, its other actions from a parent."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from resolve_tools import failures, parent

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.catalog.nouns import Source
from prefect_tao.preflight.resolve.ask import Ask, Resolved
from prefect_tao.preflight.resolve.model_launch import resolve
from prefect_tao.runner.entrypoint import entrypoint_for
from prefect_tao.runner.inside.pointers import get_pointer, walk

CATALOG = load_catalog(overlays=())
ACTIONS = [(name, action) for name, model in CATALOG.models.items() for action in model.actions]
TRAININGS = [(name, action) for name, action in ACTIONS if action == "train"]
ROOTS: dict[Source, tuple[str, ...]] = {source: (f"s3://bucket/{source}",) for source in get_args(Source)}
FILES = ("train/model_epoch_009.pth", "export/model.onnx", "engine/model.engine")

# What no dataset root can tell: a person gives these.
OPEN: dict[str, set[str]] = {
    "bevfusion": {f"dataset.{split}_dataset.ann_file" for split in ("train", "val", "test")},
    "codetr": {"dataset.train_data_sources"},
    "cosmos-embed": {"dataset.train_dataset.mp4_urls", "dataset.val_dataset.mp4_urls"},
    "nv-tesseract-ad-diffusion": {"dataset.csv"},
    "nv-tesseract-forecasting": {"dataset.csv"},
    "pointpillars": {"dataset.data_info_path"},
    "video-clip": {"model.text_encoder"},
}


def resolved(model: str, action: str, **fields: Any) -> Resolved:
    target = "slurm/polar" if CATALOG.models[model].container_image else "process"
    return resolve(CATALOG, Ask(model=model, action=action, **{"target": target, "roots": ROOTS, **fields}))


@pytest.mark.parametrize(("model", "action"), TRAININGS)
def test_every_training_resolves_from_roots(model: str, action: str) -> None:
    found = resolved(model, action)
    open_keys = OPEN.get(model, set())
    assert {pointer for pointer, value in walk(found.spec) if value == "???"} <= open_keys
    assert all(any(key in line for key in open_keys) for line in failures(found))
    assert found.request is not None
    assert entrypoint_for(found.request).script()


@pytest.mark.parametrize(("model", "action"), TRAININGS)
def test_every_training_is_complete_once_its_open_keys_are_given(model: str, action: str) -> None:
    given = dict.fromkeys(OPEN.get(model, ()), "s3://bucket/extra/file")
    found = resolved(model, action, overrides=given)
    assert not failures(found)
    assert all("://" in value for value in found.datasets.values())


@pytest.mark.parametrize(("model", "action"), ACTIONS)
def test_every_action_takes_what_its_parent_hands_over(model: str, action: str) -> None:
    found = resolved(model, action, parents=(parent(*FILES),))
    assert found.request is not None
    for key, word in CATALOG.models[model].actions[action].handoff.items():
        if word in ("parent_model", "parent_model_folder"):
            assert str(get_pointer(found.spec, key)).startswith("/results/a")


@pytest.mark.parametrize(("model", "action"), ACTIONS)
def test_without_roots_every_problem_comes_with_a_remedy(model: str, action: str) -> None:
    found = resolved(model, action, roots={})
    assert found.request is not None
    assert all("--" in line for line in failures(found))


@pytest.mark.parametrize(("model", "action"), [pair for pair in TRAININGS if pair[0] != "tiny"])
def test_no_training_passes_without_any_data(model: str, action: str) -> None:
    lines = failures(resolved(model, action, roots={}))
    assert any(line.startswith(("datasets: ", "dataset.", "custom.")) for line in lines), lines


def test_a_training_that_can_take_this_or_that_is_told_both_ways() -> None:
    (line,) = [line for line in failures(resolved("clip", "train", roots={})) if "no training data" in line]
    assert "--train-root '/lustre" in line
    assert "or --train-wds-root '/lustre" in line
    assert "--set 'dataset.train.datasets[0].image_dir=/lustre" in line
    assert not failures(resolved("clip", "train", roots={"train_wds": ("/lustre/shards",)}))
    assert not failures(resolved("clip", "train", roots={}, overrides={"dataset.train.wds.root_dir": "/lustre/s"}))
    declined = resolved("clip", "train", roots={}, overrides={"dataset.train.datasets": None})
    assert not [line for line in failures(declined) if "no training data" in line]
