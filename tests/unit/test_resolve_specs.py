"""The spec of a launch: layers, datasets by root and by exact key, and the checks of what a person gave."""

from __future__ import annotations

from typing import Any

import pytest
from resolve_tools import DETECTOR, READER, ROOTS, asked, catalog, failures, launch, warnings

from prefect_tao.jobs.request import InputRule
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.datasets import strip_slashes
from prefect_tao.preflight.resolve.model_launch import resolve
from prefect_tao.runner.entrypoint import entrypoint_for
from prefect_tao.runner.inside.pointers import get_pointer


def trained(**fields: Any) -> Resolved:
    return launch(**{"roots": ROOTS, **fields})


def read(**fields: Any) -> Resolved:
    return launch("reader", **{"roots": {"train": ("/data/a",)}, **fields})


# -- layers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "pointer", "expected"),
    [
        ({}, "dataset.batch_size", 4),
        ({}, "train.optim.lr", 0.0002),
        ({"spec": {"train": {"optim": {"lr": 0.5}}}}, "train.optim.lr", 0.5),
        ({"spec": {"train": {"optim": {"lr": 0.5}}}, "overrides": {"learning_rate": 0.7}}, "train.optim.lr", 0.7),
        ({"overrides": {"num_epochs": 20}}, "train.num_epochs", 20),
        ({"overrides": {"train.num_epochs": 21}}, "train.num_epochs", 21),
        ({"overrides": {"train.optim.lr": "1e-4"}}, "train.optim.lr", 1e-4),
        ({"spec": {"train": {"optim": {"lr": "5e-05"}}}}, "train.optim.lr", 5e-5),
        ({"spec": {"train": None}, "overrides": {"train.new.key": 1}}, "train.new.key", 1),
        ({"gpus": 2}, "train.num_gpus", 2),
        ({"gpus": 2}, "train.gpu_ids", [0, 1]),
        ({"gpus": 2, "overrides": {"train.gpu_ids": [3, 4]}}, "train.gpu_ids", [3, 4]),
        ({"target": "slurm", "nodes": 2}, "train.num_nodes", 2),
        ({"target": "process"}, "train.num_gpus", 2),
        ({"target": "process", "gpus": 0}, "train.num_gpus", 1),
        ({"overrides": {"encryption_key": "mine"}}, "encryption_key", "mine"),
    ],
)
def test_a_later_layer_wins(fields: dict[str, Any], pointer: str, expected: object) -> None:
    resolved = trained(**fields)
    assert get_pointer(resolved.spec, pointer) == expected
    assert not failures(resolved)


def test_an_action_that_does_not_train_has_its_own_gpu_key_and_no_train_section() -> None:
    spec = launch(action="evaluate", target="slurm").spec
    assert spec["evaluate"]["num_gpus"] == 4
    assert spec["model"] == {"backbone": "resnet_50"}
    assert "train" not in spec


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"spec": {"train.num_epochs": 3}}, ["train.num_epochs", "flat key", "{train: {num_epochs: ...}}"]),
        ({"spec": {"train": {"optim.lr": 3}}}, ["optim.lr", "flat key"]),
        ({"overrides": {"train..x": 3}}, ["'train..x'", "train.num_epochs"]),
        ({"overrides": {"a[x]": 3}}, ["'a[x]'"]),
        ({"overrides": {"train.num_epochs.x": 3}}, ["train.num_epochs.x", "the value 10"]),
        ({"overrides": {"dataset.train_sources[5].json_file": "x"}}, ["train_sources[5]", "1 elements"]),
        ({"overrides": {"num_epochs": 3, "train.num_epochs": 4}}, ["train.num_epochs", "given twice", "3", "4"]),
    ],
)
def test_a_key_that_cannot_be_placed_is_told(fields: dict[str, Any], parts: list[str]) -> None:
    lines = failures(trained(**fields))
    assert any(all(part in line for part in parts) for line in lines), lines


# -- datasets by root --------------------------------------------------------------------------------------------------


def test_roots_become_the_files_that_the_rules_name() -> None:
    resolved = trained()
    assert resolved.datasets == {
        "dataset.train_sources[0].image_dir": "s3://bucket/train/images.tar.gz",
        "dataset.train_sources[0].json_file": "s3://bucket/train/annotations.json",
        "dataset.val.json_file": "s3://bucket/eval/annotations.json",
    }
    assert resolved.request is not None
    assert resolved.request.inputs == {
        "dataset.train_sources[0].image_dir": InputRule(type="folder"),
        "dataset.train_sources[0].json_file": InputRule(type="file"),
        "dataset.val.json_file": InputRule(type="file"),
    }


def test_several_roots_give_one_list_element_each() -> None:
    resolved = trained(roots={"train": ("s3://b/one/", "s3://b/two//"), "eval": ("/e",)})
    assert not failures(resolved)
    assert resolved.spec["dataset"]["train_sources"] == [
        {
            "image_dir": f"{root}/images.tar.gz",
            "json_file": f"{root}/annotations.json",
            "weight": 1,
            "kind": "CocoDataset",
        }
        for root in ("s3://b/one", "s3://b/two")
    ]
    assert resolved.request is not None
    assert resolved.request.inputs["dataset.train_sources[1].image_dir"] == InputRule(type="folder")


@pytest.mark.parametrize(
    "root",
    ["s3://b/a", "lustre:///lustre/fsw/a", "slurm://host/a", "file:///data/a", "/data/a", "hf_dataset://org/set"],
)
def test_every_scheme_passes_through_and_the_empty_path_is_the_root(root: str) -> None:
    resolved = read(roots={"train": (root + "/",)})
    assert resolved.spec["data"]["root"] == root
    assert resolved.datasets["data.media"] == f"{root}/images.tar.gz"


@pytest.mark.parametrize(
    ("text", "bare"), [("/a//", "/a"), ("/", "/"), ("file:///", "file:///"), ("s3://b/", "s3://b")]
)
def test_slashes_at_the_end_are_dropped(text: str, bare: str) -> None:
    assert strip_slashes(text) == bare


@pytest.mark.parametrize(
    ("data_format", "media", "alternatives"),
    [
        (None, "images.tar.gz", {"data.media": ("/data/a/videos.tar.gz",)}),
        ("llava", "images.tar.gz", {"data.media": ("/data/a/videos.tar.gz",)}),
        ("plain", "media.tar.gz", {}),
    ],
)
def test_the_format_chooses_the_path_and_other_names_are_kept(
    data_format: str | None, media: str, alternatives: dict[str, Any]
) -> None:
    resolved = read(data_format=data_format)
    assert resolved.spec["data"]["media"] == f"/data/a/{media}"
    assert resolved.alternatives == alternatives


def test_a_strange_format_is_a_warning_and_a_format_without_path_fails() -> None:
    assert any("lava" in line and "did you mean llava" in line for line in warnings(read(data_format="lava")))
    model = {**READER, "actions": {"train": {**READER["actions"]["train"]}}}
    model["actions"]["train"]["datasets"] = {"m": {"source": "train", "by_format": {"coco": "a.json"}}}
    ask = asked(model="other", action="train", target="local-docker", roots={"train": ("/d",)}, data_format="plain")
    assert any("'plain'" in line and "coco" in line for line in failures(resolve(catalog(other=model), ask)))


def test_objects_and_lists_have_one_element_per_root() -> None:
    resolved = read(roots={"train": ("/t",), "eval": ("/a", "/b"), "calibration": ("/c",)})
    assert not failures(resolved)
    assert resolved.spec["data"]["pairs"] == [{"image_dir": "/a/images.tar.gz"}, {"image_dir": "/b/images.tar.gz"}]
    assert resolved.spec["data"]["lists"] == ["/c/list.txt"]
    assert resolved.optional_datasets == {"data.pairs[0].names": "/a/names.txt", "data.pairs[1].names": "/b/names.txt"}
    assert resolved.request is not None
    assert resolved.request.inputs["data.pairs[1].image_dir"] == InputRule(type="folder")
    assert resolved.datasets["data.lists[0]"] == "/c/list.txt"


def test_a_key_for_one_root_refuses_several() -> None:
    resolved = read(roots={"train": ("/a", "/b")})
    assert any("data.root" in line and "2 were given" in line for line in failures(resolved))


def test_a_required_root_is_asked_for_in_both_modes_with_examples() -> None:
    lines = failures(launch(roots={"train": ("/t",)}))
    assert len(lines) == 1
    assert "no eval root" in lines[0]
    assert "--eval-root s3://bucket/detector/eval" in lines[0]
    assert "--set dataset.val.json_file=s3://bucket/detector/eval/annotations.json" in lines[0]


def test_the_train_root_never_stands_in_for_the_eval_root() -> None:
    assert launch(roots={"train": ("/t",)}).spec["dataset"]["val"]["json_file"] == "???"


@pytest.mark.parametrize("path", ["{train_annotation}", "*.json", "a/../../b", "/abs.json"])
def test_a_rule_without_a_plain_path_is_a_catalog_problem(path: str) -> None:
    model = {**READER, "actions": {"infer": {**READER["actions"]["infer"]}}}
    model["actions"]["infer"]["datasets"] = {"media": {"source": "inference", "path": path}}
    fields: dict[str, Any] = {"model": "other", "action": "infer", "target": "process"}
    ask = asked(**fields, roots={"inference": ("/d",)})
    lines = failures(resolve(catalog(other=model), ask))
    assert any(path in line and "catalog" in line and "--set media=path" in line for line in lines)
    direct = asked(**fields, roots={"inference": ("/d",)}, overrides={"media": "/d/x.json"})
    assert not any("catalog" in line for line in failures(resolve(catalog(other=model), direct)))


@pytest.mark.parametrize(
    ("roots", "part", "level"),
    [
        ({**ROOTS, "calibration": ("/c",)}, "--calibration-root: /c is not used", "warn"),
        ({"train": (" ",), "eval": ("/e",)}, "--train-root: a root is empty", "fail"),
    ],
)
def test_roots_that_say_nothing_are_told(roots: dict[str, Any], part: str, level: str) -> None:
    resolved = launch(roots=roots)
    assert any(part in line for line in (warnings if level == "warn" else failures)(resolved))


# -- datasets by exact key ---------------------------------------------------------------------------------------------


def test_an_exact_key_wins_over_the_root_and_is_never_extended() -> None:
    exact = {"dataset.train_sources[0].image_dir": "/lustre/videos/", "dataset.val.json_file": "/lustre/val.json"}
    resolved = launch(roots={"train": ("s3://b/t",)}, overrides=exact)
    assert not failures(resolved)
    assert resolved.datasets == {**exact, "dataset.train_sources[0].json_file": "s3://b/t/annotations.json"}


def test_exact_keys_alone_suffice() -> None:
    sources = [{"image_dir": "/a/i.tar.gz", "json_file": "/a.json"}, {"image_dir": "/b", "json_file": "/b.json"}]
    resolved = launch(spec={"dataset": {"train_sources": sources, "val": {"json_file": "/v.json"}}})
    assert not failures(resolved)
    assert resolved.spec["dataset"]["train_sources"] == sources
    assert resolved.request is not None
    assert resolved.request.inputs["dataset.train_sources[1].json_file"] == InputRule(type="file")
    assert resolved.request.inputs["dataset.train_sources[0].image_dir"] == InputRule(type="folder")


def test_what_a_file_leaves_open_is_filled_from_the_root() -> None:
    sources = [{"image_dir": "/mine", "json_file": "???"}]
    resolved = trained(spec={"dataset": {"train_sources": sources, "val": {"json_file": None}}})
    assert not failures(resolved)
    assert resolved.datasets == {
        "dataset.train_sources[0].image_dir": "/mine",
        "dataset.train_sources[0].json_file": "s3://bucket/train/annotations.json",
        "dataset.val.json_file": "s3://bucket/eval/annotations.json",
    }


def test_a_persons_own_list_is_never_extended() -> None:
    sources = [{"image_dir": "/mine", "json_file": "/mine.json"}]
    roots = {"train": ("/a", "/b"), "eval": ("/e",)}
    resolved = launch(roots=roots, spec={"dataset": {"train_sources": sources}})
    assert resolved.spec["dataset"]["train_sources"] == sources
    pairs = read(roots={"train": ("/t",), "calibration": ("/a", "/b")}, spec={"data": {"lists": ["/only"]}})
    assert pairs.spec["data"]["lists"] == ["/only"]


def test_a_map_given_as_one_key_is_laid_over_the_rest() -> None:
    resolved = trained(overrides={"dataset": {"batch_size": 8}, "train.optim": {"name": "sgd"}})
    assert not failures(resolved)
    assert resolved.spec["train"]["optim"] == {"lr": 0.0002, "name": "sgd"}
    assert resolved.datasets["dataset.val.json_file"] == "s3://bucket/eval/annotations.json"


def test_an_emptied_dataset_is_told_and_a_declined_one_is_a_warning() -> None:
    emptied = failures(trained(spec={"dataset": {"train_sources": []}}))
    assert len(emptied) == 1
    assert "wins over --train-root" in emptied[0]
    declined = launch(roots={"train": ("/t",)}, overrides={"dataset.val.json_file": None})
    assert not failures(declined)
    assert any("dataset.val.json_file: set to nothing" in line for line in warnings(declined))


@pytest.mark.parametrize("spec", [{"train": {"a[0": 1}}, {"train": {"": 1}}, {"train": {1: 2}}, {"": {"": 3}}])
def test_strange_keys_in_a_file_are_findings_and_no_crash(spec: dict[str, Any]) -> None:
    assert failures(launch("checked", target="process", spec=spec))


def test_an_exact_key_leaves_no_alternative() -> None:
    assert read(overrides={"data.media": "/v.tar.gz"}).alternatives == {}


# -- what is left open -------------------------------------------------------------------------------------------------


def test_every_open_value_is_named_with_an_example_of_the_platform() -> None:
    model = {**DETECTOR, "actions": {"train": {**DETECTOR["actions"]["train"], "datasets": {}}}}
    model["actions"]["train"]["template"] = {"model": {"weights_path": "???", "classes": "???"}}
    ask = asked(model="other", action="train", target="slurm")
    lines = failures(resolve(catalog(other=model), ask))
    assert any("--set model.weights_path=/lustre/fsw/other/weights_path" in line for line in lines)
    assert any("--set model.classes=VALUE" in line for line in lines)
    assert any("dataset.val.json_file: no value yet" in line for line in lines)


def test_toml_gets_no_null() -> None:
    resolved = read()
    assert not failures(resolved)
    assert "extra" not in resolved.spec["data"]
    assert resolved.request is not None
    assert entrypoint_for(resolved.request).plan["config_format"] == "toml"


# -- schema ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("train.num_epoch", 3, ["train.num_epoch", "not a key", "3", "did you mean train.num_epochs"]),
        ("num_epoch", 3, ["num_epoch", "not a key", "did you mean num_epochs or train.num_epochs"]),
        ("num_epoch", 3, ["num_epoch", "train.num_epochs"]),
        ("zzz.qqq", 3, ["zzz.qqq", "not a key"]),
        ("train.num_epochs", "many", ["'many'", "a whole number"]),
        ("train.num_epochs", 2.5, ["2.5", "a whole number"]),
        ("train.num_epochs", True, ["True", "a whole number"]),
        ("train.num_epochs", 0, ["0", "1 or more"]),
        ("train.num_epochs", 1001, ["1001", "1000 or less"]),
        ("train.precision", "fp_16", ["'fp_16'", "one of fp16, fp32", "did you mean fp16"]),
        ("train.verbose", "yes", ["'yes'", "true or false"]),
        ("train.name", 5, ["5", "text"]),
        ("train.gpu_ids", 0, ["0", "a list"]),
        ("train.optim.lr", 0, ["0", "> 0.0"]),
        ("train.optim", {"lr": "fast", "rl": 1}, ["train.optim.lr", "'fast'", "a number"]),
        ("train.optim", {"lr": 0.1, "rl": 1}, ["train.optim.rl", "not a key"]),
        ("train.num_epochs.x", 1, ["train.num_epochs.x"]),
    ],
)
def test_a_value_that_does_not_fit_the_schema_fails(key: str, value: object, parts: list[str]) -> None:
    lines = failures(launch("checked", target="process", overrides={key: value}))
    assert any(all(part in line for part in parts) for line in lines), lines


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_epochs", 7),
        ("train.optim.lr", 1),
        ("train.optim.lr", "1e-3"),
        ("train.name", None),
        ("train.gpu_ids[0]", 1),
        ("classes.person", "human"),
        ("train.precision", "fp16"),
    ],
)
def test_a_value_that_fits_the_schema_passes(key: str, value: object) -> None:
    assert not failures(launch("checked", target="process", overrides={key: value}))


def test_a_specs_file_is_checked_like_single_keys() -> None:
    lines = failures(launch("checked", target="process", spec={"train": {"num_epochs": "x", "nam": 1}}))
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("key", "value", "parts"),
    [
        ("model.enc_layers", "six", ["model.enc_layers", "'six'", "a whole number"]),
        ("model.norm", "group", ["model.norm", "'group'", "batch, layer"]),
        ("train.optim.lr", -1, ["train.optim.lr", "-1", "> 0.0"]),
    ],
)
def test_without_a_schema_the_search_parameters_are_checked(key: str, value: object, parts: list[str]) -> None:
    lines = failures(trained(overrides={key: value}))
    assert any(all(part in line for part in parts) for line in lines), lines


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("train.num_epoch", 3, "did you mean train.num_epochs"),
        ("num_epoch", 3, "did you mean num_epochs"),
        ("dataset.train_sources[1].json_fil", "x", ""),
        ("model.enc_layers", 40, "outside the usual range"),
    ],
)
def test_without_a_schema_a_doubtful_key_or_value_is_a_warning(key: str, value: object, part: str) -> None:
    resolved = trained(overrides={key: value}, gpus=2)
    assert any(part in line for line in warnings(resolved)), resolved.findings


@pytest.mark.parametrize("key", ["model.something_else", "dataset", "train.optim.momentum"])
def test_without_a_schema_other_keys_pass_in_silence(key: str) -> None:
    value = {"val": {"json_file": "/v"}, "train_sources": [{"image_dir": "/i", "json_file": "/j"}]}
    resolved = trained(overrides={key: value if key == "dataset" else 1}, gpus=2)
    assert not warnings(resolved)
    assert not failures(resolved)
