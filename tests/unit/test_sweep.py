"""The points of a sweep: which there are, what is refused, and how they are ranked."""

from __future__ import annotations

import csv
import inspect
import io
import math
from typing import Any

import pytest

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.points import PointOutcome, SweepOutcome
from prefect_tao.launch.parameters.derived import parameters
from prefect_tao.launch.parameters.search_declared import BudgetParameters
from prefect_tao.preflight.plans.sweep_plan import plan_points, ranked_by, resolve_points, same_to_gates

COMMAND = {"command": "train --config {config_path}", "specs": {"train": {"lr": 0.1, "wide": 8}}}
TINY = {"model": "tiny", "action": "train"}
DINO = {"model": "dino", "action": "train", "train_root": "/data/t", "eval_root": "/data/e"}


def values(**given: Any) -> list[dict[str, Any]]:
    return [dict(point.overrides) for point in plan_points(**given)]


def resolved(given: dict[str, Any], **points: Any) -> list[Any]:
    return resolve_points(given, plan_points(**points), "process")


# -- points ------------------------------------------------------------------------------------------------------------


def test_a_grid_tries_all_combinations() -> None:
    assert values(over={"a": [1, 2], "b": ["x", "y"]}) == [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "y"},
        {"a": 2, "b": "x"},
        {"a": 2, "b": "y"},
    ]


def test_zip_takes_the_first_with_the_first() -> None:
    assert values(over={"a": [1, 2], "b": [3, 4]}, mode="zip") == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]


def test_random_draws_the_same_points_again_and_stays_within_its_ranges() -> None:
    over = {"lr": {"min": 1e-4, "max": 0.1, "log": True}, "wide": {"min": 2, "max": 9}, "how": ["a", "b"]}
    first = values(over=over, mode="random", samples=50, seed=3)
    assert first == values(over=over, mode="random", samples=50, seed=3)
    assert first != values(over=over, mode="random", samples=50, seed=4)
    assert all(1e-4 <= point["lr"] <= 0.1 and 2 <= point["wide"] <= 9 and point["how"] in "ab" for point in first)
    assert all(isinstance(point["wide"], int) for point in first)
    assert sum(point["lr"] < 1e-2 for point in first) > 20  # a log scale does not crowd at its upper end


def test_a_point_is_the_same_in_every_run_and_is_tried_once() -> None:
    one, two = plan_points(points=[{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}])
    assert one.name == plan_points(over={"a": [1], "b": [2]})[0].name != two.name
    assert one.label == "a=1, b=2"


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "no points"),
    "an empty list of points": ({"points": []}, "no points"),
    "an empty point": ({"points": [{}]}, "no points"),
    "an empty list of values": ({"over": {"a": []}}, "a: the list of values is empty"),
    "a value twice": ({"over": {"a": [8, 4, 8]}}, "a: 8 is there more than once"),
    "points and keys": ({"over": {"a": [1]}, "points": [{"a": 1}]}, "either points or keys"),
    "a point that is none": ({"points": [3]}, "not a list of maps"),
    "unequal lists": ({"over": {"a": [1], "b": [1, 2]}, "mode": "zip"}, "a has 1, b has 2"),
    "a range in a grid": ({"over": {"a": {"min": 1, "max": 2}}}, "a range needs mode random"),
    "no number of samples": ({"over": {"a": [1]}, "mode": "random"}, "the number of points"),
    "a range upside down": ({"over": {"a": {"min": 2, "max": 1}}, "mode": "random", "samples": 1}, "is not a range"),
    "a log of zero": (
        {"over": {"a": {"min": 0, "max": 1, "log": True}}, "mode": "random", "samples": 1},
        "begins above 0",
    ),
    "a mode that is none": ({"over": {"a": [1]}, "mode": "bayes"}, "there is no mode 'bayes'"),
    "too much": ({"over": {"a": list(range(200)), "b": list(range(200))}}, "40000 points"),
    "far too much": ({"over": {key: list(range(100)) for key in "abcdef"}}, "1000000000000 points"),
    "too many samples": (
        {"over": {"a": {"min": 0.0, "max": 1.0}}, "mode": "random", "samples": 20_000},
        "at most 10000",
    ),
    "samples without end": (
        {"over": {"a": {"min": 0.0, "max": 1.0}}, "mode": "random", "samples": 10**15},
        "at most 10000",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_sweep_over_nothing_or_nonsense_is_refused(case: str) -> None:
    given, told = BAD[case]
    with pytest.raises(InvalidInput, match=told):
        plan_points(**given)


# -- launches ----------------------------------------------------------------------------------------------------------


def test_each_point_has_its_values_in_its_spec() -> None:
    found = resolved({**TINY, "overrides": {"num_epochs": 2}}, over={"learning_rate": [0.1, 0.2]})
    assert [one.spec["train"]["optim"]["lr"] for one in found] == [0.1, 0.2]
    assert {one.spec["train"]["num_epochs"] for one in found} == {2}


def test_an_unknown_key_is_told_once_for_all_points() -> None:
    with pytest.raises(InvalidInput) as refused:
        resolved(TINY, over={"learning_rte": [0.1, 0.2], "hidden": [1, 2]})
    assert str(refused.value).count("learning_rte") == 1
    assert len(refused.value.findings) == 1


def test_a_likely_typo_is_refused_where_no_schema_knows_all_keys() -> None:
    with pytest.raises(InvalidInput, match=r"did you mean train\.optim\.lr"):
        resolved(DINO, over={"train.optim.lrr": [0.1, 0.2]})
    assert len(resolved(DINO, over={"train.optim.lr": [0.1, 0.2]})) == 2


def test_a_bad_value_is_told_though_other_points_are_good() -> None:
    with pytest.raises(InvalidInput, match=r"train\.batch_size"):
        resolved(TINY, over={"batch_size": [4, "many"]})


def test_a_command_gets_each_point_in_its_spec_or_its_arguments() -> None:
    found = resolved(COMMAND, over={"train.lr": [1, 2]})
    assert [one.request.specs for one in found] == [{"train": {"lr": lr, "wide": 8}} for lr in (1, 2)]
    found = resolved({"command": "./train.sh", "args": {"wide": 8}}, over={"lr": [1, 2]})
    assert [one.request.args for one in found] == [{"wide": 8, "lr": 1}, {"wide": 8, "lr": 2}]


def test_a_command_that_cannot_see_its_point_is_refused() -> None:
    with pytest.raises(InvalidInput, match="never reads what is varied"):
        resolved({"command": "./train.sh"}, over={"lr": [1, 2]})


def test_a_key_that_the_spec_of_a_command_has_not_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"did you mean train\.lr"):
        resolved(COMMAND, over={"train.ir": [1]})
    assert len(resolved({**COMMAND, "overrides": {"train.ir": 0}}, over={"train.ir": [1, 2]})) == 2


OVERWRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a folder for all results": (
        {**TINY, "overrides": {"results_dir": "/out"}},
        {"over": {"hidden": [4, 8]}},
        "both write to /out",
    ),
    "the folder of a section": (
        {**DINO, "overrides": {"train.results_dir": "/out"}},
        {"over": {"train.optim.lr": [0.1, 0.2]}},
        "both write to /out",
    ),
    "one point inside of another": (
        TINY,
        {"points": [{"hidden": 4, "results_dir": "/out/a"}, {"hidden": 8, "results_dir": "/out"}]},
        "inside of /out",
    ),
    "an output of a command": (
        {**COMMAND, "specs": {"lr": 1, "to": "s3://b/k"}, "outputs": {"to": {"type": "folder"}}},
        {"over": {"lr": [1, 2]}},
        "both write to s3://b/k",
    ),
    "an argument of a command": (
        {"command": "x", "args": {"to": "/o"}, "outputs": {"to": {"type": "folder"}}},
        {"over": {"lr": [1, 2]}},
        "both write to /o",
    ),
    "a path of a plain command": (
        {"command": "train {config_path}", "outputs": ["o/../p"], "workdir": "/w"},
        {"over": {"lr": [1, 2]}},
        "both write to /w/p",
    ),
}


@pytest.mark.parametrize("case", OVERWRITTEN)
def test_points_that_would_overwrite_each_other_are_refused(case: str) -> None:
    given, points, told = OVERWRITTEN[case]
    with pytest.raises(InvalidInput) as refused:
        resolved(given, **points)
    (finding,) = refused.value.findings
    assert told in finding.message
    assert "leave it out, so that each point has a folder of its own" in finding.remedy


def test_points_with_places_of_their_own_are_run() -> None:
    assert len(resolved({**TINY, "overrides": {"results_dir": "/out"}}, over={"hidden": [4]})) == 1
    places = [{"hidden": width, "results_dir": f"/out/{width}"} for width in (4, 8)]
    assert [one.spec["results_dir"] for one in resolved(TINY, points=places)] == ["/out/4", "/out/8"]
    assert len(resolved({**TINY, "overrides": {"results_dir": "below"}}, over={"hidden": [4, 8]})) == 2


def test_a_path_in_a_container_is_another_one_for_each_point() -> None:
    given = {"command": "./train.sh {config_path}", "image": "ours:1", "outputs": ["/results"]}
    assert len(resolve_points(given, plan_points(over={"lr": [1, 2]}), "local-docker")) == 2


def test_points_that_look_alike_to_the_gates_pass_them_together() -> None:
    alike = {same_to_gates(one) for one in resolved(TINY, over={"learning_rate": [0.1, 0.2]})}
    other = {same_to_gates(one) for one in resolved(TINY, over={"dataset.path": ["/a.csv", "/b.csv"]})}
    assert (len(alike), len(other)) == (1, 2)
    # Weights to begin with are looked at like data, and a bucket needs its keys.
    for key, values in {"train.pretrained_model_path": ["/a.pth", "/no.pth"], "wandb.name": ["x", "s3://b/x"]}.items():
        assert len({same_to_gates(one) for one in resolved(DINO, over={key: values})}) == 2


def test_the_catalog_tells_the_metric_and_its_direction_unless_a_person_does() -> None:
    one = resolved(TINY, over={"hidden": [4]})[0]
    assert ranked_by(None, None, one) == ("val_loss", "minimize")
    assert ranked_by("val_accuracy", None, one) == ("val_accuracy", "maximize")
    assert ranked_by("val_accuracy", "minimize", one) == ("val_accuracy", "minimize")
    plain = resolved(COMMAND, over={"train.lr": [1]})[0]
    assert ranked_by("my_loss", None, plain) == ("my_loss", "minimize")
    assert ranked_by(None, None, plain)[0] is None


def test_a_sweep_takes_the_parameters_of_a_run_and_its_own() -> None:
    from prefect_tao.flows import run, sweep

    own = {"over", "mode", "points", "samples", "seed", "max_concurrent", "on_failure", "metric", "direction"}
    of_the_run = {"step", "long_running_enabled", *parameters(BudgetParameters)}
    assert set(inspect.signature(sweep.fn).parameters) - own == set(inspect.signature(run.fn).parameters) - of_the_run


def test_no_point_is_a_search_although_one_may_be_said_to_be() -> None:
    with pytest.raises(InvalidInput, match="a search of its own"):
        resolved({**DINO, "automl_policy": "on", "max_concurrent": 2}, over={"train.optim.lr": [0.1, 0.2]})


# -- the leaderboard ---------------------------------------------------------------------------------------------------


def point(name: str, loss: float | None, state: StepState = StepState.COMPLETE, **more: Any) -> PointOutcome:
    metrics = {} if loss is None else {"loss": loss, "extra": 1.0}
    return PointOutcome(name=name, label=name, overrides={"lr": name}, state=state, metrics=metrics, **more)


BOARD = SweepOutcome(
    points=(
        point("late", 0.3),
        point("nan", math.nan),
        point("none", None),
        point("failed", 0.0, StepState.ERROR, message="out of memory\nmore"),
        point("best", 0.1, seconds=1800.0, total_seconds=3600.0, gpus=2),
    ),
    metric="loss",
    direction="minimize",
)


def test_the_best_is_first_and_what_has_no_score_is_never_the_best() -> None:
    assert [one.name for one in BOARD.ranked] == ["best", "late", "nan", "none", "failed"]
    assert BOARD.best is not None
    assert BOARD.best.name == "best"
    upward = BOARD.model_copy(update={"direction": "maximize"})
    assert [one.name for one in upward.ranked][:2] == ["late", "best"]
    assert BOARD.model_copy(update={"metric": None}).best is None


def test_the_table_has_cost_cause_and_values() -> None:
    rows = BOARD.rows()
    assert (rows[0]["rank"], rows[0]["loss"], rows[0]["lr"], rows[0]["GPU hours"]) == (1, 0.1, "best", 2.0)
    assert rows[4]["why"] == "out of memory"


def test_the_csv_has_every_metric_and_reads_back() -> None:
    rows = list(csv.DictReader(io.StringIO(BOARD.as_csv())))
    assert [row["lr"] for row in rows] == ["best", "late", "nan", "none", "failed"]
    assert rows[0]["extra"] == "1.0"


def test_a_leaderboard_survives_being_stored() -> None:
    kept = SweepOutcome(points=(point("a", 0.5),), metric="loss")
    assert SweepOutcome.model_validate_json(kept.model_dump_json()) == kept
