"""What a skill bank's templates show is no data of the person who launches, and a bank is found in every layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from resolve_tools import asked, failures

from prefect_tao.catalog.loading import CatalogError, load_catalog
from prefect_tao.catalog.lookup import find_model
from prefect_tao.catalog.nouns import Catalog
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.model_launch import resolve
from prefect_tao.runner.entrypoint import input_locations
from prefect_tao.runner.inside.pointers import get_pointer

IMAGE = "registry.example/tao/toolkit:7"
FILE, FOLDER = {"type": "file"}, {"type": "folder"}


def action(name: str, inputs: dict[str, Any], **outputs: Any) -> dict[str, Any]:
    return {
        "command": f"finder {name} -e {{config_path}}",
        "config_format": "yaml",
        "mode": "config",
        "inputs": inputs,
        "outputs": {"results_dir": FOLDER, **outputs},
    }


INFO: dict[str, Any] = {
    "network_arch": "finder",
    "container_image": IMAGE,
    "automl_enabled": False,
    "actions": {
        "train": action("train", {"dataset.train.images": FOLDER, "model.weights": {**FILE, "optional": True}}),
        "evaluate": action("evaluate", {"dataset.test.images": FOLDER, "evaluate.checkpoint": FILE}),
        "export": action("export", {"export.checkpoint": FILE}, **{"export.onnx_file": FILE}),
        "inference": action(
            "inference", {"inference.checkpoint": FILE, "dataset.infer.captions": {"type": "list", "optional": True}}
        ),
    },
    "data_sources": {
        "train": {"dataset.train.images": {"source": "train_datasets", "path": "images.tar.gz"}},
        "evaluate": {"dataset.test.images": {"source": "eval_dataset", "path": "images.tar.gz"}},
    },
    "spec_params": {name: {"results_dir": "output_dir"} for name in ("train", "evaluate", "export", "inference")},
}
TEMPLATES: dict[str, dict[str, Any]] = {
    "train": {
        "results_dir": "/results/train",
        "dataset": {"train": {"images": "/data/train"}, "test": {"images": "???"}, "classes": "<required>"},
        "model": {"weights": "hf_model://team/weights", "name": "resnet"},
        "train": {"num_epochs": 3},
        "export": {"onnx_file": "???"},
    },
    "evaluate": {
        "dataset": {"train": {"images": "???"}, "test": {"images": "/data/eval"}},
        "evaluate": {"checkpoint": "/results/finder.pth"},
        "inference": {"checkpoint": "???", "threshold": "???"},
    },
    "export": {
        "dataset": {"train": {"images": "???"}},
        "export": {"checkpoint": "???", "onnx_file": "/results/finder.onnx"},
    },
    "inference": {
        "inference": {"checkpoint": "<checkpoint>"},
        "dataset": {"infer": {"captions": ["red car", "person"]}},
    },
}


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def skill(folder: Path, info: dict[str, Any] = INFO, templates: dict[str, Any] = TEMPLATES) -> None:
    write(folder / "references" / "skill_info.yaml", info)
    for name, template in templates.items():
        write(folder / "references" / f"spec_template_{name}.yaml", template)


@pytest.fixture
def bank(tmp_path: Path) -> Catalog:
    skill(tmp_path / "bank" / "skills" / "models" / "tao-train-finder")
    return load_catalog(skill_bank=tmp_path / "bank", overlays=[])


def launch(catalog: Catalog, name: str, **fields: Any) -> Resolved:
    return resolve(catalog, asked(model="finder", action=name, target="process", **fields))


def named(resolved: Resolved) -> set[str]:
    return {finding.subject.removeprefix("input ") for finding in resolved.findings if finding.blocks}


def test_examples_in_a_template_are_not_the_data_of_a_person(bank: Catalog) -> None:
    train = launch(bank, "train", roots={})
    assert named(train) == {"dataset train", "dataset.classes"}
    assert train.spec["model"] == {"weights": "hf_model://team/weights", "name": "resnet"}
    assert not train.spec["results_dir"]
    assert named(launch(bank, "evaluate", roots={})) == {"dataset eval", "evaluate.checkpoint"}
    assert named(launch(bank, "inference", roots={})) == {"inference.checkpoint"}


def test_what_a_person_gives_takes_the_place_of_an_example(bank: Catalog) -> None:
    given = {"evaluate.checkpoint": "s3://bucket/a.pth"}
    found = launch(bank, "evaluate", roots={"eval": ("s3://bucket/eval",)}, overrides=given)
    assert not failures(found)
    assert get_pointer(found.spec, "dataset.test.images") == "s3://bucket/eval/images.tar.gz"


def test_a_missing_value_that_only_another_action_reads_blocks_nothing(bank: Catalog) -> None:
    found = launch(bank, "export", roots={}, overrides={"export.checkpoint": "s3://bucket/a.pth"})
    assert not failures(found)
    assert found.spec["export"]["onnx_file"] == "model.onnx"  # and not in a folder that nothing keeps
    assert bank.models["finder"].actions["evaluate"].idle_keys == (
        "dataset.train.images",
        "inference.checkpoint",
        "inference.threshold",
    )


def test_words_in_a_list_are_no_paths(bank: Catalog) -> None:
    words = {"inference.checkpoint": "/a.pth", "dataset.infer.captions": ["red car", "/captions/extra.txt"]}
    request = launch(bank, "inference", roots={}, overrides=words).request
    assert request is not None
    assert {uri for uri, _ in input_locations(request).values()} == {"/a.pth", "/captions/extra.txt"}


def test_what_our_catalog_requires_is_required_where_a_bank_leaves_it_empty(tmp_path: Path) -> None:
    info = {**INFO, "network_arch": "cosmos-reason", "actions": {"train": INFO["actions"]["train"]}}
    info["aliases"] = ["Cosmos3-Nano", "Cosmos3-Edge"]
    info["huggingface_model_ids"] = ["nvidia/Cosmos3-Nano", "nvidia/Cosmos3-Edge"]
    template = {"policy": {"model_name_or_path": "", "lora": {}}, "train": {"epoch": 2}}
    folder = tmp_path / "bank" / "skills" / "models" / "tao-finetune-cosmos-reason"
    skill(folder, {**info, "data_sources": {}, "spec_params": {}}, {"train": template})
    catalog = load_catalog(skill_bank=tmp_path / "bank", overlays=[])
    found = resolve(catalog, asked(model="nvidia/Cosmos3-Nano", action="train", target="process", roots={}))
    assert any(line.startswith("policy.model_name_or_path: no value") for line in failures(found))
    assert find_model(catalog, "Cosmos3-Edge") == find_model(catalog, "nvidia/cosmos3-edge") == ["cosmos3-edge"]
    assert find_model(catalog, "Cosmos3-Nano") == ["cosmos-reason"]


def test_a_mark_that_our_catalog_knows_better_blocks_nothing(tmp_path: Path) -> None:
    """An engine needs calibration data for int8 only; a key that our catalog does not know stays required."""
    built = action("gen_trt_engine", {"gen_trt_engine.onnx_file": FILE}, **{"gen_trt_engine.trt_engine": FILE})
    calibration = {"cal_cache_file": "???", "brand_new": "???"}
    template = {"gen_trt_engine": {"onnx_file": "???", "tensorrt": {"calibration": calibration}}}
    info = {**INFO, "network_arch": "classification_pyt", "actions": {"gen_trt_engine": built}}
    folder = tmp_path / "bank" / "skills" / "models" / "tao-train-image-classification"
    skill(folder, {**info, "data_sources": {}, "spec_params": {}}, {"gen_trt_engine": template})
    catalog = load_catalog(skill_bank=tmp_path / "bank", overlays=[])
    given = {"gen_trt_engine.onnx_file": "s3://bucket/a.onnx"}
    found = resolve(
        catalog,
        asked(model="image-classification", action="gen_trt_engine", target="process", roots={}, overrides=given),
    )
    assert named(found) == {"gen_trt_engine.tensorrt.calibration.brand_new"}


LAYOUTS = {
    "the bank's own": "skills/models/tao-train-finder",
    "one folder for all skills": "skills/tao-train-finder",
    "the skills themselves": "tao-train-finder",
    "the first public one": "models/finder",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_read(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "bank"
    skill(root / LAYOUTS[layout])
    if LAYOUTS[layout].startswith(("skills/tao", "tao")):
        beside = (root / LAYOUTS[layout]).parent
        write(beside / "tao-run-on-docker" / "references" / "skill_info.yaml", {"resource_defaults": {"num_gpus": 2}})
    if layout == "one folder for all skills":  # skills that are no models have such a file too
        write(root / "skills" / "tao-analyze-gaps" / "references" / "skill_info.yaml", {"actions": {}})
    catalog = load_catalog(skill_bank=root, overlays=[])
    assert catalog.models["finder"].container_image == IMAGE
    assert catalog.models["finder"].actions["train"].template["train"] == {"num_epochs": 3}
    assert "analyze-gaps" not in catalog.models


def test_deploy_actions_of_the_first_layout_are_read_from_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "bank" / "models" / "finder"
    skill(folder)
    deploy = {"container_image": "registry.example/deploy:7", "actions": {"evaluate": INFO["actions"]["evaluate"]}}
    write(folder / "deploy" / "skill_info.yaml", deploy)
    write(folder / "references" / "spec_template_deploy_evaluate.yaml", {"evaluate": {"batch_size": 4}})
    entry = load_catalog(skill_bank=tmp_path / "bank", overlays=[]).models["finder"].actions["trt_evaluate"]
    assert entry.container_image == "registry.example/deploy:7"
    assert entry.template == {"evaluate": {"batch_size": 4}}


def test_the_usual_folder_is_tried_and_another_folder_of_that_name_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TAO_SKILL_BANK_PATH", raising=False)
    usual = tmp_path / "tao-skills-external"
    usual.mkdir()
    assert "finder" not in load_catalog(overlays=()).models
    skill(usual / "skills" / "models" / "tao-train-finder")
    assert "finder" in load_catalog(overlays=()).models
    assert load_catalog(overlays=()).sources[-1] == str(usual)


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    (tmp_path / "skills").mkdir()
    with pytest.raises(CatalogError, match="no TAO skill bank"):
        load_catalog(skill_bank=tmp_path, overlays=[])
