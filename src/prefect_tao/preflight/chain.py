"""A chain of steps, checked and put in order: who waits for whom, and what each takes from those before it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from prefect_tao.catalog.lookup import find_model
from prefect_tao.catalog.nouns import ActionEntry, Catalog, ModelEntry
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.request import invalid_fields
from prefect_tao.preflight.asking import open_catalog
from prefect_tao.preflight.handoffs import FROM_PARENT, wanted_endings
from prefect_tao.preflight.parameters import ROOT
from prefect_tao.preflight.problems import did_you_mean, fail, nearest
from prefect_tao.preflight.recipes import CONVERT, recipe_steps
from prefect_tao.preflight.step import KINDS, RESULTS, RESULTS_DIR, GivenStep, Step, references
from prefect_tao.preflight.structure import knows, structure, takes_weights
from prefect_tao.preflight.trees import MISSING, covers
from prefect_tao.runner.inside.pointers import get_pointer, walk

# What the flow takes besides what stands for its steps.
OWN_PARAMETERS = ("steps", "recipe", "run_key", "status_interval_minutes")
# What a chain may say once for all of its steps.
SHARED_PARAMETERS = (
    "model",
    "target",
    "train_root",
    "eval_root",
    "inference_root",
    "calibration_root",
    "train_wds_root",
    "data_format",
    "overrides",
    "image",
    "confirm_image",
    "gpus",
    "nodes",
    "cpus",
    "memory",
    "time_limit",
    "shm",
    "env",
    "secrets",
    "automl_policy",
    "mount_proof",
)
STEP_PARAMETERS = tuple(GivenStep.model_fields)
_OWN = ("name", "after")
_NOT_FOR_COMMANDS = ("model", "data_format", "overrides", "automl_policy")
# Actions that leave a model behind which others can take up.
_TRAINERS = ("train", "retrain", "prune", "distill", "quantize", "finetune")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")


def chosen_steps(steps: Sequence[Mapping[str, Any]] | None, recipe: str | None) -> list[Mapping[str, Any]]:
    """The steps that were given, or those of the recipe. Raises InvalidInput unless one of the two was named."""
    if (steps is None) == (recipe is None):
        raise InvalidInput("a chain takes either steps or a recipe", "give one of the two")
    return list(recipe_steps(recipe)) if recipe is not None else list(steps or ())


def plan_chain(
    steps: Sequence[Mapping[str, Any]], shared: Mapping[str, Any], catalog: Catalog | None = None
) -> list[Step]:
    """The steps in an order in which each comes after those it waits for.

    `shared` stands for what a step leaves out. Raises InvalidInput with everything that is wrong with the chain itself.
    """
    if not steps:
        raise InvalidInput("the chain has no steps", "give at least one, such as {model: tiny, action: train}")
    planning = _Planning(catalog or open_catalog())
    planned = planning.plan(steps, {key: value for key, value in shared.items() if value is not None})
    planning.check_places(planned)
    if planning.findings:
        raise InvalidInput.of(planning.findings)
    ordered = _in_order(planned)
    for step in ordered:
        planning.carry_structure(step)
    return ordered


class _Planning:
    """A chain on its way to a plan: each step's parameters, what it makes, and what is wrong so far."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.findings: list[Finding] = []
        self.said: dict[str, Mapping[str, Any]] = {}
        self.given: dict[str, dict[str, Any]] = {}

    def plan(self, steps: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]) -> list[Step]:
        for number, step in enumerate(steps, 1):
            self._name(number, step)
        for name, step in self.said.items():
            self.given[name] = self._with_shared(step, shared)
            self._check_form(name)
        return [] if self.findings else [self._planned(name) for name in self.said]

    def fail(self, name: str, message: str, remedy: str) -> None:
        self.findings.append(fail(f"step {name}", f"step {name}: {message}", remedy))

    # -- what was said -------------------------------------------------------------------------------------------------

    def _name(self, number: int, step: Any) -> None:
        if not isinstance(step, Mapping):
            self.fail(str(number), f"{step!r} is no map", "write {action: train, ...}")
            return
        name = str(step.get("name") or step.get("action") or f"step{number}")
        if not _NAME.fullmatch(name):
            self.fail(str(number), f"{name!r} is no name for a step", "use lower case letters, digits, - and _")
        elif name in self.said:
            self.fail(name, "two steps have this name", "give one of them another one: {name: ..., action: ...}")
        for key in step:
            if key not in STEP_PARAMETERS and key not in _OWN:
                known = [*_OWN, *STEP_PARAMETERS]
                remedy = did_you_mean(nearest(str(key), known, 1), f"a step takes {', '.join(known)}")
                self.fail(name, f"there is no parameter {key!r}", remedy)
        if not _is_names(step.get("after")):
            self.fail(name, f"after: {step['after']!r} is no list of names", "write after: [train]")
        self.said.setdefault(name, step)

    def _with_shared(self, step: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
        """The step's parameters; of what the chain says for all it gets what its action can use."""
        given = {key: value for key, value in step.items() if key in STEP_PARAMETERS and value is not None}
        kept = {key: value for key, value in shared.items() if key in SHARED_PARAMETERS}
        if "command" in given:
            kept = {
                key: value for key, value in kept.items() if not key.endswith(ROOT) and key not in _NOT_FOR_COMMANDS
            }
        else:
            action = self._action({**kept, **given})
            sources = {f"{entry.source}{ROOT}" for entry in action.datasets.values()} if action else set()
            kept = {key: value for key, value in kept.items() if not key.endswith(ROOT) or key in sources}
            kept["overrides"] = self._fitting(kept, given, shared)
        for key in ("overrides", "env"):
            if isinstance(kept.get(key), Mapping) and isinstance(given.get(key), Mapping):
                given[key] = {**kept[key], **given[key]}
        merged = {**kept, **given}
        return {key: value for key, value in merged.items() if value not in ({}, None)}

    def _fitting(self, kept: Mapping[str, Any], given: Mapping[str, Any], shared: Mapping[str, Any]) -> Any:
        """The chain's spec values without those that this action does not know and another one does."""
        values = kept.get("overrides") or {}
        if not isinstance(values, Mapping):
            return values
        others = [{**shared, **step} for step in self.said.values() if step.get("command") is None]
        mine = {**kept, **given}
        return {
            key: value
            for key, value in values.items()
            if self._knows(mine, key) or not any(self._knows(other, key) for other in others)
        }

    def _knows(self, given: Mapping[str, Any], key: str) -> bool:
        model, action = self._model(given), self._action(given)
        if model is None or action is None:
            return True
        return knows(action, model.shorthand.get(key, key))

    def _check_form(self, name: str) -> None:
        try:
            GivenStep.model_validate(self.given[name])
        except ValidationError as error:
            for found in invalid_fields(error).findings:
                self.fail(name, found.message, found.remedy)

    # -- who takes what from whom --------------------------------------------------------------------------------------

    def _planned(self, name: str) -> Step:
        after = self.said[name].get("after") or ()
        after = [after] if isinstance(after, str) else list(after)
        self._convert(name, after)
        referred = list(references(self.given[name]))
        for other in dict.fromkeys([*after, *(step for _, step, _ in referred)]):
            if other not in self.said:
                remedy = did_you_mean(nearest(other, self.said, 1), f"the steps are {', '.join(self.said)}")
                self.fail(name, f"there is no step {other!r}", remedy)
        for where, other, what in referred:
            self._check_reference(name, where, other, what)
        told = [other for other in dict.fromkeys([*after, *(step for _, step, _ in referred)]) if other in self.said]
        takes: dict[str, tuple[str, ...]] = {}
        for where, other in [*((where, other) for where, other, _ in referred), *self._handed(name, told)]:
            takes[where] = tuple(dict.fromkeys([*takes.get(where, ()), other]))
        # Those that hand files over come last, where the resolution looks first.
        givers = [
            other for other in dict.fromkeys(name for names in takes.values() for name in names) if other in self.said
        ]
        order = [other for other in told if other not in givers] + givers
        return Step(name, self.given[name], tuple(order), takes, tuple(self.makes(name)))

    def _check_reference(self, name: str, where: str, other: str, what: str) -> None:
        if other not in self.said or what == RESULTS:
            return
        if what not in KINDS:
            remedy = f"write {{steps.{other}.{RESULTS}}}, or one of {', '.join(KINDS)}"
            self.fail(name, f"{where}: a step hands over no {what!r}", remedy)
        elif what not in self.makes(other):
            remedy = f"name a step that does, or a file below {{steps.{other}.{RESULTS}}}"
            self.fail(name, f"{where}: the step {other} makes no {what}", remedy)

    def _convert(self, name: str, after: Sequence[str]) -> None:
        """What a conversion has made goes into the one kind of place that is surely meant: an open input folder."""
        converters = [other for other in after if self.given.get(other, {}).get("action") == CONVERT]
        action = self._action(self.given[name])
        if not converters or action is None:
            return
        for pointer, rule in action.inputs.items():
            is_open = get_pointer(action.template, pointer) == MISSING and pointer not in action.datasets
            if is_open and rule.get("type") == "folder" and not self._is_given(name, pointer):
                overrides = self.given[name].get("overrides") or {}
                self.given[name]["overrides"] = {**overrides, pointer: f"{{steps.{converters[-1]}.{RESULTS}}}"}

    def _handed(self, name: str, told: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The steps that make what this one's hand-off keys want: those named with `after` first, then the nearest."""
        given = self.given[name]
        action = self._action(given)
        names = list(self.said)
        candidates = list(dict.fromkeys([*reversed(told), *reversed(names[: names.index(name)])]))
        for pointer, word in (action.handoff if action else {}).items():
            if not isinstance(word, str) or word not in FROM_PARENT or self._is_given(name, pointer):
                continue
            endings = wanted_endings(str(given.get("action")), pointer)
            makers = [other for other in candidates if self._makes_any(other, endings)]
            # A command may leave anything; an action that is known to make it is the better guess.
            makers.sort(key=lambda other: (other not in told, "command" in self.given[other]))
            if makers:
                yield pointer, makers[0]
            elif word != "parent_model_or_ptm" and not _is_optional(action, pointer):
                remedy = f"add a step that does, or give it: overrides: {{{pointer}: /path}}"
                self.fail(name, f"{pointer} takes a {', '.join(endings)} file, and no step before it makes one", remedy)

    def makes(self, name: str) -> list[str]:
        """The kinds of file that a step leaves for others; a command may leave any."""
        given = self.given[name]
        if "command" in given:
            return list(KINDS)
        word, action = str(given.get("action")), self._action(given)
        # Only what is in the action's own section; a training that names the file of a later export does not make it.
        made = {made for key, made in (action.handoff if action else {}).items() if key.startswith(f"{word}.")}
        made = {one for one in made if isinstance(one, str)}
        kinds = {"checkpoint": word in _TRAINERS or "create_pth_file" in made}
        kinds["onnx"] = word == "export" or any(one.startswith("create_onnx") for one in made)
        kinds["engine"] = "create_engine_file" in made
        return [kind for kind, is_made in kinds.items() if is_made]

    def _makes_any(self, name: str, endings: Sequence[str]) -> bool:
        return any(set(KINDS[kind]) & set(endings) for kind in self.makes(name))

    def _is_given(self, name: str, pointer: str) -> bool:
        given, model = self.given[name], self._model(self.given[name])
        words = model.shorthand if model else {}
        keys = [words.get(key, key) for key in given.get("overrides") or {}]
        keys += [key for key, _ in walk(given.get("specs") or {})]
        return any(covers(key, pointer) for key in keys)

    def carry_structure(self, step: Step) -> None:
        """Give the step the structure of the model whose weights it takes over, as far as it does not say its own.

        Those it takes from come first, so that what they were given reaches the end of the chain.
        """
        model, action = self._model(step.given), self._action(step.given)
        if model is None or action is None:
            return
        word = str(step.given.get("action"))
        givers = [other for key, others in step.takes.items() if takes_weights(word, action, key) for other in others]
        for given in (self.given[other] for other in givers):
            other = self._action(given)
            if other is None or self._model(given) is not model:
                continue
            kept = {
                key: value
                for key, value in structure(given, model, other).items()
                if knows(action, key) and not self._is_given(step.name, key)
            }
            if kept:
                self.given[step.name]["overrides"] = {**kept, **(step.given.get("overrides") or {})}

    # -- the catalog ---------------------------------------------------------------------------------------------------

    def _model(self, given: Mapping[str, Any]) -> ModelEntry | None:
        """The catalog's entry, or None where the resolution will say what is wrong."""
        found = find_model(self.catalog, str(given.get("model"))) if given.get("model") else []
        return self.catalog.models[found[0]] if len(found) == 1 else None

    def _action(self, given: Mapping[str, Any]) -> ActionEntry | None:
        model = self._model(given)
        return model.actions.get(str(given.get("action"))) if model and "command" not in given else None

    # -- places --------------------------------------------------------------------------------------------------------

    def check_places(self, steps: Sequence[Step]) -> None:
        """Two steps must not write to one place, and what is written elsewhere cannot be found for a later step."""
        owners: dict[tuple[str, str], str] = {}
        for step in steps:
            for _, place in self._places(step.name):
                other = owners.setdefault(("" if "://" in place else step.target, place.rstrip("/")), step.name)
                if other != step.name:
                    remedy = "leave it out, so that each step has a folder of its own, or name two places"
                    self.fail(step.name, f"the steps {other} and {step.name} both write to {place}", remedy)
            for key, givers in step.takes.items():
                for giver in set(givers) & self.given.keys():
                    if elsewhere := dict(self._places(giver)).get(RESULTS_DIR):
                        remedy = f"leave {RESULTS_DIR} of {giver} out, or name the file that {key} is to be"
                        message = f"{key}: what {giver} writes to {elsewhere} is not looked for there"
                        self.fail(step.name, message, remedy)

    def _places(self, name: str) -> Iterator[tuple[str, str]]:
        """By key the locations outside of its own folder that a step was told to write to."""
        given, model, action = self.given[name], self._model(self.given[name]), self._action(self.given[name])
        outputs = given.get("outputs") or {}
        values: dict[str, Any] = {path: path for path in outputs if isinstance(path, str)}
        if isinstance(outputs, Mapping):
            words = model.shorthand if model else {}
            keys = {*outputs, *(action.outputs if action else ()), RESULTS_DIR}
            given_values = dict(walk(given.get("specs") or {})) | {
                words.get(key, key): value for key, value in (given.get("overrides") or {}).items()
            }
            values = {key: value for key, value in given_values.items() if key in keys}
        for key, value in values.items():
            if isinstance(value, str) and (value.startswith("/") or "://" in value):
                yield key, value


def _is_names(after: Any) -> bool:
    if after is None or isinstance(after, str):
        return True
    return isinstance(after, (list, tuple)) and all(isinstance(other, str) for other in after)


def _is_optional(action: ActionEntry | None, pointer: str) -> bool:
    return action is not None and bool(action.inputs.get(pointer, {}).get("optional"))


def _in_order(steps: Sequence[Step]) -> list[Step]:
    """Raises InvalidInput for a circle."""
    left, ordered = {step.name: step for step in steps}, list[Step]()
    while left:
        ready = [step for step in left.values() if not set(step.after) & left.keys()]
        if not ready:
            circle = " -> ".join(_circle(left))
            raise InvalidInput(f"the steps wait for each other: {circle}", "break the circle in `after`")
        for step in ready:
            ordered.append(left.pop(step.name))
    return ordered


def _circle(left: Mapping[str, Step]) -> list[str]:
    path = [next(iter(left))]
    while True:
        following = next(name for name in left[path[-1]].after if name in left)
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
