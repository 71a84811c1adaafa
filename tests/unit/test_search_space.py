"""What a search may vary, and what a point of it means in a spec."""

from __future__ import annotations

import random

import pytest

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.catalog.nouns import SearchParameter
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.searching.algorithms import algorithm_named
from prefect_tao.searching.bayesian import BayesianSampler
from prefect_tao.searching.parameter_choice import chosen_parameters
from prefect_tao.searching.samplers import sampler_of
from prefect_tao.searching.search_plan import SearchPlan
from prefect_tao.searching.space import Space, space_of
from prefect_tao.searching.unit_cube import UnitCube

optuna = pytest.importorskip("optuna", reason="the automl extra is not installed: make setup installs it")
MODELS = {name: entry for name, entry in load_catalog().models.items() if entry.automl.parameters}


def parameter(name: str = "lr", kind: str = "float", **more: object) -> SearchParameter:
    return SearchParameter.model_validate({"name": name, "type": kind, **more})


def anywhere(space: Space, count: int = 200) -> list[dict[str, object]]:
    """The values of points all over a space."""
    rng, cube = random.Random(1), UnitCube(space.axes)
    return [space.values(cube.params([rng.random() for _ in cube.names])) for _ in range(count)]


@pytest.mark.parametrize("model", MODELS)
def test_each_packaged_model_has_a_space_around_its_own_values(model: str) -> None:
    parameters = MODELS[model].automl.parameters
    space = space_of(parameters, {})
    found = space.values(space.first)
    assert found.keys() == {one.name for one in parameters}
    strict = {one.name for one in parameters if one.condition.startswith("> ") and one.default == 0}
    for one in parameters:
        if one.default is not None and one.name not in strict:
            assert found[one.name] == one.default


@pytest.mark.parametrize("model", MODELS)
def test_no_point_is_outside_what_the_catalog_allows(model: str) -> None:
    parameters = {one.name: one for one in MODELS[model].automl.parameters}
    for values in anywhere(space_of(list(parameters.values()), {}), 50):
        for name, value in values.items():
            one = parameters[name]
            if one.options or one.type == "bool":
                assert value in (one.options or (False, True))
                continue
            assert one.min is not None
            assert one.max is not None
            own = one.default if isinstance(one.default, list) else [one.min if one.default is None else one.default]
            for number in value if isinstance(value, list) else [value]:
                assert min(one.min, *own) <= number <= max(one.max, *own), name


def test_a_rate_is_searched_by_orders_of_magnitude() -> None:
    values = anywhere(space_of([parameter(default=2e-4, min=2e-6, max=1.0, log=True)], {}))
    assert sum(value["lr"] < 1e-3 for value in values) > 60  # linearly it would be none


def test_values_that_span_decades_are_searched_so_without_being_told() -> None:
    values = anywhere(space_of([parameter("steps", "int", default=11, min=1, max=10_000)], {}))
    assert sum(value["steps"] < 100 for value in values) > 60


def test_open_ends_are_closed_around_the_value_of_the_spec() -> None:
    values = [value["lr"] for value in anywhere(space_of([parameter()], {"lr": 0.02}))]
    assert 0.002 <= min(values) < 0.02 < max(values) <= 0.2


def test_a_value_beyond_the_range_of_the_catalog_widens_it() -> None:
    space = space_of([parameter(default=0.1, min=0.0, max=1.0)], {"lr": 3.0})
    assert space.values(space.first) == {"lr": 3.0}


@pytest.mark.parametrize(
    ("condition", "allowed"),
    [
        ("^ 2", {2, 4, 8, 16, 32, 64}),
        ("/ 8", set(range(8, 100, 8))),
        ("> 2", set(range(3, 100))),
        ("", set(range(2, 100))),
    ],
)
def test_conditions_hold_everywhere(condition: str, allowed: set[int]) -> None:
    space = space_of([parameter("width", "int", default=8, min=2, max=99, condition=condition)], {})
    assert {value["width"] for value in anywhere(space)} <= allowed
    assert space.values(space.first) == {"width": 8}


def test_a_value_stays_above_the_one_it_depends_on() -> None:
    low = parameter("low", "int", default=384, min=32, max=1024)
    high = parameter("high", "int", default=600, min=32, max=1333, condition="> depends_on", depends_on="low")
    for values in anywhere(space_of([high, low], {})):
        assert 32 <= values["low"] < values["high"] <= 1333
    for values in anywhere(space_of([high], {"low": 500})):
        assert values["high"] > 500


def test_a_value_does_not_pass_the_one_that_limits_it() -> None:
    queries = parameter("queries", "int", default=300, min=1, max=1200)
    select = parameter("select", "int", default=300, min=1, max=1000, depends_on="queries")
    for values in anywhere(space_of([queries, select], {})):
        assert values["select"] <= values["queries"]


def test_where_values_limit_each_other_tpe_proposes_in_the_place_of_the_gaussian_process() -> None:
    queries = parameter("queries", "int", default=300, min=1, max=1200)
    select = parameter("select", "int", default=300, min=1, max=1000, depends_on="queries")
    plan = SearchPlan("bayesian")
    assert isinstance(sampler_of(plan, space_of([queries, select], {}), 7), optuna.samplers.TPESampler)
    assert isinstance(sampler_of(plan, space_of([queries], {}), 7), BayesianSampler)
    assert isinstance(sampler_of(plan, space_of([select], {"queries": 400}), 7), BayesianSampler)


def test_lists_keep_their_length_and_steps_their_order() -> None:
    for values in anywhere(space_of([parameter("steps", "list_2", default=[40, 70], min=4, max=280)], {})):
        assert len(values["steps"]) == 2
        assert values["steps"] == sorted(values["steps"])


def test_ordered_choices_are_counted_and_others_are_not() -> None:
    ordered = space_of([parameter("batch", "ordered_int", default=16, options=[32, 8, 16])], {})
    assert ordered.values(ordered.first) == {"batch": 16}
    assert {value["batch"] for value in anywhere(ordered)} == {8, 16, 32}
    assert isinstance(next(iter(ordered.axes.values())), optuna.distributions.IntDistribution)
    apart = space_of([parameter("optimiser", "categorical", default="sgd", options=["sgd", "adam"])], {})
    assert isinstance(apart.axes["optimiser"], optuna.distributions.CategoricalDistribution)


def test_a_persons_own_range_counts() -> None:
    one = parameter(default=0.1, min=0.0, max=1.0)
    space = space_of([one], {}, {"lr": {"valid_min": 0.2, "valid_max": 0.3}})
    assert all(0.2 <= value["lr"] <= 0.3 for value in anywhere(space))
    options = parameter("kind", "categorical", default="a", options=["a", "b", "c"])
    space = space_of([options], {}, {"kind": {"disable_list": ["b"]}})
    assert {value["kind"] for value in anywhere(space)} == {"a", "c"}


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"valid_mim": 1}, "valid_min"),
        ({"valid_min": 2.0, "valid_max": 1.0}, "nothing to search between 2 and 1"),
        ({"valid_min": "low"}, "must be a number"),
        ({"valid_max": float("inf")}, "must be a number"),
    ],
)
def test_a_range_that_cannot_be_is_refused(own: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        space_of([parameter(default=0.1, min=0.0, max=1.0)], {}, {"lr": own})
    assert words in str(refused.value)


@pytest.mark.parametrize("own", [{"valid_options": ["z"]}, {"disable_list": ["a", "b"]}, {"option_weights": [1]}])
def test_options_that_cannot_be_are_refused(own: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        space_of([parameter("kind", "categorical", default="a", options=["a", "b"])], {}, {"kind": own})


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(InvalidInput, match="nothing to search"):
        space_of([], {})


@pytest.mark.parametrize(
    ("word", "algorithm"), [("b", "bayesian"), ("bfbo", "bayesian"), ("TPE", "tpe"), ("nsga2", "nsga-ii")]
)
def test_algorithms_are_known_by_their_other_names(word: str, algorithm: str) -> None:
    assert algorithm_named(word) == algorithm


@pytest.mark.parametrize(
    ("word", "words"), [("bayesien", "did you mean bayesian"), ("llm", "use bayesian"), ("x", "there are")]
)
def test_an_unknown_algorithm_is_refused_with_what_to_use(word: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        algorithm_named(word)


SCHEMA = {
    "properties": {
        "train": {
            "properties": {
                "lr": {"type": "number", "minimum": 0.0, "maximum": 1.0, "default": 1e-3},
                "depth": {"type": "integer", "minimum": 1, "maximum": 8, "default": 2},
                "kind": {"type": "string", "enum": ["a", "b"], "default": "a"},
                "note": {"type": "string"},
            }
        }
    }
}


@pytest.mark.parametrize("own", [{"valid_max": 1.5}, {"valid_min": -1.0, "valid_max": 0.5}])
def test_a_range_outside_the_schema_is_refused(own: dict[str, float]) -> None:
    one = parameter("train.lr", default=1e-3, min=1e-5, max=1.0, log=True)
    with pytest.raises(InvalidInput, match="outside what the schema allows"):
        space_of([one], {}, {"train.lr": own}, SCHEMA)
    assert space_of([one], {}, {"train.lr": {"valid_min": 1e-7, "valid_max": 1.0}}, SCHEMA).axes["train.lr"].low == 1e-7


def test_a_range_of_what_is_not_searched_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidInput, match="did you mean lr"):
        space_of([parameter(default=0.1, min=0.0, max=1.0)], {}, {"lrr": {"valid_min": 0.1}})


def test_likely_options_come_up_more_often() -> None:
    options = parameter("kind", "categorical", default="a", options=["a", "b", "c"])
    space = space_of([options], {}, {"kind": {"option_weights": [8, 1, 1]}})
    cube = UnitCube(space.axes, space.weights)
    drawn = [cube.params([place / 1000])["kind"] for place in range(1000)]
    assert {one: drawn.count(one) for one in "abc"} == {"a": 800, "b": 100, "c": 100}
    for one in "abc":
        assert cube.params(cube.coordinates({"kind": one})) == {"kind": one}


def test_a_list_can_be_searched_as_one_number() -> None:
    one = parameter("rates", "list_1_normal", default=[0.1, 0.2], min=0.0, max=1.0)
    space = space_of([one], {}, {"rates": {"disable_list": True}})
    assert space.values(space.first) == {"rates": 0.1}


@pytest.mark.parametrize("model", MODELS)
def test_values_lead_back_to_their_point(model: str) -> None:
    """A search is rebuilt from the values that its jobs were given."""
    space = space_of(MODELS[model].automl.parameters, {})
    for values in anywhere(space, 20):
        assert space.values(space.point(values)) == values


def test_a_persons_own_list_counts_and_the_schema_knows_more_than_the_model_offers() -> None:
    offered = [parameter("train.lr", default=1e-3, min=1e-5, max=1.0, log=True), parameter("train.wd", default=0.1)]
    assert [one.name for one in chosen_parameters(offered, without=["train.wd"])] == ["train.lr"]
    own = chosen_parameters(offered, ["train.depth", "train.kind", "train.lr"], schema=SCHEMA)
    assert [(one.name, one.type) for one in own] == [
        ("train.depth", "int"),
        ("train.kind", "categorical"),
        ("train.lr", "float"),
    ]
    assert {one["train.depth"] for one in anywhere(space_of(own, {}))} == set(range(1, 9))


@pytest.mark.parametrize(
    ("names", "without", "words"),
    [
        (["train.lrr"], [], "did you mean train.lr"),
        ([], ["train.lt"], "did you mean train.lr"),
        ([], ["train.lr"], "nothing to search"),
        (["train.note"], [], "without a list of choices"),
    ],
)
def test_a_list_of_parameters_that_cannot_be_is_refused(names: list[str], without: list[str], words: str) -> None:
    offered = [parameter("train.lr", default=1e-3, min=1e-5, max=1.0, log=True)]
    with pytest.raises(InvalidInput, match=words):
        chosen_parameters(offered, names, without, SCHEMA)
