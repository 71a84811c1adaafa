"""The commands `chain` and `sweep` without a server: the plan they show, what they refuse, what is on the screen."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prefect_tao.cli import main
from prefect_tao.cli.boards import Board, ChainScreen, SweepScreen
from prefect_tao.jobs.chain_outcome import StepOutcome, StepState
from prefect_tao.jobs.events import PointChanged, Progressed, StateChanged, StepChanged, SweepStarted
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.points import PointOutcome, SweepOutcome
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.preflight.plans.step import Step

CHAINS = Path(__file__).parents[2] / "examples" / "chains"
HANDLE = JobHandle(target="process", key="0123456789abcdef", attempt=1, results="/r", labels={"step": "train"})


class Cli:
    """The command, in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr("sys.argv", ["prefect-tao", *words])
        try:
            main()
            code: Any = 0
        except SystemExit as left:
            code = left.code
        out, err = self.capsys.readouterr()
        return int(code or 0), out, err


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(monkeypatch, capsys)


# -- looking -----------------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_the_order_who_takes_what_and_what_is_deferred(cli: Cli, home: Path) -> None:
    code, out, _ = cli("chain", str(CHAINS / "tiny.yaml"), "--dry-run")
    assert code == 0
    assert "2. evaluate: tiny evaluate on process, after train" in out
    assert "takes: evaluate.checkpoint from train" in out
    assert "deferred: input evaluate.checkpoint" in out
    assert out.endswith("the chain can start\n")
    assert not home.exists()


def test_a_dry_run_tells_programs_the_same(cli: Cli) -> None:
    code, out, _ = cli("chain", str(CHAINS / "two-models.yaml"), "--dry-run", "--json", "--set", "hidden=4")
    told = json.loads(out)
    steps = {step["name"]: step for step in told["steps"]}
    assert (code, told["passed"]) == (0, True)
    assert steps["judge-narrow"]["takes"] == {"evaluate.checkpoint": ["narrow"]}
    assert steps["judge-narrow"]["gates"]["datasets"][0]["level"] == "deferred"


def test_a_dry_run_of_a_chain_over_two_platforms_tells_what_each_step_lacks(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LEPTON_WORKSPACE_ID", raising=False)
    words = ["--model", "tiny", "--target", "lepton", "--recipe", "quantize", "--dry-run"]
    code, out, err = cli("chain", *words)
    assert code == 2
    assert "tiny has no 'quantize'" in out + err
    assert "LEPTON_WORKSPACE_ID" in out


def test_a_recipe_for_a_model_of_the_catalog_is_planned_with_its_images(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli(
        "chain", "--recipe", "deploy", "--model", "dino", "--target", "lepton", "--automl-policy", "off", "--dry-run"
    )
    assert code == 2  # there is no data and no workspace, and all of it is told
    assert "takes: gen_trt_engine.onnx_file from export" in out
    assert "-deploy" in out
    assert "the chain cannot start" in out


BAD: dict[str, tuple[str, str]] = {
    "no map": ("- 1", "is not a map"),
    "broken": ("steps: [", "is not valid"),
    "a key of another version": ("stages: []\nmodel: tiny", "there is no parameter 'stages'"),
    "no steps": ("model: tiny", "either steps or a recipe"),
    "a circle": ("steps: [{name: a, command: x, after: b}, {name: b, command: y, after: a}]", "wait for each other"),
    "an unknown step": ("model: tiny\nsteps: [{action: train}, {action: evaluate, after: tain}]", "did you mean train"),
    "an output nobody makes": ("model: tiny\nsteps: [{action: evaluate}]", "no step before it makes one"),
    "one place": (
        "model: tiny\noverrides: {results_dir: /o}\nsteps: [{action: train}, {action: evaluate}]",
        "both write to /o",
    ),
    "data that is not there": ("model: tiny\nsteps: [{action: train, train_root: /no/such}]", "train: "),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_chain_ends_with_2_before_prefect_is_started(cli: Cli, home: Path, tmp_path: Path, case: str) -> None:
    text, told = BAD[case]
    (tmp_path / "chain.yaml").write_text(text)
    code, _, err = cli("chain", str(tmp_path / "chain.yaml"))
    assert code == 2
    assert told in err
    assert "starting Prefect" not in err
    assert not home.exists()


def test_a_chain_wants_a_file_or_a_recipe(cli: Cli) -> None:
    assert cli("chain")[0] == 2
    assert "cannot be read" in cli("chain", "/no/such/chain.yaml")[2]
    assert "--recipe 'fry' is not known" in cli("chain", "--recipe", "fry", "--model", "tiny")[2]


def test_a_dry_sweep_shows_its_points_and_the_metric(cli: Cli, home: Path) -> None:
    words = ["--model", "tiny", "--action", "train", "--over", "hidden=4,8", "--over", "batch_size=1,2,3"]
    code, out, _ = cli("sweep", *words, "--dry-run")
    assert code == 0
    assert "6 points, ranked by val_loss (minimize)" in out
    assert "hidden=8, batch_size=3" in out
    assert json.loads(cli("sweep", *words, "--dry-run", "--json")[1])["points"][0] == {"hidden": 4, "batch_size": 1}
    assert not home.exists()


def test_points_come_from_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("hidden,learning_rate\n4,1e-3\n8,0.1\n")
    words = ["sweep", "--model", "tiny", "--action", "train", "--dry-run", "--json"]
    out = cli(*words, "--points", str(tmp_path / "points.csv"))[1]
    assert json.loads(out)["points"] == [{"hidden": 4, "learning_rate": 0.001}, {"hidden": 8, "learning_rate": 0.1}]
    (tmp_path / "points.yaml").write_text("hidden: 4")
    assert "is not a list of points" in cli(*words, "--points", str(tmp_path / "points.yaml"))[2]


BAD_SWEEPS: dict[str, tuple[list[str], str]] = {
    "no points": ([], "the sweep has no points"),
    "an unknown key": (["--over", "hiden=1"], "hiden"),
    "a word without values": (["--over", "hidden"], "is not KEY=VALUE"),
    "a mode that is none": (["--over", "hidden=1", "--mode", "bayes"], "use grid, zip or random"),
    "a policy that is none": (["--over", "hidden=1", "--on-failure", "cry"], "use continue, stop or retry"),
    "a direction that is none": (["--over", "hidden=1", "--direction", "up"], "use minimize or maximize"),
    "data that is not there": (["--over", "hidden=1", "--train-root", "/no/such"], "/no/such"),
    "a target that is none": (["--over", "hidden=1", "--target", "moon"], "moon"),
}


@pytest.mark.parametrize("case", BAD_SWEEPS)
def test_a_bad_sweep_ends_with_2_before_prefect_is_started(cli: Cli, home: Path, case: str) -> None:
    words, told = BAD_SWEEPS[case]
    code, _, err = cli("sweep", "--model", "tiny", "--action", "train", *words)
    assert code == 2
    assert told in err
    assert "starting Prefect" not in err
    assert not home.exists()


# -- the screen --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["a file", "a terminal"])
def out(request: pytest.FixtureRequest) -> Console:
    return Console(file=io.StringIO(), force_terminal=request.param, color_system=None, width=100, highlight=False)


def shown(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


async def test_each_step_has_its_line_and_its_progress(out: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_tao.cli.boards.DRAW_SECONDS", 0.0)
    steps = [Step("train", {"model": "tiny", "action": "train"}), Step("list", {"command": "ls"}, ("train",))]
    screen = ChainScreen(out, "key", steps)
    step = StepOutcome(name="train", target="process")
    await screen.hear(StepChanged(step.running()))
    await screen.hear(StateChanged(HANDLE, Observation(state=JobState.RUNNING)))
    await screen.hear(Progressed(HANDLE, Progress(epoch=1, max_epoch=2, fraction=0.5)))
    await screen.hear(StepChanged(step.complete(Outcome(handle=HANDLE, state=JobState.COMPLETE))))
    await screen.hear(StepChanged(StepOutcome(name="list", target="process").skipped(["train"])))
    screen.quiet()
    told = shown(out)
    assert "train  Complete   tiny train on process" in told
    assert "50%" in told
    assert "list   Skipped" in told
    assert "Running   " in told


async def test_a_sweep_shows_counts_and_the_best_and_few_of_its_failures(out: Console) -> None:
    screen = SweepScreen(out, "key")
    points = [PointOutcome(name=f"p{n}", label=f"lr={n}", overrides={"lr": n}) for n in range(40)]
    await screen.hear(SweepStarted(SweepOutcome(points=tuple(points), metric="loss", direction="minimize")))
    for number, point in enumerate(points):
        if number % 2:
            await screen.hear(PointChanged(point.ended(StepState.ERROR, f"broken {number}\nmore")))
        else:
            await screen.hear(
                PointChanged(point.model_copy(update={"state": StepState.COMPLETE, "metrics": {"loss": number}}))
            )
    screen.quiet()
    told = shown(out)
    assert "20 complete, 20 error" in told
    assert "best so far: loss 0 at lr=0" in told
    assert told.count("broken") == 5
    assert "more" not in told
    assert screen.outcome.count(StepState.ERROR) == 20


async def test_who_leaves_is_told_the_same_command_with_the_key_of_the_run(
    out: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Board(out, "chain-12")
    await screen.hear(StateChanged(HANDLE, Observation(state=JobState.RUNNING)))
    assert list(screen.handles.values()) == [HANDLE]
    monkeypatch.setattr("sys.argv", ["prefect-tao", "sweep", "--over", "a=1,2", "--", "my command"])
    assert screen.way_back() == ["prefect-tao sweep --run-key chain-12 --over a=1,2 -- 'my command'"]
    monkeypatch.setattr("sys.argv", ["prefect-tao", "chain", "c.yaml", "--run-key", "mine"])
    assert screen.way_back() == ["prefect-tao chain c.yaml --run-key mine"]
