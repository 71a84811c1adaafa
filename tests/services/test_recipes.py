"""Ready-made chains, really run: a model of an overlay whose actions are small programs, each reading what it gets.

Every action writes down what it was made from, so the last file of a chain tells the whole way.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import call

from prefect_tao.catalog.loading import OVERLAYS_VARIABLE
from prefect_tao.jobs.chain_outcome import ChainOutcome

pytestmark = pytest.mark.xdist_group("prefect-pages")
PROGRAM = """
import sys, pathlib, yaml
action, config = sys.argv[1:]
spec = yaml.safe_load(open(config))
own = spec.get(action.removeprefix("trt_"), {})
made = {"train": "train/model_epoch_002.pth", "retrain": "retrain/model_epoch_001.pth", "prune": "prune/pruned.pth",
        "quantize": "quantize/quantized.pth", "dataset_convert": "dataset_convert/lmdb/data.mdb"}
taken = [own.get(key) for key in ("checkpoint", "onnx_file", "trt_engine", "weights")]
way = []
for path in (pathlib.Path(location) for location in [*taken, spec.get("data")] if location):
    path = path / "data.mdb" if path.is_dir() else path
    if path.exists():
        way.append(path.read_text())
target = {"export": own.get("onnx_file"), "gen_trt_engine": own.get("trt_engine")}.get(action)
target = pathlib.Path(target or pathlib.Path(spec["results_dir"]) / made.get(action, "told.txt"))
target.parent.mkdir(parents=True, exist_ok=True)
target.write_text(">".join([*way, action]))
if action == "train":  # an older one, which nobody is to take
    (target.parent / "model_epoch_001.pth").write_text("old")
"""
TAKES: dict[str, dict[str, dict[str, Any]]] = {
    "train": {},
    "dataset_convert": {},
    "evaluate": {
        "inputs": {"evaluate.checkpoint": {"type": "file"}},
        "handoff": {"evaluate.checkpoint": "parent_model"},
    },
    "prune": {"inputs": {"prune.checkpoint": {"type": "file"}}, "handoff": {"prune.checkpoint": "parent_model"}},
    "retrain": {"inputs": {"retrain.weights": {"type": "file"}}, "handoff": {"retrain.weights": "parent_model"}},
    "quantize": {"inputs": {"quantize.weights": {"type": "file"}}, "handoff": {"quantize.weights": "parent_model"}},
    "export": {
        "inputs": {"export.checkpoint": {"type": "file"}},
        "handoff": {"export.checkpoint": "parent_model", "export.onnx_file": "create_onnx_file"},
    },
    "gen_trt_engine": {
        "inputs": {"gen_trt_engine.onnx_file": {"type": "file"}},
        "handoff": {"gen_trt_engine.onnx_file": "parent_model", "gen_trt_engine.trt_engine": "create_engine_file"},
    },
    "trt_evaluate": {
        "inputs": {"evaluate.trt_engine": {"type": "file"}},
        "handoff": {"evaluate.trt_engine": "parent_model"},
    },
}


@pytest.fixture
def mimic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the model."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "models").mkdir()
    program = shlex.quote(str(tmp_path / "program.py"))
    actions: dict[str, Any] = {}
    for action, takes in TAKES.items():
        wanted = [key for key, word in takes.get("handoff", {}).items() if word == "parent_model"]
        template = {key.partition(".")[0]: {key.partition(".")[2]: "???"} for key in wanted}
        actions[action] = {
            "command": f"{{python}} {program} {action} {{config_path}}",
            "inputs": takes.get("inputs", {}),
            "outputs": {"results_dir": {"type": "folder"}},
            "handoff": {"results_dir": "output_dir", **takes.get("handoff", {})},
            "template": template,
            "needs_data": False,
            **({"container_image": "mimic/deploy:2"} if "trt" in action else {}),
        }
    actions["train"]["inputs"]["data"] = {"type": "folder", "optional": True}
    actions["train"]["handoff"]["data"] = {"converted": "dataset_convert/lmdb"}
    entry = {"title": "Mimic", "arch": "mimic", "container_image": "mimic/train:1", "actions": actions}
    (tmp_path / "models" / "mimic.yaml").write_text(json.dumps({**entry, "hardware": {"min_gpus": 0}}))
    monkeypatch.setenv(OVERLAYS_VARIABLE, str(tmp_path))
    return "mimic"


def told(found: ChainOutcome, step: str) -> str:
    """What the step wrote down at its end."""
    outcome = found[step].outcome
    assert outcome is not None
    (path,) = Path(outcome.results).rglob("told.txt")
    return path.read_text()


def image(found: ChainOutcome, step: str, home: Path) -> str:
    """The image that was asked for."""
    outcome = found[step].outcome
    assert outcome is not None
    job = json.loads((home / "jobs" / outcome.handle.name / "job.json").read_text())
    return str(job["request"]["image"])


def test_the_recipe_deploy_hands_checkpoint_onnx_and_engine_on_and_switches_the_image(
    server: Any, home: Path, mimic: str
) -> None:
    found = call(server, "chain", recipe="deploy", model=mimic, automl_policy="off", confirm_image=True)
    assert told(found, "evaluate") == "train>evaluate"
    assert told(found, "trt_evaluate") == "train>export>gen_trt_engine>trt_evaluate"
    images = {step.name: image(found, step.name, home) for step in found.steps}
    deploy = {"gen_trt_engine": "mimic/deploy:2", "trt_evaluate": "mimic/deploy:2"}
    assert images == {**dict.fromkeys(("train", "evaluate", "export"), "mimic/train:1"), **deploy}


@pytest.mark.parametrize(
    ("recipe", "way"),
    [
        ("prune", "train>prune>retrain>evaluate"),
        ("quantize", "train>quantize>evaluate"),
        ("convert", "dataset_convert>train>evaluate"),
    ],
)
def test_each_recipe_hands_on_what_it_makes(server: Any, home: Path, mimic: str, recipe: str, way: str) -> None:
    found = call(server, "chain", recipe=recipe, model=mimic, automl_policy="off", confirm_image=True)
    assert told(found, "evaluate") == way
