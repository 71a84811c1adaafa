"""Every model of the packaged catalog resolves: its training from dataset roots, its other actions from a parent."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from resolve_tools import asked, failures, parent

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.catalog.lookup import find_model
from prefect_tao.catalog.nouns import Source
from prefect_tao.preflight.resolve.ask import Resolved
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
    "cosmos-reason": {"policy.model_name_or_path"},
    "cosmos3-edge": {"job.experiment"},
    "nv-tesseract-ad-diffusion": {"dataset.csv"},
    "nv-tesseract-forecasting": {"dataset.csv"},
    "pointpillars": {"dataset.data_info_path"},
    "video-clip": {"model.text_encoder"},
}


def resolved(model: str, action: str, **fields: Any) -> Resolved:
    name = find_model(CATALOG, model)[0]
    target = "slurm/polar" if CATALOG.models[name].container_image else "process"
    return resolve(CATALOG, asked(model=model, action=action, **{"target": target, "roots": ROOTS, **fields}))


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


# One makes its data, and the recipe of the other names it.
@pytest.mark.parametrize(("model", "action"), [pair for pair in TRAININGS if pair[0] not in ("tiny", "cosmos3-edge")])
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


def test_the_model_of_the_quickstart_draws_its_own_data() -> None:
    for action in ("train", "evaluate"):
        assert not [line for line in failures(resolved("tiny", action, roots={})) if "got no" in line]


def test_an_inference_that_got_neither_data_nor_a_model_is_told_both() -> None:
    lines = failures(resolved("clip", "inference", roots={}))
    assert any("clip inference got no data" in line and "--inference-root" in line for line in lines)
    assert any("clip inference got no model" in line and "--set inference.checkpoint=" in line for line in lines)
    given = {"inference.checkpoint": "s3://bucket/clip.pth"}
    assert not failures(resolved("clip", "inference", overrides=given))
    assert not failures(resolved("clip", "inference", overrides={"inference.checkpoint": None}))


def test_a_list_of_words_is_asked_for_as_a_list() -> None:
    lines = failures(resolved("grounding-dino", "inference", parents=(parent(*FILES),)))
    assert any("--set 'dataset.infer_data_sources.captions=[VALUE, VALUE]'" in line for line in lines)


def test_cosmos_trains_as_its_bank_says_and_needs_weights() -> None:
    (line,) = failures(resolved("cosmos-reason", "train"))
    assert line.startswith("policy.model_name_or_path: no value yet")
    (line,) = failures(resolved("cosmos-reason", "train", overrides={"policy.model_name_or_path": ""}))
    assert line.startswith("policy.model_name_or_path: ")
    found = resolved("nvidia/Cosmos3-Nano", "train", overrides={"policy.model_name_or_path": "nvidia/Cosmos3-Nano"})
    assert not failures(found)
    for key, value in (("train.train_policy.type", "sft"), ("train.ckpt.enable_checkpoint", True)):
        assert get_pointer(found.spec, key) == value
    assert get_pointer(found.spec, "validation.enable") is True


@pytest.mark.parametrize("action", ["train", "export", "evaluate", "inference", "inference_microservice"])
def test_the_edge_model_runs_in_the_image_of_its_framework(action: str) -> None:
    found = resolve(CATALOG, asked(model="nvidia/Cosmos3-Edge", action=action, target="slurm/polar", roots=ROOTS))
    assert found.image is not None
    assert "/cosmos-framework:" in found.image
    other = resolve(CATALOG, asked(model="nvidia/Cosmos3-Nano", action=action, target="slurm/polar", roots=ROOTS))
    assert other.image is not None
    assert ("/cosmos-framework:" in other.image) == (action == "export")


# -- schemas -----------------------------------------------------------------------------------------------------------

WITH_SCHEMA = [(name, action) for name, action in ACTIONS if CATALOG.models[name].actions[action].full_schema]


def test_most_actions_have_a_schema() -> None:
    assert len(WITH_SCHEMA) >= 190
    without = {name for name, _ in ACTIONS} - {name for name, _ in WITH_SCHEMA}
    assert without == {"codetr", "cosmos-embed", "cosmos3-edge", "video-clip"}


@pytest.mark.parametrize(("model", "action"), WITH_SCHEMA)
def test_an_unknown_key_is_refused(model: str, action: str) -> None:
    assert any(
        line.startswith("bogus: not a key") for line in failures(resolved(model, action, overrides={"bogus": 1}))
    )


@pytest.mark.parametrize("model", [name for name, _ in TRAININGS if "num_epochs" in CATALOG.models[name].shorthand])
def test_a_word_is_refused_where_a_count_belongs(model: str) -> None:
    key = CATALOG.models[model].shorthand["num_epochs"]
    found = failures(resolved(model, "train", overrides={"num_epochs": "many"}))
    assert any(line.startswith(f"{key}: 'many'; expected a whole number") for line in found)


def test_what_is_out_of_range_is_refused() -> None:
    found = failures(resolved("dino", "train", overrides={"train.num_epochs": -3}))
    assert any(line.startswith("train.num_epochs: -3; expected 1 or more") for line in found)


@pytest.mark.parametrize(("model", "action"), WITH_SCHEMA)
def test_what_the_catalog_itself_writes_fits_the_schema(model: str, action: str) -> None:
    entry = CATALOG.models[model]
    own = {pointer: value for pointer, value in walk(entry.actions[action].template) if value != "???"}
    keys = {key: value for key, value in {**own, **entry.defaults}.items() if value is not None}
    found = failures(resolved(model, action, overrides=keys, parents=(parent(*FILES),)))
    assert not [line for line in found if "not a key" in line or "expected" in line]


def test_a_typo_is_answered_with_the_nearest_key() -> None:
    (line,) = [
        one for one in failures(resolved("dino", "train", overrides={"train.num_epoch": 3})) if "num_epoch" in one
    ]
    assert "did you mean train.num_epochs" in line


def test_a_key_that_only_a_newer_image_knows_is_let_through_and_shown() -> None:
    given = {"train.brand_new": 3, "train.num_epochs": "many", "bogus": 1}
    found = resolved("dino", "train", overrides=given, allow_keys=["train.brand_new", "train.num_epochs"])
    assert [line.partition(":")[0] for line in failures(found)] == ["bogus"]
    warned = [one.message for one in found.findings if "let through by allow_keys" in one.message]
    assert len(warned) == 2
    assert found.spec["train"]["brand_new"] == 3
