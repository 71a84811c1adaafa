"""A chain over two platforms: what a process on this machine makes, a container takes up, and the other way round."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_engine import PYTHON, Engine
from prefect_tools import call, job_states

from prefect_tao.blocks import TaoDocker
from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.errors import InvalidInput

# Those who share the one server and the one engine run one after the other.
pytestmark = pytest.mark.xdist_group("prefect-server")
# Trains by writing one line, and evaluates by reading it where its spec says that the checkpoint is.
READS = (
    "import json, os, sys; checkpoint = json.load(open(sys.argv[1]))['evaluate']['checkpoint']; "
    "open(os.environ['TAO_RESULTS_DIR'] + '/seen', 'w').write(open(checkpoint).read())"
)
MINI = f"""
title: Mini
arch: mini
container_image: {PYTHON}
hardware: {{min_gpus: 0, recommended_gpus: 0}}
automl: {{enabled: false}}
actions:
  train:
    command: 'echo weights > $TAO_RESULTS_DIR/model_epoch_001.pth; cat {{config_path}}'
    config_format: json
    outputs: {{results_dir: {{type: folder}}}}
    handoff: {{results_dir: output_dir}}
    needs_data: false
    template: {{train: {{num_epochs: 1}}}}
  evaluate:
    command: >-
      python3 -c "{READS}" {{config_path}}
    config_format: json
    inputs: {{evaluate.checkpoint: {{type: file}}}}
    outputs: {{results_dir: {{type: folder}}}}
    handoff: {{results_dir: output_dir, evaluate.checkpoint: parent_model}}
    template: {{evaluate: {{checkpoint: "???"}}}}
"""


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that both platforms can run."""
    (tmp_path / "catalog" / "models").mkdir(parents=True)
    (tmp_path / "catalog" / "models" / "mini.yaml").write_text(MINI)
    monkeypatch.setenv("PREFECT_TAO_CATALOG", str(tmp_path / "catalog"))


@pytest.fixture
def blocks(server: Any, engine: Engine, tmp_path: Path) -> Iterator[Path]:
    """Two blocks of one engine: `folder` keeps results in a folder of this machine, `inside` in a volume of its own."""
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    async def save() -> None:
        await TaoDocker(host=engine.host, network="none", results_root=str(tmp_path / "results")).asave(
            "folder", overwrite=True
        )
        await TaoDocker(host=engine.host, network="none").asave("inside", overwrite=True)

    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_HOME: server.home}):
        asyncio.run(save())
    yield tmp_path / "results"
    engine.clear()


@pytest.mark.parametrize(
    ("trains", "evaluates"), [("process", "local-docker/folder"), ("local-docker/folder", "process")]
)
def test_one_platform_trains_and_the_other_evaluates(
    server: Any, mini: None, blocks: Path, trains: str, evaluates: str
) -> None:
    steps = [{"action": "train", "target": trains}, {"action": "evaluate", "target": evaluates}]
    found = call(server, "chain", model="mini", steps=steps, confirm_image=True, gpus=0)
    assert [step.state for step in found.steps] == [StepState.COMPLETE] * 2
    assert [step.target for step in found.steps] == [trains, evaluates]
    made = found["train"].outcome.checkpoints
    assert [Path(path).name for path in made] == ["model_epoch_001.pth"]
    assert (Path(found["evaluate"].outcome.results) / "results_dir" / "seen").read_text() == "weights\n"
    assert Path(made[0]).is_relative_to(blocks) == (trains != "process")


def test_results_that_stay_inside_of_the_engine_are_told_before_the_start(
    server: Any, engine: Engine, mini: None, blocks: Path, home: Path
) -> None:
    steps = [{"action": "train", "target": "local-docker/inside"}, {"action": "evaluate", "target": "process"}]
    with pytest.raises(InvalidInput) as refused:
        call(server, "chain", model="mini", steps=steps, confirm_image=True, gpus=0)
    told = str(refused.value)
    assert "evaluate on process takes files from train, whose results stay on local-docker/inside" in told
    assert "give the block of local-docker/inside a results folder" in told
    assert engine.client.containers(all=True) == []
    assert not home.exists() or job_states(home) == []
