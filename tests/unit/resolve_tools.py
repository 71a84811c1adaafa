"""A small catalog with one of everything, and short ways to ask for a launch and to read what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.state import JobState
from prefect_tao.preflight.resolve.ask import Ask, Resolved
from prefect_tao.preflight.resolve.model_launch import resolve

PYT = "nvcr.io/nvidia/tao/tao-toolkit:7.1.0-pyt"
DEPLOY = "nvcr.io/nvidia/tao/tao-toolkit:7.1.0-deploy"
ROOTS = {"train": ("s3://bucket/train",), "eval": ("s3://bucket/eval",)}
RESULTS = {"results_dir": {"type": "folder"}}

SCHEMA = {
    "type": "object",
    "properties": {
        "results_dir": {"type": "string"},
        "train": {
            "type": "object",
            "properties": {
                "num_epochs": {"type": "int", "minimum": 1, "maximum": 1000},
                "num_gpus": {"type": "int", "minimum": 1},
                "gpu_ids": {"type": "list"},
                "precision": {"type": "categorical", "enum": ["fp16", "fp32"]},
                "verbose": {"type": "bool"},
                "name": {"type": "string"},
                "optim": {"type": "object", "properties": {"lr": {"type": "float", "math_cond": "> 0.0"}}},
            },
        },
        "classes": {"type": "collection"},
    },
}

PLATFORMS: dict[str, Any] = {
    "process": {
        "title": "This machine",
        "description": "here",
        "block": "none",
        "storage": {"scheme": "file", "uri": "file://{path}"},
        "defaults": {"num_gpus": 0},
        "remote": False,
        "containers": False,
        "path_examples": ["/data/<model>/train", "file:///data/<model>/eval"],
    },
    "slurm": {
        "title": "SLURM",
        "description": "a cluster",
        "aliases": ["cluster"],
        "block": "tao-slurm",
        "storage": {"scheme": "lustre", "uri": "lustre:///{path}"},
        "defaults": {
            "num_gpus": 4,
            "max_num_gpus_per_node": 8,
            "cpus_per_task": 16,
            "time_hours": 4,
            "max_time_hours": 4,
        },
        "multi_node": True,
        "path_examples": ["/lustre/fsw/<model>/train"],
    },
    "local-docker": {
        "title": "Docker",
        "description": "a daemon",
        "block": "tao-docker",
        "storage": {"scheme": "file", "uri": "file://{path}"},
        "defaults": {"num_gpus": 1},
        "path_examples": ["s3://bucket/<model>/train", "s3://bucket/<model>/eval"],
    },
    "bare": {
        "title": "Bare",
        "description": "no defaults",
        "block": "tao-bare",
        "storage": {"scheme": "s3", "uri": "s3://{path}"},
    },
}

DETECTOR: dict[str, Any] = {
    "title": "Detector",
    "arch": "det",
    "aliases": ["detect"],
    "huggingface_ids": ["nvidia/detector"],
    "container_image": "tao_toolkit.pyt",
    "gpu_key": "train.num_gpus",
    "node_key": "train.num_nodes",
    "credentials": ["NGC_KEY"],
    "shorthand": {"num_epochs": "train.num_epochs", "learning_rate": "train.optim.lr"},
    "defaults": {"train.optim.lr": 0.0002, "model.backbone": "resnet_50"},
    "hardware": {"min_gpus": 2},
    "automl": {
        "parameters": [
            {"name": "train.optim.lr", "type": "float", "min": 1e-6, "max": 0.1, "condition": "> 0.0"},
            {"name": "model.enc_layers", "type": "int", "min": 1, "max": 12},
            {"name": "model.norm", "type": "categorical", "options": ["batch", "layer"]},
        ]
    },
    "actions": {
        "train": {
            "command": "det train -e {config_path}",
            "inputs": {
                "dataset.train_sources[0].image_dir": {"type": "file"},
                "dataset.train_sources[0].json_file": {"type": "file"},
                "dataset.val.json_file": {"type": "file"},
                "train.pretrained_model_path": {"type": "file", "optional": True},
                "train.resume_training_checkpoint_path": {"type": "file", "optional": True},
            },
            "outputs": RESULTS,
            "upload_excludes": ["inputs/"],
            "datasets": {
                "dataset.train_sources[0].image_dir": {"source": "train", "path": "images.tar.gz", "extracted": True},
                "dataset.train_sources[0].json_file": {"source": "train", "path": "annotations.json"},
                "dataset.val.json_file": {"source": "eval", "path": "annotations.json"},
            },
            "handoff": {
                "results_dir": "output_dir",
                "encryption_key": "key",
                "train.pretrained_model_path": "ptm_if_no_resume_model",
                "train.resume_training_checkpoint_path": "resume_model",
                "dataset.train_sources[0].kind": "CocoDataset",
            },
            "template": {
                "results_dir": "???",
                "dataset": {
                    "train_sources": [{"image_dir": "???", "json_file": "???", "weight": 1}],
                    "val": {"json_file": "???"},
                    "batch_size": 4,
                },
                "train": {
                    "num_epochs": 10,
                    "num_gpus": 1,
                    "optim": {"lr": 0.1},
                    "pretrained_model_path": "???",
                },
            },
        },
        "evaluate": {
            "command": "det evaluate -e {config_path}",
            "inputs": {"evaluate.checkpoint": {"type": "file"}},
            "outputs": RESULTS,
            "handoff": {"evaluate.checkpoint": "parent_model"},
            "template": {"evaluate": {"checkpoint": "???", "num_gpus": 1}},
        },
        "export": {
            "command": "det export -e {config_path}",
            "image": DEPLOY,
            "inputs": {"export.checkpoint": {"type": "file"}},
            "outputs": {**RESULTS, "export.onnx_file": {"type": "file"}},
            "handoff": {"export.checkpoint": "parent_model", "export.onnx_file": "create_onnx_file"},
        },
        "gen_trt_engine": {
            "command": "det gen_trt_engine -e {config_path}",
            "container_image": "tao_toolkit.deploy",
            "image": PYT,
            "inputs": {"gen_trt_engine.onnx_file": {"type": "file"}},
            "outputs": RESULTS,
            "handoff": {
                "gen_trt_engine.onnx_file": "parent_model",
                "gen_trt_engine.trt_engine": "create_engine_file",
                "gen_trt_engine.cal_cache_file": "create_cal_cache",
            },
        },
        "trt_evaluate": {
            "command": "det evaluate -e {config_path}",
            "inputs": {"evaluate.trt_engine": {"type": "file"}},
            "outputs": RESULTS,
            "handoff": {"evaluate.trt_engine": "parent_model"},
        },
    },
}

READER: dict[str, Any] = {
    "title": "Reader",
    "arch": "det",
    "container_image": PYT,
    "data_format": "llava",
    "formats": ["llava", "plain"],
    "actions": {
        "train": {
            "command": "read train --config {config_path}",
            "config_format": "toml",
            "outputs": RESULTS,
            "datasets": {
                "data.root": {"source": "train", "path": ""},
                "data.media": {
                    "source": "train",
                    "by_format": {"llava": ["images.tar.gz", "videos.tar.gz"], "*": "media.tar.gz"},
                },
                "data.lists": {"source": "calibration", "path": "list.txt", "many": True, "optional": True},
                "data.pairs": {
                    "source": "eval",
                    "many": True,
                    "optional": True,
                    "fields": {
                        "image_dir": {"path": "images.tar.gz"},
                        "names": {"path": "names.txt", "optional": True},
                    },
                },
            },
            "handoff": {"policy.folder": "parent_model_or_ptm"},
            "template": {"data": {"root": "???", "media": None, "extra": None, "lists": ["old", "older"]}},
        },
        "infer": {
            "command": "read infer {config_path}",
            "outputs": RESULTS,
            "datasets": {"media": {"source": "inference", "path": "{annotation}"}},
            "handoff": {"model.folder": "parent_model_folder"},
            "inputs": {"model.folder": {"type": "folder"}},
        },
    },
}

CHECKED: dict[str, Any] = {
    "title": "Checked",
    "arch": "checked",
    "gpu_key": "train.num_gpus",
    "shorthand": {"num_epochs": "train.num_epochs"},
    "actions": {
        "train": {
            "command": "checked {config_path}",
            "outputs": RESULTS,
            "spec_schema": SCHEMA,
            "template": {"train": {"num_epochs": 5}},
        },
        "plain": {"command": "true", "mode": "passthrough", "outputs": {"/results": {}}},
        "words": {"command": "tool", "mode": "args", "template": {"size": 3}},
    },
}


def catalog(images: dict[str, Any] | None = None, **models: Any) -> Catalog:
    """The catalog, with further or other models."""
    return Catalog(
        platforms=PLATFORMS,
        credentials={},
        images=images if images is not None else {"tao_toolkit": {"pyt": PYT, "deploy": DEPLOY}},
        models={"detector": DETECTOR, "reader": READER, "checked": CHECKED, **models},
    )


def asked(roots: Mapping[str, Sequence[str]] | None = None, parents: Sequence[Outcome] = (), **given: Any) -> Ask:
    """An ask with these parameters; roots by the kind of data."""
    data = {f"{source}_root": list(root) for source, root in (roots or {}).items()}
    if "spec" in given:
        given["specs"] = given.pop("spec")
    return replace(Ask.of(**data, **given), parents=tuple(parents))


def launch(model: str = "detector", action: str = "train", **fields: Any) -> Resolved:
    """What an ask resolves to on a Docker host."""
    return resolve(catalog(), asked(model=model, action=action, **{"target": "local-docker", **fields}))


def failures(resolved: Resolved) -> list[str]:
    """What forbids the launch; every such finding has a remedy."""
    blocking = [finding for finding in resolved.findings if finding.level is Level.FAIL]
    assert all(finding.remedy for finding in blocking)
    return [f"{finding.message} -> {finding.remedy}" for finding in blocking]


def warnings(resolved: Resolved) -> list[str]:
    """What a person should look at."""
    found = [finding for finding in resolved.findings if finding.level is Level.WARN]
    return [f"{finding.message} -> {finding.remedy}" for finding in found]


def parent(*names: str, results: str = "/results/a") -> Outcome:
    """The outcome of an earlier step that left these files."""
    handle = JobHandle(target="process", key="0123456789abcdef", attempt=1, results=results)
    files = tuple(f"{results}/{name}" for name in names)
    return Outcome(handle=handle, state=JobState.COMPLETE, results=results, files=files)
