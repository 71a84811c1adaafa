"""An ask resolves to a request by the catalog: names, image, compute shape, and what earlier steps hand over."""

from __future__ import annotations

from typing import Any

import pytest
from resolve_tools import DEPLOY, DETECTOR, PYT, ROOTS, asked, catalog, failures, launch, parent, warnings

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.request import InputRule, JobRequest, Resources
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.command_launch import plain_launch
from prefect_tao.preflight.resolve.image_choice import is_image_reference
from prefect_tao.preflight.resolve.model_launch import resolve
from prefect_tao.runner.entrypoint import entrypoint_for


def trained(**fields: Any) -> Resolved:
    return launch(roots=ROOTS, **fields)


def test_a_complete_ask_becomes_a_request_that_can_run() -> None:
    resolved = trained(overrides={"num_epochs": 3}, env={"A": "b"}, secrets=("HF_TOKEN", "NGC_KEY"))
    assert not failures(resolved)
    request = resolved.request
    assert request is not None
    assert request.command == "det train -e {config_path}"
    assert request.image == PYT
    assert request.secrets == ("NGC_KEY", "HF_TOKEN")
    assert request.labels == {"model": "detector", "action": "train"}
    assert request.upload_excludes == ("inputs/",)
    assert request.env == {"A": "b"}
    assert request.specs == resolved.spec
    assert resolved.credentials == ("NGC_KEY",)
    assert entrypoint_for(request).mode == "config"


def test_the_same_ask_resolves_to_the_same_work_and_leaves_the_catalog_alone() -> None:
    whole = catalog()
    before = whole.model_dump_json()
    ask = asked(model="detector", action="train", target="slurm/polar", roots=ROOTS, overrides={"model.backbone": "x"})
    first, second = resolve(whole, ask), resolve(whole, ask)
    assert first == second
    assert whole.model_dump_json() == before


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["detector", "detect", "nvidia/detector", "DETECTOR"])
def test_a_model_is_found_by_its_names(name: str) -> None:
    assert launch(name, "evaluate").model == "detector"


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"model": "detektor"}, ["detektor", "detector"]),
        ({"model": "det"}, ["detector", "reader", "may mean"]),
        ({"action": "trian"}, ["trian", "did you mean train"]),
        ({"action": "zzz"}, ["zzz", "evaluate"]),
        ({"target": "slurn/polar"}, ["slurn", "slurm"]),
        ({"target": "slurm/Not Valid"}, ["not a target", "slurm/polar"]),
        ({"model": "detektor", "target": "slurn"}, ["fix 2 problems", "detector", "slurm"]),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(fields: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(InvalidInput) as caught:
        launch(**fields)
    assert all(part in str(caught.value) for part in parts), caught.value
    assert caught.value.findings


def test_a_platform_is_found_by_alias_and_block() -> None:
    assert trained(target="cluster/polar").platform == "slurm"


# -- images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "image", "source"),
    [
        ("train", PYT, "detector.container_image = tao_toolkit.pyt"),
        ("export", DEPLOY, "detector.actions.export.image"),
        ("gen_trt_engine", DEPLOY, "detector.actions.gen_trt_engine.container_image = tao_toolkit.deploy"),
    ],
)
def test_the_nearest_declared_image_is_taken(action: str, image: str, source: str) -> None:
    resolved = launch(action=action)
    assert (resolved.image, resolved.image_source) == (image, source)


def test_a_models_plain_image_comes_last() -> None:
    model = {**DETECTOR, "container_image": None, "image": "busybox:1"}
    resolved = resolve(catalog(other=model), asked(model="other", action="evaluate", target="local-docker"))
    assert (resolved.image, resolved.image_source) == ("busybox:1", "other.image")


def test_an_image_that_is_given_wins() -> None:
    resolved = trained(image=" my.registry:5000/team/det:v1 ")
    assert (resolved.image, resolved.image_source) == ("my.registry:5000/team/det:v1", "the launch")


@pytest.mark.parametrize(
    "reference",
    [
        "ubuntu",
        "ubuntu:24.04",
        "nvcr.io/nvidia/tao/tao-toolkit:7.1.0-pyt",
        "localhost:5000/a/b_c:1",
        "nvcr.io#nvidia/tao/tao-toolkit:7.1.0-pyt",
        "docker://nvcr.io#nvidia/tao:1",
        "docker://$oauthtoken@nvcr.io#nvidia/tao:1",
        "a/b@sha256:" + "0" * 64,
        "a/b:1@sha256:" + "0" * 64,
        "/lustre/images/tao.sqsh",
        "images/tao+7.sqsh",
        "/lustre/images/tao.squashfs",
    ],
)
def test_every_form_of_image_reference_is_accepted(reference: str) -> None:
    assert is_image_reference(reference)


@pytest.mark.parametrize(
    "reference",
    ["", "  ", "a b:1", "Team/Det:1", "a/b:", "a//b", "http://a/b", "a:1:2", "a/b@sha256:12", "my tao.sqsh"],
)
def test_what_is_no_image_reference_fails_and_is_never_replaced(reference: str) -> None:
    resolved = trained(image=reference)
    assert resolved.image is None
    assert any("image" in line and "--image" in line for line in failures(resolved))


@pytest.mark.parametrize(
    ("images", "reason"),
    [
        ({}, "tao_toolkit.pyt"),
        ({"tao_toolkit": {"pyt": "tao_toolkit.pyt"}}, "circle"),
        ({"tao_toolkit": {"pyt": ""}}, "expected"),
        ({"tao_toolkit": "flat"}, "no such"),
        ({"tao_toolkit": {"pyt": "not an/image"}}, "not an image reference"),
    ],
)
def test_a_version_key_that_leads_nowhere_is_a_finding(images: dict[str, Any], reason: str) -> None:
    ask = asked(model="detector", action="train", target="local-docker", roots=ROOTS)
    resolved = resolve(catalog(images), ask)
    assert resolved.image is None
    assert any(reason in line for line in failures(resolved)), resolved.findings


def test_a_model_without_image_needs_none_in_a_process_and_one_in_a_container() -> None:
    assert not failures(launch("checked", target="process"))
    resolved = launch("checked")
    assert any("names no image" in line for line in failures(resolved))
    assert resolved.request is not None


# -- compute -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"target": "slurm"}, {"gpus": 4, "nodes": 1, "cpus": 16, "time_limit": 4 * 3600}),
        ({"target": "process"}, {"gpus": 2, "nodes": 1, "cpus": None, "time_limit": None}),
        ({"target": "process", "gpus": 0}, {"gpus": 0}),
        ({"target": "local-docker"}, {"gpus": 1}),
        ({"target": "bare"}, {"gpus": 2}),
        ({"target": "slurm", "gpus": 8, "nodes": 2, "cpus": 4}, {"gpus": 8, "nodes": 2, "cpus": 4}),
        ({"target": "slurm", "gpus": 0}, {"gpus": 0}),
        (
            {"target": "slurm", "memory": "64G", "shm": "8G", "time_limit": "30m"},
            {"shm": 8 * 1024**3, "time_limit": 1800},
        ),
        ({"target": "slurm", "overrides": {"train.num_gpus": 8}}, {"gpus": 8}),
    ],
)
def test_the_compute_shape_is_asked_for_or_the_platforms_own(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    resolved = trained(**fields)
    assert not failures(resolved)
    assert resolved.request is not None
    shape = resolved.request.resources.model_dump()
    assert {key: shape[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"nodes": 2}, ["nodes: 2", "one node"]),
        ({"target": "slurm", "time_limit": "12h"}, ["time_limit: 12 h", "at most 4 h"]),
        ({"target": "slurm", "gpus": 12}, ["gpus: 12", "at most 8"]),
        ({"target": "slurm", "gpus": 16, "nodes": 2}, ["gpus: 16", "at most 8"]),
        ({"memory": "lots"}, ["memory", "lots", "16G"]),
        ({"shm": "-1"}, ["shm", "-1"]),
        ({"time_limit": "4:30"}, ["time_limit", "4:30"]),
        ({"gpus": 1, "overrides": {"train.num_gpus": 2}}, ["gpus: 1", "says 2"]),
        ({"overrides": {"train.num_gpus": "two"}}, ["train.num_gpus", "'two'", "whole number"]),
    ],
)
def test_a_shape_that_the_platform_does_not_allow_fails(fields: dict[str, Any], parts: list[str]) -> None:
    resolved = trained(**fields)
    assert any(all(part in line for part in parts) for line in failures(resolved)), resolved.findings
    assert resolved.request is not None


def shape_of(platform: str, defaults: dict[str, Any] | None = None, **asked: Any) -> tuple[Resources, list[str]]:
    """What a plain command gets, and what is said of its GPUs."""
    known = catalog()
    if defaults is not None:
        entry = known.platforms[platform].model_copy(update={"defaults": defaults})
        known = known.model_copy(update={"platforms": {**known.platforms, platform: entry}})
    launched = plain_launch(JobRequest.build(command="true", resources=asked), platform, known)
    assert launched.request
    return launched.request.resources, [one.message for one in launched.findings]


def test_a_plain_command_gets_the_platforms_shape_where_it_does_not_say() -> None:
    resources, said = shape_of("slurm")
    assert (resources.gpus, resources.nodes, resources.cpus, resources.time_limit) == (4, 1, 16, 4 * 3600)
    assert said == ["gpus: 4, the default of slurm for a job that does not say; --gpus 0 asks for none"]
    assert shape_of("local-docker", {"num_gpus": -1})[0].gpus == -1


def test_gpus_that_fill_several_nodes_are_spread_over_them_and_that_is_said() -> None:
    resources, said = shape_of("slurm", gpus=16)
    assert (resources.gpus, resources.nodes) == (8, 2)
    assert said == ["gpus: 16 are 2 nodes with 8 each, because a node has 8"]
    resolved = trained(target="slurm", gpus=16)
    assert resolved.request is not None
    assert (resolved.request.resources.gpus, resolved.request.resources.nodes) == (8, 2)
    for shape in ({"gpus": 12}, {"gpus": 16, "nodes": 2}):  # the driver refuses them
        assert shape_of("slurm", **shape)[0].gpus == shape["gpus"]


def test_what_a_plain_command_asks_for_counts_and_none_is_none() -> None:
    resources, said = shape_of("slurm", gpus=0, cpus=2, time_limit="1h")
    assert (resources.gpus, resources.cpus, resources.time_limit, said) == (0, 2, 3600, [])
    assert shape_of("process") == (Resources(), [])


def test_a_model_that_gets_the_platforms_gpus_says_so() -> None:
    said = [one.message for one in trained(target="slurm").findings if one.subject == "default gpus"]
    assert said == ["gpus: 4, the default of slurm for a job that does not say; --gpus 0 asks for none"]
    assert not [one for one in trained(target="slurm", gpus=2).findings if one.subject == "default gpus"]


def test_fewer_gpus_than_a_model_is_meant_for_are_a_warning() -> None:
    assert any("meant for 2" in line for line in warnings(trained(gpus=1)))
    assert not any("meant for" in line for line in warnings(trained(gpus=2)))


def test_all_gpus_are_refused_where_the_spec_wants_a_number_that_nobody_knows() -> None:
    resolved = trained(gpus=-1)
    (line,) = [line for line in failures(resolved) if "gpus" in line]
    assert "all were asked for, train.num_gpus takes a number" in line
    assert line.endswith("give the number, for example --gpus 8")
    assert not any("meant for" in said for said in warnings(resolved))


def test_all_gpus_stay_all_where_no_spec_wants_their_number() -> None:
    resolved = launch("checked", "plain", gpus=-1)
    assert resolved.request
    assert (resolved.request.resources.gpus, resolved.request.resources.total_gpus) == (-1, 0)
    assert not any("gpus" in line for line in failures(resolved))


def test_a_model_gets_the_gpus_it_is_meant_for_where_the_platform_says_nothing() -> None:
    said = [finding for finding in trained(target="process").findings if finding.subject == "default gpus"]
    assert [finding.level for finding in said] == [Level.OK]
    assert any("0 in all; detector is meant for 2" in line for line in warnings(trained(target="process", gpus=0)))


# -- hand-off ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "key", "files", "expected"),
    [
        (
            "evaluate",
            "evaluate.checkpoint",
            ["train/model_epoch_001.pth", "train/model_epoch_010.pth"],
            "model_epoch_010",
        ),
        ("evaluate", "evaluate.checkpoint", ["model_epoch_009.pth", "model_best.pth", "det_latest.pth"], "model_best"),
        ("evaluate", "evaluate.checkpoint", ["model_epoch_009.pth", "det_model_latest.pth"], "model_epoch_009"),
        ("evaluate", "evaluate.checkpoint", ["a.pth", "det_model_latest.pth", "b.pth"], "det_model_latest"),
        ("export", "export.checkpoint", ["inputs/model_epoch_99.pth", "model_epoch_1.pth"], "model_epoch_1"),
        ("export", "export.checkpoint", ["teacher_epoch_5.pth", "student_epoch_4.pth"], "student_epoch_4"),
        ("gen_trt_engine", "gen_trt_engine.onnx_file", ["model_epoch_3.pth", "export/model.onnx"], "export/model.onnx"),
        ("trt_evaluate", "evaluate.trt_engine", ["model.onnx", "model.engine"], "model.engine"),
    ],
)
def test_a_parents_best_file_is_handed_over(action: str, key: str, files: list[str], expected: str) -> None:
    resolved = launch(action=action, parents=(parent(*files),))
    assert not failures(resolved)
    assert resolved.request is not None
    section, name = key.split(".")
    assert f"/{expected}" in resolved.spec[section][name]
    assert resolved.request.inputs[key] == InputRule(type="file")


def test_the_last_parent_with_a_fitting_file_is_taken() -> None:
    parents = (
        parent("old_epoch_9.pth", results="s3://b/a"),
        parent("new_epoch_1.pth", results="s3://b/c"),
        parent("x.txt"),
    )
    assert launch(action="evaluate", parents=parents).spec["evaluate"]["checkpoint"] == "s3://b/c/new_epoch_1.pth"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["safetensors/step_10/a.safetensors", "safetensors/step_9/a.safetensors"], "/r/safetensors/step_10"),
        (["checkpoints/epoch_1/p.pth", "export/a.safetensors"], "/r/export"),
        ([], "/r"),
    ],
)
def test_a_parents_newest_folder_is_handed_over(files: list[str], expected: str) -> None:
    resolved = launch("reader", "infer", parents=(parent(*files, results="/r"),), overrides={"media": "/v"})
    assert resolved.spec["model"]["folder"] == expected


def test_what_a_person_names_wins_over_the_parents_file() -> None:
    resolved = launch(action="evaluate", parents=(parent("best.pth"),), overrides={"evaluate.checkpoint": "/mine.pth"})
    assert resolved.spec["evaluate"]["checkpoint"] == "/mine.pth"


@pytest.mark.parametrize(("parents", "reason"), [((), "no earlier step"), ((parent("log.txt"),), "none of the 1")])
def test_without_a_fitting_file_the_key_and_both_remedies_are_told_once(parents: Any, reason: str) -> None:
    lines = failures(launch(action="evaluate", parents=parents))
    assert len(lines) == 1
    assert reason in lines[0]
    assert "--set evaluate.checkpoint=path" in lines[0]
    assert "parent" in lines[0]


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, True), ({"evaluate.trt_engine": "/a.engine"}, False), ({"evaluate.checkpoint": None}, False)],
)
def test_an_action_that_may_take_this_or_that_model_needs_one_of_them_or_a_clear_no(
    given: dict[str, str | None], told: bool
) -> None:
    evaluate = {**DETECTOR["actions"]["evaluate"], "template": {}}
    optional = {"type": "file", "optional": True}
    evaluate["inputs"] = {"evaluate.checkpoint": optional, "evaluate.trt_engine": optional}
    model = {**DETECTOR, "actions": {"evaluate": evaluate}}
    resolved = resolve(catalog(other=model), asked(model="other", action="evaluate", target="slurm", overrides=given))
    assert any("none of evaluate.checkpoint, evaluate.trt_engine" in line for line in failures(resolved)) == told


def test_files_that_a_step_makes_are_named_below_its_outputs() -> None:
    resolved = launch(action="gen_trt_engine", parents=(parent("model.onnx"),))
    assert resolved.spec["gen_trt_engine"]["trt_engine"] == "model.engine"
    assert resolved.request is not None
    assert set(resolved.request.outputs) == {
        "results_dir",
        "gen_trt_engine.trt_engine",
        "gen_trt_engine.cal_cache_file",
    }
    exported = launch(action="export", parents=(parent("a.pth"),))
    assert exported.spec["export"]["onnx_file"] == "model.onnx"


def test_keys_constants_and_resume_places_are_filled() -> None:
    spec = trained().spec
    assert spec["encryption_key"] == "tlt_encode"
    assert spec["dataset"]["train_sources"][0]["kind"] == "CocoDataset"
    assert spec["train"]["resume_training_checkpoint_path"] is None
    assert spec["train"]["pretrained_model_path"] is None
    assert spec["results_dir"] is None


# -- requests that cannot be -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"env": {"1A": "x"}}, {"secrets": ("NGC_KEY=abc",)}])
def test_what_no_request_can_hold_is_told_and_nothing_is_built(fields: dict[str, Any]) -> None:
    resolved = trained(**fields)
    assert resolved.request is None
    assert failures(resolved)


@pytest.mark.parametrize(
    "fields",
    [{"env": {"A": "nvapi-" + "a1" * 20}}, {"overrides": {"model.token": "hf_" + "a1" * 17, "train.tokn": "a"}}],
)
def test_a_secret_is_refused_before_anything_is_resolved_and_not_repeated(fields: dict[str, Any]) -> None:
    with pytest.raises(
        InvalidInput, match=r"(env\.A|overrides\.model\.token) holds what looks like a secret"
    ) as refused:
        trained(**fields)
    assert "a1a1" not in str(refused.value)


def test_an_output_that_is_no_place_is_told() -> None:
    resolved = trained(overrides={"results_dir": "ftp://x/y"})
    assert any("results_dir" in line and "ftp://x/y" in line for line in failures(resolved))


def test_a_plain_command_takes_no_spec() -> None:
    resolved = launch("checked", "plain", target="process")
    assert not failures(resolved)
    assert resolved.request is not None
    assert (resolved.request.specs, resolved.request.outputs) == (None, ("/results",))
    assert any("plain command" in line for line in failures(launch("checked", "plain", overrides={"a": 1})))


def test_arguments_keep_their_names() -> None:
    resolved = launch("checked", "words", target="process", overrides={"a.b": 1})
    assert resolved.request is not None
    assert resolved.request.args == {"size": 3, "a.b": 1}


def test_everything_wrong_is_told_at_once() -> None:
    resolved = launch(image="a b", nodes=3, overrides={"train..x": 1, "train.num_epochs.y": 2})
    checks = {finding.subject for finding in resolved.findings if finding.level is Level.FAIL}
    assert {
        "image",
        "nodes",
        "train..x",
        "train.num_epochs.y",
        "dataset train",
        "dataset eval",
    } <= checks
