"""What earlier steps hand to this one: checkpoints, ONNX files and engines, found by the catalog's hand-off words."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect_tao.catalog.nouns import ActionEntry
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.preflight.resolve.problems import fail, setting, warn
from prefect_tao.runner.inside.checkpoints import CHECKPOINTS, NOT_OURS, checkpoint_rank

# The location of what a step will make that has not run yet: step://NAME/FILE.
STEP_SCHEME = "step"
# A checkpoint with all that a training keeps beside the weights; what is written as the best may hold weights alone.
WHOLE = "parent_epoch_model"
FROM_PARENT = ("parent_model", "parent_model_folder", "parent_model_or_ptm", WHOLE)
CONVERTED = "converted"
LEFT_ALONE = ("output_dir", "resume_model", "ptm", "ptm_if_no_resume_model")
NEW_FILES = {
    "create_onnx_file": "model.onnx",
    "create_onnx_file_2d": "model_2d.onnx",
    "create_engine_file": "model.engine",
    "create_cal_cache": "cal_cache.bin",
    "create_pth_file": "model.pth",
    "create_inference_result_file_mal": "pseudo_labels.json",
    "create_inference_result_file_pose": "inference.txt",
    "create_inference_result_file_reid": "inference.json",
    "create_evaluate_cmc_plot_reid": "cmc_curve.png",
    "create_evaluate_matches_plot_reid": "sampled_matches.png",
}
DEFAULT_KEY = "tlt_encode"
ENGINES = (".engine", ".trt")
_NAMES_BY_LEAF = {"onnx_file": "model.onnx", "trt_engine": "model.engine"}
_WANTED = {"parent_model_folder": "folder of checkpoints", WHOLE: "checkpoint of an epoch"}
_WANT_BEST = ("evaluate", "export", "inference", "quantize", "prune")


@dataclass(frozen=True)
class Converted:
    """A key that takes what a conversion makes: a path below its results, and the keys that are empty then.

    A `*` in the path stands for a name that only the conversion knows.
    """

    pointer: str
    path: str
    empties: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the path can be said before the conversion has run."""
        return "*" not in self.path


def converted_keys(action: ActionEntry) -> list[Converted]:
    """The keys of an action whose hand-off word is `{converted: path, empties: [keys]}`."""
    words = {key: word for key, word in action.handoff.items() if isinstance(word, dict) and CONVERTED in word}
    return [Converted(key, str(word[CONVERTED]), tuple(word.get("empties", ()))) for key, word in words.items()]


@dataclass
class HandedOver:
    """Values by pointer, the files this step will make, and the keys that wait for an earlier step."""

    values: dict[str, Any] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    waiting: dict[str, Finding] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def hand_over(
    name: str, action: ActionEntry, parents: Sequence[Outcome], is_direct: Callable[[str], bool]
) -> HandedOver:
    """What the hand-off words of an action mean, given the outcomes of its parents."""
    handed = HandedOver()
    for pointer, word in action.handoff.items():
        if is_direct(pointer):
            continue
        if isinstance(word, str) and word in FROM_PARENT:
            _from_parent(handed, name, pointer, word, parents)
        elif isinstance(word, str) and word in NEW_FILES:
            handed.values[pointer] = NEW_FILES[word]
            handed.created.append(pointer)
        elif isinstance(word, dict) and "link" in word:
            handed.findings.append(_download(pointer, str(word["link"])))
        elif isinstance(word, dict) and CONVERTED in word:
            continue  # only a chain knows whether there was a conversion
        elif word == "key":
            handed.values[pointer] = DEFAULT_KEY
        elif word not in LEFT_ALONE:
            handed.values[pointer] = word
    return handed


def file_name(pointer: str) -> str | None:
    """The name of an output file that was given none, where its key says what it is."""
    return _NAMES_BY_LEAF.get(_leaf(pointer))


def _leaf(pointer: str) -> str:
    return pointer.rpartition(".")[2]


def _from_parent(handed: HandedOver, name: str, pointer: str, word: str, parents: Sequence[Outcome]) -> None:
    endings = wanted_endings(name, pointer)
    for parent in reversed(parents):
        found = _found(word, name, parent, endings)
        if found:
            handed.values[pointer] = found
            return
    if word != "parent_model_or_ptm":
        what = _WANTED.get(word, f"{', '.join(endings)} file")
        handed.waiting[pointer] = _nothing_found(pointer, what, parents)


def _found(word: str, name: str, parent: Outcome, endings: tuple[str, ...]) -> str | None:
    if word == "parent_model_folder":
        return best_folder(parent)
    return whole_file(parent, endings) if word == WHOLE else best_file(name, parent, endings)


def wanted_endings(name: str, pointer: str) -> tuple[str, ...]:
    """The kinds of file that an action takes from its parent at `pointer`."""
    leaf = _leaf(pointer)
    if leaf == "onnx_file" or (name == "gen_trt_engine" and leaf != "trt_engine"):
        return (".onnx",)
    if leaf == "trt_engine" or name.startswith("trt_"):
        return ENGINES
    return CHECKPOINTS


def best_file(name: str, parent: Outcome, endings: tuple[str, ...]) -> str | None:
    """The parent's file that serves an action best: `best` in its name where that is wanted, else the newest."""
    found = [path for path in _results(parent) if path.endswith(endings)]
    return max(found, key=lambda path: _rank(name, path), default=None)


def whole_file(parent: Outcome, endings: tuple[str, ...]) -> str | None:
    """The parent's newest file that was not written as the best one."""
    named = {path: posixpath.basename(path).lower() for path in _results(parent) if path.endswith(endings)}
    found = {path: base for path, base in named.items() if "best" not in base}
    return max(found, key=lambda path: (checkpoint_rank(found[path], "latest" in found[path]), path), default=None)


def _rank(name: str, path: str) -> tuple[Any, ...]:
    base = posixpath.basename(path).lower()
    wants_best = any(word in name for word in _WANT_BEST)
    # Self-supervised trainings write a student and a teacher; the student is what is used afterwards.
    preferred = (wants_best and "best" in base, wants_best and "student" in base)
    return (*preferred, checkpoint_rank(base, "latest" in base), path)


def best_folder(parent: Outcome) -> str | None:
    """The folder of the parent's newest checkpoint, or all of its results where no file is known."""
    found = [path for path in _results(parent) if path.endswith((".safetensors", *CHECKPOINTS))]
    if not found:
        return parent.results or None if not parent.files else None
    folders = {posixpath.dirname(path): path.endswith(".safetensors") for path in found}
    return max(folders, key=lambda folder: (folders[folder], checkpoint_rank(folder, "best" in folder), folder))


def _results(parent: Outcome) -> list[str]:
    base = parent.results.rstrip("/")
    kept = []
    for path in parent.files:
        below = path.removeprefix(base).split("/")[:-1]
        if not set(below) & set(NOT_OURS):
            kept.append(path if path.startswith("/") or "://" in path else f"{base}/{path}")
    return kept


def _nothing_found(pointer: str, what: str, parents: Sequence[Outcome]) -> Finding:
    if parents:
        count = sum(max(parent.file_count, len(parent.files)) for parent in parents)
        message = f"{pointer}: none of the {count} result files of the earlier steps is a {what}"
    else:
        message = f"{pointer}: no value, and no earlier step that makes a {what}"
    remedy = f"name it with {setting(pointer, 'path')}, or name the step that makes it as a parent"
    return fail(f"input {pointer}", message, remedy)


def _download(pointer: str, link: str) -> Finding:
    return warn(
        f"input {pointer}",
        f"{pointer}: the pretrained weights at {link} are not fetched by the job",
        f"download them once to where the job can read and give {setting(pointer, 'path')}",
    )
