"""A chain is put in order, its steps get what those before them make, and what does not fit is told before it runs."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from prefect_tao.jobs.chain_outcome import StepOutcome, StepState
from prefect_tao.jobs.errors import InvalidInput, JobFailed
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.state import JobState
from prefect_tao.launch.parameters.derived import parameters
from prefect_tao.launch.parameters.search_declared import SearchingParameters
from prefect_tao.preflight.plans.chain_plan import (
    SHARED_PARAMETERS,
    STEP_PARAMETERS,
    chosen_steps,
    plan_chain,
)
from prefect_tao.preflight.plans.movement import kept_by, movement_findings
from prefect_tao.preflight.plans.recipes import RECIPES
from prefect_tao.preflight.plans.step import Step, promised, resolve_step
from prefect_tao.preflight.resolve.resolving import open_catalog
from prefect_tao.preflight.resolve.translating import proofs_from

TRAIN, EVALUATE, EXPORT = ({"action": word} for word in ("train", "evaluate", "export"))
DINO = {"model": "dino", "train_root": "/data/train", "eval_root": "/data/eval", "automl_policy": "off"}


def plan(*steps: dict[str, Any], **shared: Any) -> dict[str, Step]:
    return {step.name: step for step in plan_chain(steps, {"model": "tiny", **shared})}


def refusal(*steps: Any, **shared: Any) -> str:
    with pytest.raises(InvalidInput) as refused:
        plan(*steps, **shared)
    return str(refused.value)


def here(target: str) -> str:
    return target.partition("/")[0]


def outcome(step: str, *files: str) -> Outcome:
    handle = JobHandle(target="process", key="0" * 16, attempt=1, results=f"/r/{step}")
    return Outcome(handle=handle, state=JobState.COMPLETE, results=f"/r/{step}", files=files, file_count=len(files))


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_a_step_waits_for_the_nearest_one_that_makes_what_it_takes() -> None:
    steps = plan(TRAIN, EVALUATE, EXPORT)
    assert steps["evaluate"].takes == {"evaluate.checkpoint": ("train",)}
    assert [steps[name].after for name in ("train", "evaluate", "export")] == [(), ("train",), ("train",)]


def test_who_is_named_with_after_is_taken_from_though_another_one_is_nearer() -> None:
    steps = plan({**TRAIN, "name": "small"}, {**TRAIN, "name": "large"}, {**EVALUATE, "after": "small"})
    assert steps["evaluate"].takes == {"evaluate.checkpoint": ("small",)}


def test_an_action_that_is_known_to_make_it_is_preferred_to_a_command() -> None:
    look = {"name": "look", "command": "ls"}
    assert plan(TRAIN, look, EVALUATE)["evaluate"].givers == ("train",)
    assert plan({"name": "own", "command": "./train.sh"}, EVALUATE)["evaluate"].givers == ("own",)


def test_a_later_step_may_stand_before_those_it_waits_for() -> None:
    steps = plan({**EVALUATE, "after": ["train"]}, TRAIN)
    assert list(steps) == ["train", "evaluate"]


def test_a_checkpoint_that_is_given_makes_the_step_independent() -> None:
    given = {**EVALUATE, "overrides": {"evaluate.checkpoint": "/models/best.pth"}}
    assert plan(TRAIN, given)["evaluate"].after == ()


def test_a_command_takes_from_every_step_that_it_names() -> None:
    steps = plan(TRAIN, EXPORT, {"name": "pack", "command": "pack {steps.train.checkpoint} {steps.export.results}"})
    assert set(steps["pack"].after) == {"train", "export"}
    done = {"train": outcome("train", "train/model_epoch_002.pth", "train/model_epoch_001.pth"), "export": outcome("x")}
    resolved = resolve_step(steps["pack"], done, here)
    assert resolved.request is not None
    assert resolved.request.command == "pack /r/train/train/model_epoch_002.pth /r/x/results_dir"


def test_a_step_that_left_nothing_of_the_kind_is_named() -> None:
    steps = plan(TRAIN, {"name": "pack", "command": "pack {steps.train.checkpoint}"})
    with pytest.raises(InvalidInput, match="the step train has left no checkpoint"):
        resolve_step(steps["pack"], {"train": outcome("train")}, here)


def test_what_a_chain_says_for_all_reaches_the_steps_that_can_use_it() -> None:
    steps = plan(
        TRAIN,
        EVALUATE,
        EXPORT,
        {"name": "look", "command": "ls"},
        train_root="/data",
        gpus=2,
        env={"A": "1"},
        overrides={"num_epochs": 3},
    )
    assert "train_root" not in steps["export"].given  # its action reads no training data
    assert steps["train"].given["train_root"] == "/data"
    assert {"overrides", "train_root", "model"} & steps["look"].given.keys() == set()
    assert steps["look"].given["gpus"] == 2


def test_a_steps_own_words_win_over_those_for_all() -> None:
    own = {**TRAIN, "target": "process/b", "overrides": {"num_epochs": 9}, "env": {"B": "2"}}
    step = plan(own, target="process/a", overrides={"num_epochs": 3, "hidden": 8}, env={"A": "1"})["train"]
    assert step.target == "process/b"
    assert step.given["overrides"] == {"num_epochs": 9, "hidden": 8}
    assert step.given["env"] == {"A": "1", "B": "2"}


def test_a_value_for_all_leaves_out_the_actions_that_do_not_know_it() -> None:
    judge = {**EVALUATE, "model": "dino", "overrides": {"evaluate.checkpoint": "/m.pth"}}
    steps = plan(TRAIN, judge, overrides={"evaluate.batch_size": 4})
    assert "overrides" not in steps["train"].given
    assert steps["evaluate"].given["overrides"] == {"evaluate.batch_size": 4, "evaluate.checkpoint": "/m.pth"}
    known_nowhere = plan(TRAIN, EVALUATE, overrides={"train.epocs": 4})
    assert all("overrides" in step.given for step in known_nowhere.values())  # so that the gates tell of it


WIDE = {"model.num_queries": 600, "dataset.num_classes": 12, "model.backbone": "fan_small", "train.num_epochs": 3}


def test_what_the_model_looks_like_goes_with_its_weights() -> None:
    words = ("train", "evaluate", "export", "gen_trt_engine", "trt_evaluate")
    given = [{"action": "train", "overrides": WIDE}, *({"action": word} for word in words[1:])]
    steps = {step.name: step for step in plan_chain(given, DINO)}
    structure = {key: value for key, value in WIDE.items() if key != "train.num_epochs"}
    assert steps["evaluate"].given["overrides"] == steps["export"].given["overrides"] == structure
    # The files that they take over tell what they are.
    assert not {"overrides"} & {*steps["gen_trt_engine"].given, *steps["trt_evaluate"].given}
    resolved = resolve_step(steps["evaluate"], {name: promised(one) for name, one in steps.items()}, here)
    assert resolved.spec["model"]["num_queries"] == 600


def test_the_structure_reaches_the_end_of_the_chain_and_a_steps_own_words_win() -> None:
    given = [
        {"action": "train", "specs": {"model": {"backbone": "deformable_resnet50", "neck": "FANNeck"}}},
        {"action": "prune"},
        {"action": "retrain", "overrides": {"model.backbone": "other"}},
        {"action": "evaluate"},
    ]
    steps = {step.name: step for step in plan_chain(given, {**DINO, "model": "ocdnet"})}
    carried = {"model.backbone": "deformable_resnet50", "model.neck": "FANNeck"}
    assert steps["prune"].given["overrides"] == carried
    assert steps["retrain"].given["overrides"] == {**carried, "model.backbone": "other"}
    graph = {"model.pruned_graph_path": "{steps.prune.checkpoint}", "model.load_pruned_graph": True}
    assert steps["evaluate"].given["overrides"] == {**steps["retrain"].given["overrides"], **graph}


def test_a_pruned_graph_goes_with_the_weights_that_were_trained_on_it() -> None:
    steps = {step.name: step for step in plan_chain(chosen_steps(None, "prune"), {**DINO, "model": "ocdnet"})}
    done = {
        "prune": outcome("prune", "pruned_0.1.pth"),
        "retrain": outcome("retrain", "model_best.pth", "model_epoch_009_step_00460.pth"),
    }
    retrained = resolve_step(steps["retrain"], done, here).spec["model"]
    assert retrained == {"load_pruned_graph": True, "pruned_graph_path": "/r/prune/pruned_0.1.pth"}
    assert steps["evaluate"].after == ("prune", "retrain")
    judged = resolve_step(steps["evaluate"], done, here)
    assert judged.spec["evaluate"]["checkpoint"] == "/r/retrain/model_best.pth"
    assert judged.spec["model"] == retrained
    assert judged.request is not None
    assert "model.pruned_graph_path" in judged.request.inputs  # so that it is fetched


def test_a_pruned_graph_that_a_person_names_goes_along_as_well() -> None:
    given = [{"action": "retrain", "overrides": {"pruned_graph_path": "/p.pth"}}, {"action": "evaluate"}]
    steps = {step.name: step for step in plan_chain(given, {**DINO, "model": "ocrnet"})}
    assert steps["evaluate"].given["overrides"] == {"model.pruned_graph_path": "/p.pth"}  # has no word for loading it
    assert steps["evaluate"].after == ("retrain",)
    taken = {"action": "retrain", "overrides": {"pruned_graph_path": "{steps.cut.checkpoint}"}}
    cut = {"name": "cut", "command": "./cut.sh"}
    judge = plan(cut, taken, EVALUATE, **{**DINO, "model": "ocrnet"})["evaluate"]
    assert (judge.after, judge.takes["model.pruned_graph_path"]) == (("cut", "retrain"), ("cut",))
    own = [given[0], {"action": "evaluate", "overrides": {"model.pruned_graph_path": "/q.pth"}}]
    assert plan(*own, **{**DINO, "model": "ocrnet"})["evaluate"].given["overrides"] == {
        "model.pruned_graph_path": "/q.pth"
    }


def test_a_quantization_that_needs_a_whole_checkpoint_gets_no_best_one() -> None:
    steps = {step.name: step for step in plan_chain(chosen_steps(None, "quantize"), {**DINO, "model": "ocdnet"})}
    files = (
        "model_best.pth",
        "ocd_model_latest.pth",
        "model_epoch_001_step_00046.pth",
        "model_epoch_002_step_00092.pth",
    )
    taken = resolve_step(steps["quantize"], {"train": outcome("train", *files)}, here)
    assert taken.spec["quantize"]["model_path"] == "/r/train/model_epoch_002_step_00092.pth"
    nothing = resolve_step(steps["quantize"], {"train": outcome("train", "model_best.pth")}, here)
    (finding,) = [one for one in nothing.findings if one.blocks]
    assert "is a checkpoint of an epoch" in finding.message
    # Other models may be quantized from their best.
    rtdetr = {step.name: step for step in plan_chain(chosen_steps(None, "quantize"), {**DINO, "model": "rtdetr"})}
    best = resolve_step(rtdetr["quantize"], {"train": outcome("train", *files)}, here)
    assert best.spec["quantize"]["model_path"] == "/r/train/model_best.pth"


def test_another_model_and_a_location_take_no_structure_over() -> None:
    given = [
        {"model": "dino", "action": "train", "overrides": {"model.pretrained_backbone_path": "/ptm.pth"}},
        {"name": "same", "model": "dino", "action": "evaluate"},
        {"name": "other", "model": "rtdetr", "action": "evaluate", "after": "train"},
    ]
    steps = {step.name: step for step in plan_chain(given, DINO)}
    assert "overrides" not in steps["same"].given
    assert "overrides" not in steps["other"].given


# -- recipes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "model"), [("deploy", "dino"), ("convert", "pointpillars"), ("prune", "ocdnet"), ("quantize", "rtdetr")]
)
def test_every_recipe_fits_a_model_and_each_step_gets_what_it_needs(recipe: str, model: str) -> None:
    steps = plan_chain(chosen_steps(None, recipe), {**DINO, "model": model})
    assert [step.given["action"] for step in steps] == [step["action"] for step in RECIPES[recipe]]
    promises = {step.name: promised(step) for step in steps}
    for step in steps[1:]:
        assert step.givers
        resolved = resolve_step(step, promises, here)
        for pointer in step.takes:
            assert not [finding for finding in resolved.findings if finding.blocks and pointer in finding.subject]


def test_the_deploy_recipe_switches_the_image_and_hands_model_onnx_and_engine_on() -> None:
    steps = {step.name: step for step in plan_chain(chosen_steps(None, "deploy"), DINO)}
    assert steps["gen_trt_engine"].takes == {"gen_trt_engine.onnx_file": ("export",)}
    assert steps["trt_evaluate"].takes == {"evaluate.trt_engine": ("gen_trt_engine",)}
    images = {}
    for step in steps.values():
        images[step.name] = resolve_step(step, {name: promised(one) for name, one in steps.items()}, here).image or ""
    assert images["train"] == images["export"] != images["gen_trt_engine"] == images["trt_evaluate"]
    assert "deploy" in images["trt_evaluate"]


OURS = "registry.local/ours:1-pyt"


def test_an_image_for_all_leaves_the_actions_alone_that_have_one_of_their_own() -> None:
    steps = {step.name: step for step in plan_chain(chosen_steps(None, "deploy"), {**DINO, "image": OURS})}
    promises = {name: promised(one) for name, one in steps.items()}
    resolved = {name: resolve_step(step, promises, here) for name, step in steps.items()}
    assert [resolved[name].image for name in ("train", "evaluate", "export")] == [OURS] * 3
    for name in ("gen_trt_engine", "trt_evaluate"):
        assert "-deploy" in (resolved[name].image or "")
        # Naming an image confirms that one, not the other that the catalog chooses.
        assert not proofs_from(steps[name].given).image_confirmed
        (told,) = [finding for finding in resolved[name].findings if finding.subject == "image"]
        assert told.level is Level.WARN
        assert f"so {OURS} is not used for it" in told.message
    assert not [finding for finding in resolved["train"].findings if finding.subject == "image"]


def test_an_image_of_its_own_is_confirmed_for_all_or_named_by_the_step() -> None:
    ready = {"action": "gen_trt_engine", "overrides": {"gen_trt_engine.onnx_file": "/m.onnx"}}
    confirmed = plan(ready, **{**DINO, "image": OURS, "confirm_image": True})["gen_trt_engine"]
    assert "image" not in confirmed.given
    assert proofs_from(confirmed.given).image_confirmed
    named = plan({**ready, "image": "mine:2-deploy"}, **{**DINO, "image": OURS})["gen_trt_engine"]
    assert resolve_step(named, {}, here).image == "mine:2-deploy"
    assert named.notes == ()


def test_an_image_for_all_reaches_commands_and_models_without_one() -> None:
    steps = plan(TRAIN, {"name": "look", "command": "ls"}, image=OURS)
    assert [step.given["image"] for step in steps.values()] == [OURS, OURS]


def test_what_a_conversion_makes_goes_into_the_open_input_folder() -> None:
    steps = {step.name: step for step in plan_chain(chosen_steps(None, "convert"), {**DINO, "model": "pointpillars"})}
    assert steps["train"].takes == {"dataset.data_info_path": ("dataset_convert",)}
    assert steps["evaluate"].givers == ("dataset_convert", "train")


def test_what_a_conversion_makes_goes_where_the_catalog_says() -> None:
    steps = {step.name: step for step in plan_chain(chosen_steps(None, "convert"), {**DINO, "model": "ocrnet"})}
    assert steps["train"].takes == {"dataset.train_dataset_dir": ("dataset_convert",)}
    train = resolve_step(steps["train"], {"dataset_convert": outcome("c")}, here)
    assert not [finding for finding in train.findings if finding.blocks]
    data = train.spec["dataset"]
    assert data["train_dataset_dir"] == ["/r/c/results_dir/dataset_convert/lmdb"]
    assert data["train_gt_file"] is None  # which makes it read a list of raw images
    assert (data["val_dataset_dir"], data["val_gt_file"]) == ("/data/eval/test.tar.gz", "/data/eval/test/gt_new.txt")
    alone = resolve_step(plan(TRAIN, **{**DINO, "model": "ocrnet"})["train"], {}, here).spec["dataset"]
    assert alone["train_dataset_dir"] == ["/data/train/train.tar.gz"]


def test_what_a_conversion_makes_under_a_name_of_its_own_has_to_be_named() -> None:
    shared = {**DINO, "model": "sparse4d"}
    with pytest.raises(
        InvalidInput, match=r"train: dataset\.train_dataset\.ann_file takes what the conversion makes"
    ) as no:
        plan_chain(chosen_steps(None, "convert"), shared)
    assert "'{steps.dataset_convert.results}/train/NAME_infos_train.pkl'" in no.value.findings[0].remedy
    named = {"train_ann_file": "{steps.dataset_convert.results}/train/a_infos_train.pkl"}
    steps = {step.name: step for step in plan_chain(chosen_steps(None, "convert"), {**shared, "overrides": named})}
    assert "overrides" not in steps["dataset_convert"].given  # it cannot take from itself
    train = resolve_step(steps["train"], {"dataset_convert": outcome("c")}, here).spec
    assert train["dataset"]["train_dataset"]["ann_file"] == "/r/c/results_dir/train/a_infos_train.pkl"
    assert train["model"]["head"]["instance_bank"]["anchor"] == "/r/c/results_dir/anchor_init.npy"


def test_a_training_that_takes_nothing_of_a_conversion_is_told_so() -> None:
    convert, train = {"action": "dataset_convert"}, {**TRAIN, "after": ["dataset_convert"]}
    shared = {**DINO, "model": "pose-classification"}
    (told,) = plan(convert, train, **shared)["train"].notes
    assert (told.level, "takes nothing that it makes" in told.message) == (Level.WARN, True)
    named = {"dataset.train_dataset.data_path": "{steps.dataset_convert.results}/train_data.npy"}
    assert plan(convert, {**train, "overrides": named}, **shared)["train"].notes == ()
    elsewhere = {**convert, "overrides": {"results_dir": "/data/train"}}
    assert plan(elsewhere, train, **shared)["train"].notes == ()  # where it then reads


# -- what does not fit -------------------------------------------------------------------------------------------------


BAD: dict[str, tuple[list[Any], str]] = {
    "no steps": ([], "the chain has no steps"),
    "a step that is no map": (["train"], "step 1: 'train' is not a map"),
    "a circle": ([{**TRAIN, "after": "b"}, {"name": "b", "command": "x", "after": ["train"]}], "wait for each other"),
    "a step that waits for itself": ([{**TRAIN, "after": "train"}], "train -> train"),
    "an unknown step": ([TRAIN, {**EVALUATE, "after": "trian"}], "there is no step 'trian'"),
    "an unknown step in a command": ([{"command": "ls {steps.trainn.results}"}], "there is no step 'trainn'"),
    "an output nobody makes": ([EVALUATE], "takes a .pth"),
    "an output that this step does not make": (
        [TRAIN, {"command": "x {steps.train.engine}"}],
        "the step train makes no engine",
    ),
    "an output that is none": ([TRAIN, {"command": "x {steps.train.weights}"}], "a step hands over no 'weights'"),
    "a step without what is meant of it": ([TRAIN, {"command": "ls {steps.train}"}], "command: {steps.train} does not"),
    "a reference to nothing": ([TRAIN, {**EVALUATE, "overrides": {"a": ["{steps.}"]}}], "a: {steps.} does not say"),
    "two steps of one name": ([TRAIN, TRAIN], "two steps have this name"),
    "a name that is none": ([{**TRAIN, "name": "My Step"}], "is not a name for a step"),
    "a parameter of another version": ([{**TRAIN, "num_gpu": 1}], "there is no parameter 'num_gpu'"),
    "a parameter of the run": ([{**TRAIN, "run_key": "x"}], "there is no parameter 'run_key'"),
    "a wrong type": ([{**TRAIN, "overrides": [1]}], "overrides"),
    "a wrong root": ([{**TRAIN, "train_root": 7}], "train_root"),
    "a wrong after": ([{**TRAIN, "after": 7}], "is not a list of names"),
    "one place twice": (
        [{**TRAIN, "overrides": {"results_dir": "/out"}}, {**EVALUATE, "overrides": {"results_dir": "/out/"}}],
        "both write to /out",
    ),
    "results that were sent elsewhere": (
        [{**TRAIN, "overrides": {"results_dir": "/out"}}, EVALUATE],
        "what train writes to /out is not looked for there",
    ),
    "one place of two commands": (
        [{"name": "a", "command": "x", "outputs": ["/o"]}, {"name": "b", "command": "y", "outputs": ["/o"]}],
        "the steps a and b both write to /o",
    ),
    "one place inside of another": (
        [{**TRAIN, "overrides": {"results_dir": "/nest/sub"}}, {**EVALUATE, "overrides": {"results_dir": "/nest"}}],
        "the step train writes to /nest/sub, inside of /nest, which evaluate writes to",
    ),
    "a command inside of another": (
        [{"name": "a", "command": "x", "outputs": ["/o"]}, {"name": "b", "command": "y", "outputs": ["/o/x"]}],
        "the step b writes to /o/x, inside of /o, which a writes to",
    ),
    "one place by two spellings": (
        [
            {"name": "a", "command": "x", "outputs": ["/o1/../nest"]},
            {"name": "b", "command": "y", "outputs": ["//nest"]},
        ],
        "both write to /nest",
    ),
    "one place below the folder that all processes begin in": (
        [{"name": "a", "command": "x", "outputs": ["o1/../nest"]}, {"name": "b", "command": "y", "outputs": ["nest"]}],
        "both write to nest",
    ),
    "one place below a folder to work in": (
        [
            {"name": "a", "command": "x", "outputs": ["out"], "workdir": "/w"},
            {"name": "b", "command": "y", "outputs": ["/w/out/"]},
        ],
        "both write to /w/out",
    ),
    "one place in a bucket": (
        [
            {**TRAIN, "overrides": {"results_dir": "s3://b/k"}},
            {**EVALUATE, "target": "process/b", "overrides": {"results_dir": "s3://b/x/../k/e"}},
        ],
        "inside of s3://b/k",
    ),
    "one path as a URI": (
        [{**TRAIN, "overrides": {"results_dir": "/o"}}, {**EVALUATE, "overrides": {"results_dir": "file:///o"}}],
        "both write to /o",
    ),
    "one place for the results of a section": (
        [
            {**TRAIN, "overrides": {"train.results_dir": "/o"}},
            {**EVALUATE, "overrides": {"evaluate.results_dir": "/o"}},
        ],
        "both write to /o",
    ),
    "one place as an argument": (
        [
            {"name": name, "command": "x", "args": {"to": "/o"}, "outputs": {"to": {"type": "folder"}}}
            for name in ("a", "b")
        ],
        "both write to /o",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_chain_that_does_not_fit_is_refused(case: str) -> None:
    steps, told = BAD[case]
    assert told in refusal(*steps)


def test_a_place_for_all_steps_is_one_place_twice() -> None:
    assert "both write to /out" in refusal(TRAIN, EVALUATE, overrides={"results_dir": "/out"})


def test_one_path_on_two_machines_is_two_places() -> None:
    spots = [{**TRAIN, "name": name, "target": f"process/{name}", "overrides": {"results_dir": "/o"}} for name in "ab"]
    assert len(plan(*spots)) == 2


def test_places_beside_each_other_are_two() -> None:
    names = {"a": "/out", "b": "/out2", "c": "/out.d"}
    assert len(plan(*({"name": name, "command": "x", "outputs": [path]} for name, path in names.items()))) == 3
    buckets = ({**TRAIN, "name": name, "overrides": {"results_dir": f"s3://{name}/k"}} for name in ("one", "one-b"))
    assert len(plan(*buckets)) == 2


def test_a_relative_place_is_each_jobs_own_in_a_container_and_in_a_spec() -> None:
    commands = [{"name": name, "command": "x", "outputs": ["out"], "target": "local-docker"} for name in ("a", "b")]
    assert len(plan(*commands)) == 2
    assert len(plan(*({**TRAIN, "name": name, "overrides": {"results_dir": "out"}} for name in ("a", "b")))) == 2


def test_all_faults_are_told_at_once() -> None:
    told = refusal({**TRAIN, "gpu": 1}, {**TRAIN, "gpus": "many"})
    assert all(part in told for part in ("no parameter 'gpu'", "two steps have this name"))


def test_either_steps_or_a_recipe() -> None:
    with pytest.raises(InvalidInput, match="either steps or a recipe"):
        chosen_steps([TRAIN], "deploy")
    with pytest.raises(InvalidInput, match="there is no recipe 'fry'"):
        chosen_steps(None, "fry")


# -- between platforms -------------------------------------------------------------------------------------------------


def mixed(**changes: Any) -> list[Step]:
    return list(plan({**TRAIN, "target": "slurm/polar", **changes}, EVALUATE).values())


def test_results_that_the_next_platform_cannot_see_are_found_before_the_start() -> None:
    (found,) = movement_findings(mixed(), here, {"slurm/polar": "folder"})
    assert "evaluate on process takes files from train, whose results stay on slurm/polar" in found.message
    assert "S3" in found.remedy


def test_results_in_a_bucket_are_seen_from_everywhere() -> None:
    assert movement_findings(mixed(), here, {"slurm/polar": "bucket"}) == []


def test_results_inside_of_a_container_engine_are_seen_by_nobody_else() -> None:
    steps = mixed(target="local-docker/bench")
    assert movement_findings(steps, here, {"local-docker/bench": "folder"}) == []
    (found,) = movement_findings(steps, here, {"local-docker/bench": "inside"})
    assert "whose results stay on local-docker/bench" in found.message
    assert "a results folder (TAO_RESULTS_ROOT)" in found.remedy


@pytest.mark.parametrize(
    ("platform", "given", "kept"),
    [
        ("process", {}, "folder"),
        ("local-docker", {}, "inside"),
        ("local-docker", {"TAO_RESULTS_ROOT": "/r"}, "folder"),
        ("local-docker", {"S3_BUCKET_NAME": "b"}, "bucket"),
        ("local-docker", {"S3_BUCKET_NAME": "b", "TAO_RESULTS_ROOT": "/r"}, "folder"),
    ],
)
def test_where_results_are_kept_follows_from_the_block(platform: str, given: dict[str, str], kept: str) -> None:
    assert kept_by(open_catalog().platforms[platform], given) == kept


def test_a_step_that_only_waits_takes_nothing_along() -> None:
    steps = plan({**TRAIN, "target": "slurm/polar"}, {"name": "say", "command": "echo done", "after": ["train"]})
    assert movement_findings(list(steps.values()), here, {}) == []


# -- parameters and outcomes -------------------------------------------------------------------------------------------


def test_a_step_takes_the_parameters_of_a_run_and_a_chain_those_of_its_flow() -> None:
    from prefect_tao.flows import chain, run

    of_the_run = {"step", "run_key", "long_running_enabled", "status_interval_minutes"}
    of_a_search = set(parameters(SearchingParameters))
    assert set(STEP_PARAMETERS) == (set(inspect.signature(run.fn).parameters) - of_the_run) | of_a_search
    of_the_chain = {"steps", "recipe", "run_key", "status_interval_minutes"}
    assert {*of_the_chain, *SHARED_PARAMETERS} == set(inspect.signature(chain.fn).parameters)
    assert set(SHARED_PARAMETERS) < set(STEP_PARAMETERS)


def test_a_step_tells_what_it_cost_and_how_long_it_waited() -> None:
    step = StepOutcome(name="train", target="process").running(gpus=4)
    assert step.begun_at is not None
    ended = outcome("train").model_copy(
        update={
            "started_at": step.begun_at.replace(year=step.begun_at.year + 1),
            "ended_at": step.begun_at.replace(year=step.begun_at.year + 1, minute=0, second=0, microsecond=0),
        }
    )
    complete = step.complete(ended)
    assert complete.waited is not None
    assert complete.waited > 3e7
    assert complete.gpu_hours == pytest.approx((ended.seconds or 0) * 4 / 3600)
    assert step.complete(outcome("train")).waited is None


def test_a_failed_step_keeps_its_cause_and_a_skipped_one_those_it_waited_for() -> None:
    step = StepOutcome(name="evaluate", target="process")
    assert "no GPU" in step.failed(JobFailed("no GPU", "add one")).message
    skipped = step.skipped(["train"])
    assert (skipped.state, "train did not end well" in skipped.message) == (StepState.SKIPPED, True)


def test_one_path_in_two_containers_is_not_one_place() -> None:
    boxed = {"image": "team/box:1", "target": "local-docker", "outputs": ["/out"]}
    steps = plan_chain([{"name": "a", "command": "x", **boxed}, {"name": "b", "command": "y", **boxed}], {})
    assert [step.name for step in steps] == ["a", "b"]
