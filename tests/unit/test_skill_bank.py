"""A TAO skill bank is read as it is, the older generation with its manifest and the current one without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefect_tao.catalog.loading import CatalogError, load_catalog, resolve_image_key
from prefect_tao.catalog.lookup import find_model, find_platform
from prefect_tao.catalog.nouns import Catalog
from prefect_tao.catalog.skill_bank import read_skill_bank

PYT = "nvcr.io/nvidia/tao/tao-toolkit:7.0.0-pyt"
DEPLOY = "nvcr.io/nvidia/tao/tao-toolkit:7.0.0-deploy"


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_TAO_CATALOG", raising=False)
    monkeypatch.delenv("TAO_SKILL_BANK_PATH", raising=False)


def write(root: Path, name: str, content: Any) -> Path:
    """A file of a skill bank: text as it is, data as JSON or YAML by the name."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, str):
        content = json.dumps(content) if path.suffix == ".json" else yaml.safe_dump(content, sort_keys=False)
    path.write_text(content)
    return path


def action(name: str, **fields: Any) -> dict[str, Any]:
    outputs = {"results_dir": {"type": "folder"}}
    return {"command": f"dino {name} -e {{config_path}}", "config_format": "yaml", "mode": "config"} | {
        "outputs": outputs,
        "upload_excludes": ["inputs/"],
        **fields,
    }


TRAIN_SCHEMA = {
    "type": "object",
    "properties": {
        "train": {
            "type": "collection",
            "properties": {
                "num_epochs": {"type": "int", "default": 10, "minimum": 1, "maximum": float("inf")},
                "optim": {
                    "type": "collection",
                    "properties": {
                        "lr": {"type": "float", "default": 0.0002, "minimum": 0.0, "maximum": float("inf")},
                        "policy": {"type": "categorical", "default": "step", "enum": ["step", "cosine"]},
                    },
                },
            },
        },
        "dataset": {"type": "collection", "properties": {"sources": {"type": "list", "default": []}}},
    },
    "required": [],
    "default": {"train": {"num_epochs": 10}},
    "popular": {},
    "automl_default_parameters": ["train.optim.lr", "train.optim.policy", "train.not.there"],
    "automl_disabled_parameters": ["train"],
}


def older(root: Path) -> Path:
    """The generation of 7.0: a platform manifest, dotted image keys, no data sources for DINO."""
    write(
        root, "versions.yaml", {"images": {"tao_toolkit": {"pyt": PYT, "deploy": DEPLOY}}, "wheels": {"tao_sdk": "x"}}
    )
    manifest = {
        "schema_version": 3,
        "default_long_running_enabled": True,
        "default_status_interval_minutes": 7,
        "credential_definitions": {
            "SLURM_USER": {"description": "Login name.", "how_to_get": "From ssh."},
            "SITE_TOKEN": {"description": "The site's token.", "how_to_get": "From the site."},
            "SSH_KEY_PATH": {"description": "Key file.", "how_to_get": "ssh-keygen"},
        },
        "platforms": [
            {
                "name": "slurm",
                "display_name": "SLURM",
                "aliases": ["cluster", "hpc"],
                "backend_type": "slurm",
                "description": "A cluster.",
                "required_credentials": [
                    {"name": "SLURM_USER", "source": "env_var"},
                    {"name": "SITE_TOKEN", "source": "env_var"},
                ],
                "credential_groups": [
                    {"name": "ssh_identity", "require_one_of": ["SSH_KEY_PATH"], "preferred": "SSH_KEY_PATH"}
                ],
                "optional_credentials": [{"name": "NGC_KEY", "source": "env_var", "only_when": "private images"}],
                "storage": {"protocol": "lustre", "uri_format": "lustre:///{absolute_path}", "metadata_key": "x"},
                "resource_defaults": {"num_gpus": 8, "partition": "gpu"},
                "dataset_examples": ["/lustre/ours", "custom.train.path=/lustre/ours/a=b.json"],
                "preflight_checks": ["ssh works"],
            },
            {
                "name": "moonbase",
                "display_name": "Moon",
                "description": "Far away.",
                "required_credentials": [],
                "storage": {"protocol": "aws", "uri_format": "s3://{bucket_name}/{path}"},
            },
        ],
    }
    write(root, "skills/platform/platforms.manifest.json", manifest)
    skill = "skills/models/tao-train-dino"
    info = {
        "network_arch": "dino",
        "name": "DINO",
        "description": "x",
        "container_image": "tao_toolkit.pyt",
        "automl_enabled": True,
        "data_format": "coco",
        "gpu_spec_key": "train.num_gpus",
        "spec_shorthand_keys": {"num_epochs": "train.num_epochs"},
        "actions": {
            "train": action("train", inputs={"dataset.train_data_sources[0].image_dir": {"type": "file"}}),
            "export": action("export", inputs={}),
            "gen_trt_engine": action("gen_trt_engine", inputs={}),
        },
        "spec_params": {"train": {"results_dir": "output_dir"}},
        "data_sources": {},
    }
    write(root, f"{skill}/references/skill_info.yaml", info)
    write(root, f"{skill}/references/spec_template_train.yaml", {"train": {"num_epochs": 33}})
    write(root, f"{skill}/schemas/train.schema.json", TRAIN_SCHEMA)
    index = {"models": {"tao-train-dino": {"network_arch": "dino", "actions": ["train"], "failures": {}}}}
    write(root, "skills/models/schemas.manifest.json", index)
    return root


def current(root: Path) -> Path:
    """The generation without a manifest: literal images, deploy metadata, backends, platforms by their folders."""
    write(root, "versions.yaml", {"images": {"tao_toolkit": {"deploy": DEPLOY}}})
    docker = {
        "type": "platform",
        "required_credentials": [],
        "optional_credentials": [
            {"name": "NGC_KEY", "only_when": "private pulls"},
            {"name": "AWS_ACCESS_KEY_ID", "only_when": "s3", "description": "Key id.", "how_to_get": "Console."},
            {"name": "HF_TOKEN", "description": "A remark."},
            {"name": "SITE_API_KEY", "only_when": "the site asks"},
        ],
        "resource_defaults": {},
        "cloud_storage": {"protocol": "aws", "uri_format": "s3://{bucket}/{path}"},
    }
    write(root, "skills/platform/tao-run-on-docker/references/skill_info.yaml", docker)
    venv = {"type": "platform", "optional_credentials": ["HF_TOKEN"], "cloud_storage": {"protocol": "local"}}
    write(root, "skills/platform/tao-run-on-virtualenv/references/skill_info.yaml", venv)
    write(root, "skills/platform/tao-data-io/references/skill_info.yaml", {"type": "support"})
    skill = "skills/models/tao-train-rtdetr"
    info = {
        "network_arch": "rtdetr",
        "name": "RT-DETR",
        "container_image": PYT,
        "actions": {
            "train": action("train", inputs={"dataset.images": {"type": "file"}, "dataset.ann": {"type": "file"}}),
            "evaluate": action("evaluate", inputs={"evaluate.checkpoint": {"type": "file"}}),
        },
        "data_sources": {
            "train": {
                "dataset.images": {"source": "train_datasets", "path": "images.tar.gz", "runtime": "extracted_folder"},
                "dataset.ann": {"source": "eval_dataset", "path": "annotations.json"},
                "dataset.root": {"source": "train_datasets", "path": ""},
            }
        },
        "spec_params": {"train": {"results_dir": "output_dir"}},
        "spec_templates": {"train": "references/spec_template_train.yaml"},
        "required_credentials": ["NGC_KEY"],
    }
    write(root, f"{skill}/references/skill_info.yaml", info)
    write(root, f"{skill}/references/spec_template_train.yaml", {"train": {"num_epochs": 72}})
    write(root, f"{skill}/schemas/train.schema.json", TRAIN_SCHEMA)
    deploy = {
        "network_arch": "rtdetr",
        "container_image": "tao_toolkit.deploy",
        "actions": {
            "gen_trt_engine": action(
                "gen_trt_engine",
                inputs={"gen_trt_engine.onnx_file": {"type": "file"}, "gen_trt_engine.trt_engine": {"type": "file"}},
                outputs={"results_dir": {"type": "folder"}, "gen_trt_engine.trt_engine": {"type": "file"}},
            ),
            "evaluate": action("evaluate", inputs={"evaluate.trt_engine": {"type": "file"}}),
        },
        "spec_shorthand_keys": {"trt_data_type": "gen_trt_engine.tensorrt.data_type"},
    }
    write(root, f"{skill}/references/tao-deploy-rtdetr.skill_info.yaml", deploy)
    write(root, f"{skill}/references/spec_template_deploy_evaluate.yaml", {"evaluate": {"batch_size": 4}})
    cosmos = {
        "network_arch": "cosmos-reason",
        "aliases": ["Cosmos Reason 3"],
        "huggingface_model_ids": ["nvidia/Cosmos3-Nano"],
        "automl_enabled": False,
        "container_image": {"policy": "repository_derived", "runtime_input": "image_tag"},
        "backend_contracts": {
            "fast": {"container_image": "r/fast:1"},
            "safe": "references/safe-backend.yaml",
            "own": "references/own-backend.yaml",
        },
        "backend_selection": {"defaults": {"train": "safe", "evaluate": "own", "inference": "fast"}},
        "conditional_credentials": {"HF_TOKEN": "gated weights"},
        "runtime_requirements": {"gpu_host": {"min_driver_version": 580, "min_cuda_version": "13.0"}},
        "actions": {
            "train": action("train", config_format="toml"),
            "evaluate": action("evaluate", config_format="toml"),
            "inference": action("inference", config_format="toml"),
        },
        "data_sources": {
            "train": {
                "custom.a.annotation_path": {"source": "train_datasets", "path": "{train_dataset_annotation}"},
                "custom.a.media_path": {"source": "train_datasets", "path_from_format": {"*": "videos.tar.gz"}},
                "custom.media": {"source": "eval_dataset", "path_from_format": {"llava": ["a.tar.gz", "b.tar.gz"]}},
                "custom.info": {"source": "train_datasets", "path": "results/{dataset_convert_job_id}/x"},
            }
        },
    }
    skill = "skills/models/tao-finetune-cosmos-reason"
    write(root, f"{skill}/references/skill_info.yaml", cosmos)
    write(root, f"{skill}/references/safe-backend.yaml", {"backend": "safe", "container_image": "r/safe:1"})
    write(root, f"{skill}/references/own-backend.yaml", {"container_image": {"policy": "repository_derived"}})
    return root


@pytest.fixture
def old(tmp_path: Path) -> Catalog:
    return load_catalog(skill_bank=older(tmp_path / "bank"), overlays=[])


@pytest.fixture
def new(tmp_path: Path) -> Catalog:
    return load_catalog(skill_bank=current(tmp_path / "bank"), overlays=[])


# -- the older generation ----------------------------------------------------------------------------------------------


def test_the_manifest_changes_what_it_speaks_about(old: Catalog) -> None:
    slurm = old.platforms["slurm"]
    assert slurm.required == ("SLURM_USER", "SITE_TOKEN")
    assert slurm.groups[0].one_of == ("SSH_KEY_PATH",)
    assert slurm.optional[0].only_when == "private images"
    assert slurm.defaults["num_gpus"] == 8
    assert slurm.defaults["max_time_hours"] == 4
    assert slurm.block == "tao-slurm"
    assert slurm.multi_node
    assert find_platform(old, "hpc") == "slurm"
    assert old.credentials["SITE_TOKEN"].secret
    assert old.status_interval_minutes == 7
    assert old.platforms["moonbase"].storage.scheme == "s3"
    assert old.platforms["lepton"].required


def test_versions_are_dotted_keys(old: Catalog) -> None:
    assert resolve_image_key(old.images, "tao_toolkit.pyt") == PYT
    assert resolve_image_key(old.images, "tao_toolkit.vila")


def test_an_engine_is_not_built_in_the_training_image(old: Catalog) -> None:
    dino = old.models["dino"]
    assert dino.container_image == "tao_toolkit.pyt"
    assert dino.actions["train"].container_image is None
    assert resolve_image_key(old.images, dino.actions["gen_trt_engine"].container_image or "") == DEPLOY


def test_template_and_schema_come_from_the_bank(old: Catalog) -> None:
    train = old.models["dino"].actions["train"]
    assert train.template == {"train": {"num_epochs": 33}}
    assert train.spec_schema is not None
    properties = train.spec_schema["properties"]["train"]["properties"]
    assert properties["num_epochs"] == {"type": "integer", "minimum": 1}
    assert properties["optim"]["properties"]["policy"] == {"enum": ["step", "cosine"]}
    assert train.spec_schema["properties"]["dataset"]["properties"]["sources"]["type"] == "array"


def test_search_parameters_come_from_the_schema_and_the_metric_from_ours(old: Catalog) -> None:
    automl = old.models["dino"].automl
    assert (automl.enabled, automl.runnable, automl.metric, automl.direction) == (True, True, "test_mAP50", "maximize")
    lr, policy = automl.parameters
    assert lr.log
    assert [lr.min, lr.max] == pytest.approx([2e-6, 2e-3])
    assert policy.options == ("step", "cosine")


def test_what_the_bank_leaves_empty_is_ours(old: Catalog) -> None:
    dino = old.models["dino"]
    assert dino.actions["train"].datasets["dataset.train_data_sources"].many
    assert dino.actions["train"].inputs["dataset.train_data_sources[0].image_dir"]["type"] == "folder"
    assert dino.actions["export"].handoff["export.checkpoint"] == "parent_model"
    assert set(dino.actions) == {"train", "export", "gen_trt_engine"}
    assert dino.hardware.vram_gb == 24


# -- the current generation --------------------------------------------------------------------------------------------


def test_platforms_are_found_by_their_folders(new: Catalog) -> None:
    docker = new.platforms["local-docker"]
    assert [use.name for use in docker.optional] == ["NGC_KEY", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "SITE_API_KEY"]
    assert docker.storage.scheme == "file"
    assert docker.defaults["pull_policy"] == "missing"
    assert not docker.remote
    assert new.credentials["AWS_ACCESS_KEY_ID"].how_to_get == "Console."
    assert find_platform(new, "virtualenv") == "process"
    assert "data-io" not in new.platforms


def test_literal_images_and_deploy_metadata(new: Catalog) -> None:
    rtdetr = new.models["rtdetr"]
    assert rtdetr.container_image == PYT
    assert list(rtdetr.actions) == ["train", "evaluate", "gen_trt_engine", "trt_evaluate"]
    assert rtdetr.actions["gen_trt_engine"].container_image == "tao_toolkit.deploy"
    assert rtdetr.actions["trt_evaluate"].container_image == "tao_toolkit.deploy"
    assert rtdetr.actions["evaluate"].container_image is None
    assert rtdetr.actions["trt_evaluate"].template == {"evaluate": {"batch_size": 4}}
    assert rtdetr.actions["gen_trt_engine"].handoff["gen_trt_engine.trt_engine"] == "create_engine_file"
    assert list(rtdetr.actions["gen_trt_engine"].inputs)[:1] == ["gen_trt_engine.onnx_file"]
    assert "gen_trt_engine.trt_engine" not in rtdetr.actions["gen_trt_engine"].inputs
    assert rtdetr.shorthand["trt_data_type"] == "gen_trt_engine.tensorrt.data_type"
    assert rtdetr.credentials == ("NGC_KEY",)


def test_data_sources_become_dataset_rules(new: Catalog) -> None:
    train = new.models["rtdetr"].actions["train"]
    assert train.template == {"train": {"num_epochs": 72}}
    assert train.datasets["dataset.images"].extracted
    assert train.inputs["dataset.images"]["type"] == "folder"
    assert train.datasets["dataset.ann"].source == "eval"
    assert train.datasets["dataset.root"].path == ""
    assert train.inputs["dataset.root"]["type"] == "folder"


def test_cosmos_roots_and_backends(new: Catalog) -> None:
    model = new.models["cosmos-reason"]
    train = model.actions["train"]
    assert train.container_image == "r/safe:1"
    assert train.config_format == "toml"
    assert train.datasets["custom.a.annotation_path"].path == "annotations.json"
    assert train.datasets["custom.a.media_path"].path == ""
    assert train.datasets["custom.media"].by_format == {"llava": ("a.tar.gz", "b.tar.gz")}
    assert "custom.info" not in train.datasets
    assert model.conditional_credentials == {"HF_TOKEN": "gated weights"}
    assert model.host_minimum == {"driver": "580", "cuda": "13.0"}
    assert not model.automl.enabled
    assert find_model(new, "nvidia/cosmos3-nano") == ["cosmos-reason"]


def test_other_models_stay(new: Catalog, tmp_path: Path) -> None:
    assert len(new.models) == 38
    assert new.sources == ("packaged", str(tmp_path / "bank"))


def test_a_model_is_replaced_by_arch_when_its_folder_has_another_name(tmp_path: Path) -> None:
    root = older(tmp_path / "bank")
    (root / "skills/models/tao-train-dino").rename(root / "skills/models/our-detector")
    catalog = load_catalog(skill_bank=root, overlays=[])
    assert "our-detector" not in catalog.models
    assert find_model(catalog, "our-detector") == ["dino"]
    assert catalog.models["dino"].actions["train"].template == {"train": {"num_epochs": 33}}


def test_the_environment_names_the_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAO_SKILL_BANK_PATH", str(older(tmp_path / "bank")))
    assert load_catalog().models["dino"].actions["train"].template == {"train": {"num_epochs": 33}}


def test_enabled_without_a_schema_is_not_runnable(tmp_path: Path) -> None:
    root = older(tmp_path / "bank")
    (root / "skills/models/tao-train-dino/schemas/train.schema.json").unlink()
    automl = load_catalog(skill_bank=root, overlays=[]).models["dino"].automl
    assert automl.enabled
    assert not automl.runnable
    assert "no train schema" in automl.blocked_reason


# -- faults ------------------------------------------------------------------------------------------------------------

INFO = "skills/models/tao-train-dino/references/skill_info.yaml"
MANIFEST = "skills/platform/platforms.manifest.json"


@pytest.mark.parametrize(
    ("name", "content", "key", "reason"),
    [
        (INFO, "network_arch: dino\n  actions: {", "", "not valid YAML in line 2"),
        (INFO, {"actions": {"train": action("train")}}, "arch", "missing"),
        (INFO, {"network_arch": "dino", "actions": {"train": {}}}, "actions.train.command", "missing"),
        (INFO, {"network_arch": "dino", "actions": ["train"]}, "actions", "a map is expected"),
        (
            INFO,
            {"network_arch": "dino", "container_image": "tao_toolkit.nope", "actions": {"train": action("train")}},
            "container_image",
            "tao_toolkit.nope: there is no such image version key",
        ),
        (
            INFO,
            {"network_arch": "dino", "actions": {"train": action("train")}, "data_sources": {"train": {"a": "b"}}},
            "actions.train",
            "another shape",
        ),
        (
            INFO,
            {"network_arch": "dino", "aliases": 3, "actions": {"train": action("train")}},
            "",
            "another shape",
        ),
        (MANIFEST, {"platforms": [{"name": "x", "aliases": 3}]}, "x", "another shape"),
        (MANIFEST, '{"platforms": [\n', "", "not valid JSON in line 2"),
        (MANIFEST, {"platforms": {}}, "platforms", "a list of platforms"),
        (MANIFEST, {"platforms": [{"display_name": "x"}]}, "platforms.0", "with a name"),
        (MANIFEST, {"platforms": [{"name": "x", "required_credentials": [1]}]}, "x.required_credentials.0", "a name"),
        ("versions.yaml", {"images": {"a": "b", "b": "a"}}, "a", "circle"),
        ("skills/models/tao-train-dino/schemas/train.schema.json", "[]", "", "a map is expected"),
        ("skills/models/tao-train-dino/references/spec_template_train.yaml", "a: b: c", "", "not valid YAML"),
    ],
)
def test_a_fault_in_a_bank_names_file_key_and_reason(
    tmp_path: Path, name: str, content: Any, key: str, reason: str
) -> None:
    root = older(tmp_path / "bank")
    path = write(root, name, content)
    with pytest.raises(CatalogError) as caught:
        load_catalog(skill_bank=root, overlays=[])
    fault = caught.value.fault
    assert (fault.file, fault.key) == (str(path), key)
    assert reason in fault.reason
    assert all(part in str(caught.value) for part in fault)


def test_a_folder_that_is_no_bank(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no TAO skill bank"):
        read_skill_bank(tmp_path)
    with pytest.raises(CatalogError, match="no such folder"):
        read_skill_bank(tmp_path / "nowhere")
    write(tmp_path, "skills/models/x/references/skill_info.yaml/file", "a folder where a file belongs")
    with pytest.raises(CatalogError, match="cannot be read"):
        read_skill_bank(tmp_path)


def test_images_come_from_the_backend_contract_and_one_that_is_to_be_built_is_left_open(new: Catalog) -> None:
    cosmos = new.models["cosmos-reason"]
    assert cosmos.container_image is None
    images = {name: cosmos.actions[name].container_image for name in ("train", "evaluate", "inference")}
    assert images == {"train": "r/safe:1", "evaluate": None, "inference": "r/fast:1"}


def test_a_credential_needs_only_a_name_and_a_remark_does_not_hide_what_we_know(new: Catalog) -> None:
    assert new.credentials["SITE_API_KEY"].secret
    assert new.credentials["SITE_API_KEY"].how_to_get
    assert new.credentials["HF_TOKEN"] == load_catalog(overlays=[]).credentials["HF_TOKEN"]
    assert new.credentials["AWS_ACCESS_KEY_ID"].description == "Key id."


def test_an_example_behind_a_spec_key_is_no_location(old: Catalog) -> None:
    assert old.platforms["slurm"].path_examples == ("/lustre/ours",)


def test_a_name_for_machines_does_not_replace_a_title(tmp_path: Path) -> None:
    root = older(tmp_path / "bank")
    path = root / "skills/models/tao-train-dino/references/skill_info.yaml"
    path.write_text(path.read_text().replace("name: DINO", "name: tao-train-dino"))
    assert load_catalog(skill_bank=root, overlays=[]).models["dino"].title == "DINO"
