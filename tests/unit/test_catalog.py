"""The packaged catalog is whole and true to its sources; overlays change it; every fault names file, key and reason."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefect_tao.catalog.bounds import is_rate, search_parameter
from prefect_tao.catalog.image_versions import image_keys, is_image_key
from prefect_tao.catalog.loading import CatalogError, load_catalog, resolve_image_key
from prefect_tao.catalog.lookup import find_model, find_platform, nearest_models, nearest_platforms
from prefect_tao.catalog.nouns import ActionEntry, Catalog, SearchParameter
from prefect_tao.catalog.yaml_files import Fault
from prefect_tao.jobs.request import InputRule, OutputRule
from prefect_tao.runner.inside.pointers import get_pointer, parse_pointer, set_pointer

DEPLOY = ("gen_trt_engine", "trt_evaluate", "trt_inference")


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the tester's own catalog nor a skill bank reaches these tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_TAO_CATALOG", raising=False)
    monkeypatch.delenv("TAO_SKILL_BANK_PATH", raising=False)


@pytest.fixture
def catalog() -> Catalog:
    return load_catalog()


def actions(catalog: Catalog) -> Iterator[tuple[str, str, ActionEntry]]:
    for model, entry in catalog.models.items():
        for name, action in entry.actions.items():
            yield model, name, action


def write(folder: Path, name: str, content: Any) -> Path:
    """A file of an overlay, from text or data."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def fault(folder: Path, **arguments: Any) -> Fault:
    with pytest.raises(CatalogError) as caught:
        load_catalog(overlays=[folder], **arguments)
    assert all(str(found) in str(caught.value) for found in caught.value.faults)
    return caught.value.fault


# -- the packaged data -------------------------------------------------------------------------------------------------


def test_all_models_and_actions_are_there(catalog: Catalog) -> None:
    tao = {name: model for name, model in catalog.models.items() if name != "tiny"}
    assert len(tao) == 37
    names = [name for model in tao.values() for name in model.actions]
    # 173 plain and 62 TensorRT actions; five models list gen_trt_engine among both. Cosmos has seven by its backends.
    assert len(names) == 173 + 62 - 5 + 7
    assert len([name for name in names if name in DEPLOY]) == 62
    assert names.count("train") == 37
    assert set(catalog.models["tiny"].actions) == {"train", "evaluate", "export"}
    assert sum(model.automl.enabled for model in tao.values()) == 33
    assert sum(len(model.automl.parameters) for model in tao.values()) == 352


def test_the_platforms_are_those_of_the_house(catalog: Catalog) -> None:
    blocks = {name: platform.block for name, platform in catalog.platforms.items()}
    assert blocks == {
        "lepton": "tao-lepton",
        "brev": "tao-brev",
        "slurm": "tao-slurm",
        "local-docker": "tao-docker",
        "remote-docker": "tao-docker",
        "kubernetes": "tao-kubernetes",
        "process": "tao-process",
    }
    slurm = catalog.platforms["slurm"]
    assert slurm.required == ("SLURM_USER", "SLURM_HOSTNAME", "SLURM_PARTITION")
    assert slurm.groups[0].preferred == "SSH_KEY_PATH"
    expected = {"num_gpus": 4, "cpus_per_task": 16, "time_hours": 4, "timeout_hours": 3.8, "max_time_hours": 4}
    assert expected.items() <= slurm.defaults.items()
    assert catalog.host_minimum == {"driver": "580", "cuda": "13.0", "container_toolkit": "1.19.0"}
    assert (catalog.long_running_enabled, catalog.status_interval_minutes) == (True, 5)


def test_every_credential_that_is_named_is_explained(catalog: Catalog) -> None:
    named = {name for model in catalog.models.values() for name in (*model.credentials, *model.conditional_credentials)}
    for platform in catalog.platforms.values():
        named |= {*platform.required, *(use.name for use in platform.optional)}
        named |= {name for group in platform.groups for name in group.one_of}
        assert all(use.only_when for use in platform.optional)
    assert named == set(catalog.credentials)
    assert all(entry.description and entry.how_to_get for entry in catalog.credentials.values())
    assert catalog.credentials["NGC_KEY"].secret
    assert not catalog.credentials["SLURM_PARTITION"].secret


def test_every_image_key_resolves_to_a_reference(catalog: Catalog) -> None:
    for key in image_keys(catalog.images):
        assert not is_image_key(resolve_image_key(catalog.images, key))
    for model, name, action in actions(catalog):
        image = action.container_image or catalog.models[model].container_image
        if model == "tiny" or model.startswith("nv-tesseract"):
            assert image is None
        else:
            assert image, (model, name)
            assert "/" in resolve_image_key(catalog.images, image)


def test_engines_are_built_and_run_in_the_deploy_image(catalog: Catalog) -> None:
    for model, name, action in actions(catalog):
        if name in DEPLOY:
            assert action.container_image == "tao_toolkit.deploy", (model, name)
            assert "parent_model" in action.handoff.values(), (model, name)


def test_tensorrt_actions_do_not_hide_the_plain_ones(catalog: Catalog) -> None:
    dino = catalog.models["dino"].actions
    assert dino["evaluate"].handoff["evaluate.checkpoint"] == "parent_model"
    assert dino["trt_evaluate"].handoff["evaluate.trt_engine"] == "parent_model"
    assert dino["evaluate"].command == dino["trt_evaluate"].command


def test_search_parameters_have_real_bounds(catalog: Catalog) -> None:
    for model in catalog.models.values():
        for parameter in model.automl.parameters:
            if parameter.type in ("int", "float") or parameter.type.startswith("list"):
                assert parameter.min is not None, parameter
                assert parameter.max is not None, parameter
                assert math.isfinite(parameter.min), parameter
                assert math.isfinite(parameter.max), parameter
                assert parameter.min < parameter.max, parameter
            if is_rate(parameter.name):
                assert parameter.log, parameter
                assert (parameter.min or 0) > 0, parameter
            if parameter.type in ("int", "float") and parameter.default:
                assert (parameter.min or 0) <= parameter.default <= (parameter.max or 0), parameter


def test_every_key_is_a_pointer_and_every_rule_one_of_a_job_request(catalog: Catalog) -> None:
    for model, name, action in actions(catalog):
        for key in (*action.datasets, *action.inputs, *action.outputs, *action.handoff):
            assert parse_pointer(key), (model, name, key)
        for rule in action.inputs.values():
            InputRule.model_validate(rule)
        for rule in action.outputs.values():
            OutputRule.model_validate(rule)
        for dataset in action.datasets.values():
            ways = [way for way in (dataset.path, dataset.by_format, dataset.fields) if way is not None]
            assert len(ways) == 1, (model, name)
        assert ("{config_path}" in action.command) == (action.mode == "config")


def test_a_template_holds_a_mark_for_every_required_input_and_takes_a_value_there(catalog: Catalog) -> None:
    for model, name, action in actions(catalog):
        for key, rule in action.inputs.items():
            if not rule.get("optional"):
                assert get_pointer(action.template, key) == "???", (model, name, key)
    template = yaml.safe_load(yaml.safe_dump(catalog.models["dino"].actions["train"].template))
    set_pointer(template, "dataset.train_data_sources[0].image_dir", "/data/images")
    assert template["dataset"]["train_data_sources"][0] == {"image_dir": "/data/images", "json_file": "???"}


def test_a_key_that_receives_a_folder_is_declared_as_one(catalog: Catalog) -> None:
    for model, name, action in actions(catalog):
        for key, rule in action.datasets.items():
            if rule.extracted or rule.path == "":
                assert action.inputs[key]["type"] == "folder", (model, name, key)
    assert catalog.models["dino"].actions["train"].inputs["dataset.train_data_sources[0].image_dir"]["type"] == "folder"


def test_dataset_roots_map_as_the_models_expect(catalog: Catalog) -> None:
    cosmos = catalog.models["cosmos-reason"].actions["train"]
    assert cosmos.datasets["custom.train_dataset.annotation_path"].path == "annotations.json"
    assert cosmos.datasets["custom.train_dataset.media_path"].path == ""
    assert not cosmos.json_required_fields
    assert set(cosmos.json_advised_fields.values()) == {("video_fps",)}
    assert catalog.models["segformer"].actions["train"].datasets["dataset.segment.root_dir"].path == ""
    dino = catalog.models["dino"].actions["train"].datasets["dataset.train_data_sources"]
    assert dino.many
    assert dino.fields is not None
    assert dino.fields["json_file"].path == "annotations.json"
    assert catalog.models["clip"].actions["train"].datasets["dataset.train.wds.root_dir"].source == "train_wds"


def test_loading_twice_gives_the_same_object() -> None:
    assert load_catalog() is load_catalog()


# -- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leaf", "low", "high", "log"),
    [
        ({"name": "train.optim.lr", "type": "float", "default": 1e-4, "min": 0.0, "max": "inf"}, 1e-6, 1e-3, True),
        ({"name": "train.lr", "type": "float", "default": 1e-5, "min": 1e-7, "max": 1e-3}, 1e-7, 1e-3, True),
        ({"name": "a.weight_decay", "type": "float", "default": 0.0, "max": math.inf}, 1e-6, 0.1, True),
        ({"name": "a.momentum", "type": "float", "default": 0.9, "min": 0.0, "max": "inf"}, 0, 1, False),
        ({"name": "a.batch_size", "type": "int", "default": 4, "min": 1, "max": "inf"}, 1, 16, False),
        ({"name": "model.enc_layers", "type": "int", "default": 6, "min": 1}, 1, 12, False),
        ({"name": "a.window_size", "type": "int", "default": -1, "min": -1, "max": "inf"}, -1, 99, False),
        ({"name": "a.grad_clip", "type": "float", "default": 0.0, "min": 0.0, "max": "inf"}, 0, 10, False),
        ({"name": "a.lr_step_size", "type": "int", "default": 10, "min": 0, "max": "inf"}, 1, 40, False),
        ({"name": "a.lr_steps", "type": "list_2", "default": [40, 70]}, 4, 280, False),
        ({"name": "a.same", "type": "int", "default": 3, "min": 3, "max": 3}, 3, 4, False),
    ],
)
def test_open_bounds_become_finite(leaf: dict[str, Any], low: float, high: float, log: bool) -> None:
    found = search_parameter(leaf)
    assert found.log is log
    assert [found.min, found.max] == pytest.approx([low, high])


def test_choices_and_switches_have_no_bounds() -> None:
    choice = search_parameter({"name": "a", "type": "categorical", "options": ["x", "y"], "option_weights": [1, 2]})
    assert choice == SearchParameter(name="a", type="categorical", options=("x", "y"), weights=(1, 2))
    assert search_parameter({"name": "a", "type": "bool", "default": True}).min is None


# -- looking up --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["dino", "DINO", "tao-train-dino", " dino "])
def test_a_model_is_found_by_its_names(catalog: Catalog, text: str) -> None:
    assert find_model(catalog, text) == ["dino"]


def test_a_model_is_found_by_arch_alias_and_hugging_face_id(catalog: Catalog) -> None:
    assert find_model(catalog, "classification_pyt") == ["image-classification"]
    assert find_model(catalog, "cosmos-rl") == ["cosmos-reason"]
    assert find_model(catalog, "NVIDIA/cosmos3-nano") == ["cosmos-reason"]
    assert find_model(catalog, "NVIDIA/cosmos3-edge") == find_model(catalog, "cosmos-framework") == ["cosmos3-edge"]
    assert sorted(find_model(catalog, "depth_net_stereo")) == ["fast-foundation-stereo", "foundation-stereo"]
    assert find_model(catalog, "dyno") == []


def test_an_unknown_name_has_near_ones(catalog: Catalog) -> None:
    assert "dino" in nearest_models(catalog, "dyno")
    assert nearest_models(catalog, "segformr")[0] == "segformer"
    assert "foundation-stereo" in nearest_models(catalog, "stereo")
    assert nearest_models(catalog, "") == []
    assert nearest_platforms(catalog, "slrum") == ["slurm"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("dgx-cloud", "lepton"),
        ("cluster", "slurm"),
        ("Docker", "local-docker"),
        ("k8s", "kubernetes"),
        ("local-k8s", "kubernetes"),
        ("process", "process"),
        ("cloud9", None),
    ],
)
def test_a_platform_is_found_by_name_or_alias(catalog: Catalog, text: str, name: str | None) -> None:
    assert find_platform(catalog, text) == name


# -- overlays ----------------------------------------------------------------------------------------------------------

MODEL = {
    "title": "Ours",
    "arch": "ours",
    "image": "team.trainer",
    "actions": {"train": {"command": "go {config_path}"}},
}


def test_an_overlay_adds_and_replaces_and_merges_images(tmp_path: Path) -> None:
    write(tmp_path, "models/ours.yaml", {**MODEL, "credentials": ["TEAM_TOKEN"]})
    write(tmp_path, "models/dino.yaml", {**MODEL, "arch": "dino"})
    write(
        tmp_path, "images.yaml", {"images": {"team": {"trainer": "tao_toolkit.pyt"}, "tao_toolkit": {"pyt": "r/x:1"}}}
    )
    write(tmp_path, "credentials.yaml", {"credentials": {"TEAM_TOKEN": {"description": "d", "how_to_get": "ask"}}})
    catalog = load_catalog(overlays=[tmp_path])
    assert catalog.models["ours"].title == "Ours"
    assert list(catalog.models["dino"].actions) == ["train"]
    assert resolve_image_key(catalog.images, "team.trainer") == "r/x:1"
    assert resolve_image_key(catalog.images, "tao_toolkit.deploy").endswith("-deploy")
    assert catalog.sources == ("packaged", str(tmp_path))
    assert len(load_catalog(overlays=[]).models["dino"].actions) > 1


def test_overlays_come_from_the_home_folder_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    action = {"train": {"command": "go {config_path}"}}
    for name, folder in (("home", "home/.config/prefect-tao/catalog"), ("one", "one"), ("two", "two")):
        write(tmp_path / folder, "models/ours.yaml", {"title": name, "arch": "ours", "actions": action})
        write(tmp_path / folder, f"models/{name}.yaml", {"title": name, "arch": name, "actions": action})
    monkeypatch.setenv("PREFECT_TAO_CATALOG", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    catalog = load_catalog()
    assert {"home", "one", "two"} <= set(catalog.models)
    assert catalog.models["ours"].title == "two"
    monkeypatch.delenv("PREFECT_TAO_CATALOG")
    assert load_catalog().models["ours"].title == "home"


# -- faults ------------------------------------------------------------------------------------------------------------

PLATFORM = {"title": "T", "description": "d", "block": "tao-x", "storage": {"scheme": "file", "uri": "x"}}


@pytest.mark.parametrize(
    ("name", "content", "key", "reason"),
    [
        ("models/ours.yaml", "title: Ours\nactions: [\n", "", "not valid YAML in line"),
        ("models/ours.yaml", "- a list\n", "", "a map is expected"),
        ("models/ours.yaml", {**MODEL, "comand": 1}, "comand", "not known"),
        ("models/ours.yaml", {"title": "Ours", "arch": "ours"}, "actions", "missing"),
        ("models/ours.yaml", {**MODEL, "actions": {"train": {}}}, "actions.train.command", "missing"),
        ("models/ours.yaml", {**MODEL, "hardware": {"min_gpus": "many"}}, "hardware.min_gpus", "integer"),
        ("models/ours.yaml", MODEL, "image", "team.trainer: there is no such image version key"),
        ("models/ours.yaml", {**MODEL, "image": None, "credentials": ["NOPE"]}, "credentials", "NOPE is not defined"),
        ("platforms.yaml", {"platform": {}}, "platform", "not known"),
        ("platforms.yaml", {"platforms": {"x": {**PLATFORM, "block": 3}}}, "platforms.x.block", "string"),
        ("platforms.yaml", {"platforms": {"x": {**PLATFORM, "required": ["NOPE"]}}}, "platforms.x.required", "NOPE"),
        ("platforms.yaml", {"status_interval_minutes": "soon"}, "status_interval_minutes", "number"),
        ("credentials.yaml", {"credentials": {"X": {"description": "d"}}}, "credentials.X.how_to_get", "missing"),
        ("images.yaml", {"images": {"a": {"b": "a.c", "c": "a.b"}}}, "a.b", "a.b -> a.c -> a.b"),
        ("images.yaml", {"images": {"a": "b.c"}}, "b.c", "no such image version key"),
        ("images.yaml", {"images": {"a": 7}}, "a", "expected, not 7"),
        ("images.yaml", {"images": {"a": ""}}, "a", "expected, not ''"),
        ("images.yaml", {"images": ["a"]}, "images", "a map is expected"),
        ("images.yaml", {"host_minimum": {"driver": 580}}, "host_minimum.driver", "string"),
        ("platform.yaml", {}, "", "not a catalog file"),
    ],
)
def test_a_fault_names_file_key_and_reason(tmp_path: Path, name: str, content: Any, key: str, reason: str) -> None:
    path = write(tmp_path, name, content)
    error = fault(tmp_path)
    assert (error.file, error.key) == (str(path), key)
    assert reason in error.reason


def test_a_folder_that_is_not_there_and_a_file_that_is_not_text(tmp_path: Path) -> None:
    assert "no such catalog folder" in fault(tmp_path / "nowhere").reason
    (tmp_path / "images.yaml").write_bytes(b"\xff\xfe\x00bad")
    assert fault(tmp_path).file == str(tmp_path / "images.yaml")


def test_an_image_key_may_be_a_reference_or_carry_the_prefix() -> None:
    images = {"a": {"b": "images.c", "d": {"e": "x:1"}}, "c": "registry/image:2"}
    assert resolve_image_key(images, "a.b") == "registry/image:2"
    assert resolve_image_key(images, "other/image") == "other/image"
    for group in ("a", "a.d", "", "a..b"):
        with pytest.raises(CatalogError):
            resolve_image_key(images, group)


def test_all_faults_of_a_catalog_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.yaml").write_text("title: A\naction: {}\n")
    (tmp_path / "models" / "b.yaml").write_text("title: [B\n")
    (tmp_path / "credentials.yaml").write_text("credentials: {KEY: {description: x}}\ncredential: {}\n")
    with pytest.raises(CatalogError) as caught:
        load_catalog(overlays=[tmp_path, tmp_path / "none"])
    told = {(Path(fault.file).name, fault.key): fault.reason for fault in caught.value.faults}
    assert told["a.yaml", "arch"] == told["a.yaml", "actions"] == "this key is missing"
    assert told["a.yaml", "action"] == "this key is not known"
    assert "not valid YAML" in told["b.yaml", ""]
    assert told["credentials.yaml", "credentials.KEY.how_to_get"] == "this key is missing"
    assert "not known" in told["credentials.yaml", "credential"]
    assert "no such catalog folder" in told["none", ""]


def test_all_references_that_lead_nowhere_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    model = {"title": "A", "arch": "a", "actions": {"train": {"command": "true", "image": "no.such"}}}
    for name in ("a", "b"):
        entry = {**model, "arch": name, "credentials": ["NO_SUCH_KEY"]}
        (tmp_path / "models" / f"{name}.yaml").write_text(yaml.safe_dump(entry))
    with pytest.raises(CatalogError) as caught:
        load_catalog(overlays=[tmp_path])
    told = [(Path(fault.file).name, fault.key) for fault in caught.value.faults]
    images = [("a.yaml", "actions.train.image"), ("b.yaml", "actions.train.image")]
    credentials = [("a.yaml", "credentials"), ("b.yaml", "credentials")]
    assert told == images + credentials
