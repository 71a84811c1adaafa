"""A chain of steps, checked and put in order: what each waits for, and what it takes from those before it. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefect_tao.catalog.lookup import find_model, find_platform
from prefect_tao.catalog.nouns import ActionEntry, Catalog, ModelEntry
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding
from prefect_tao.launch.parameters.declared import ChainStepParameters, SharedParameters
from prefect_tao.launch.parameters.derived import checked, parameters
from prefect_tao.launch.parameters.search_declared import BudgetParameters, SearchingParameters
from prefect_tao.preflight.plans.recipes import CONVERT, recipe_steps
from prefect_tao.preflight.plans.step import KINDS, RESULTS, Step, references, unclear_references
from prefect_tao.preflight.resolve.ask import ROOT
from prefect_tao.preflight.resolve.handoffs import FROM_PARENT, converted_keys, wanted_endings
from prefect_tao.preflight.resolve.places import RESULTS_DIR, Place, clashes, is_fixed, is_results, place
from prefect_tao.preflight.resolve.policy import is_search
from prefect_tao.preflight.resolve.problems import did_you_mean, fail, nearest, warn
from prefect_tao.preflight.resolve.resolving import open_catalog
from prefect_tao.preflight.resolve.structure import GRAPH, LOADS_GRAPH, knows, structure, takes_weights
from prefect_tao.preflight.resolve.trees import MISSING, covers
from prefect_tao.runner.inside.pointers import get_pointer, walk

# What a chain may say once for all of its steps, and what a step may say.
SHARED_PARAMETERS = (*parameters(SharedParameters), *parameters(BudgetParameters))
STEP_PARAMETERS = tuple(parameters(ChainStepParameters))
_OWN = ("name", "after", "kind")
SEARCH = "automl"  # the one kind of step that is not a launch of its own
_FOR_ACTIONS = (name for name, one in parameters(SharedParameters).items() if one.only == "action")
_NOT_FOR_COMMANDS = ("model", "overrides", "automl_policy", *parameters(BudgetParameters), *_FOR_ACTIONS)
_FOR_SEARCHES = set(parameters(SearchingParameters)) - set(parameters(BudgetParameters))
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
    for step in _in_order(planned):
        planning.carry_structure(step)
    return list(planning.steps.values())


class _Planning:
    """A chain on its way to a plan: each step's parameters, what it makes, and what is wrong so far."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.findings: list[Finding] = []
        self.said: dict[str, Mapping[str, Any]] = {}
        self.given: dict[str, dict[str, Any]] = {}
        self.notes: dict[str, list[Finding]] = {}
        self.steps: dict[str, Step] = {}

    def plan(self, steps: Sequence[Mapping[str, Any]], shared: Mapping[str, Any]) -> list[Step]:
        for number, step in enumerate(steps, 1):
            self._name(number, step)
        for name, step in self.said.items():
            self.given[name] = self._with_shared(name, step, shared)
            self._check_form(name)
        return [] if self.findings else [self._planned(name) for name in self.said]

    def fail(self, name: str, message: str, remedy: str) -> None:
        self.findings.append(fail(f"step {name}", f"step {name}: {message}", remedy))

    # -- what was said -------------------------------------------------------------------------------------------------

    def _name(self, number: int, step: Any) -> None:
        if not isinstance(step, Mapping):
            self.fail(str(number), f"{step!r} is not a map", "write {action: train, ...}")
            return
        name = str(step.get("name") or step.get("action") or f"step{number}")
        if not _NAME.fullmatch(name):
            self.fail(str(number), f"{name!r} is not a name for a step", "use lower case letters, digits, - and _")
        elif name in self.said:
            self.fail(name, "two steps have this name", "give one of them another one: {name: ..., action: ...}")
        for key in step:
            if key not in STEP_PARAMETERS and key not in _OWN:
                known = [*_OWN, *STEP_PARAMETERS]
                remedy = did_you_mean(nearest(str(key), known, 1), f"a step takes {', '.join(known)}")
                self.fail(name, f"there is no parameter {key!r}", remedy)
        self._check_kind(name, step)
        if not _is_names(step.get("after")):
            self.fail(name, f"after: {step['after']!r} is not a list of names", "write after: [train]")
        self.said.setdefault(name, step)

    def _check_kind(self, name: str, step: Mapping[str, Any]) -> None:
        if step.get("kind") not in (None, SEARCH):
            self.fail(name, f"there is no kind {step['kind']!r}", f"leave it out, or write kind: {SEARCH} for a search")
        elif step.get("kind") is None and (misplaced := sorted(_FOR_SEARCHES & set(step))):
            remedy = f"add kind: {SEARCH} to the step, or put it under automl_settings"
            self.fail(name, f"{', '.join(misplaced)} is for a search", remedy)

    def note(self, name: str, finding: Finding) -> None:
        self.notes.setdefault(name, []).append(finding)

    def _with_shared(self, name: str, step: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
        """The step's parameters; of what the chain says for all it gets what its action can use."""
        given = {key: value for key, value in step.items() if key in STEP_PARAMETERS and value is not None}
        kept = {key: value for key, value in shared.items() if key in SHARED_PARAMETERS}
        if "command" in given:
            kept = {key: value for key, value in kept.items() if key not in _NOT_FOR_COMMANDS}
        else:
            action = self._action({**kept, **given})
            sources = {f"{entry.source}{ROOT}" for entry in action.datasets.values()} if action else set()
            kept = {key: value for key, value in kept.items() if not key.endswith(ROOT) or key in sources}
            kept["overrides"] = self._fitting(name, kept, given, shared)
            if "image" in kept and "image" not in given and (own := self._own_image({**kept, **given})):
                self.note(name, _other_image(str(given.get("action")), own, kept.pop("image")))
        for key in ("overrides", "env"):
            if isinstance(kept.get(key), Mapping) and isinstance(given.get(key), Mapping):
                given[key] = {**kept[key], **given[key]}
        merged = {**kept, **given}
        return {key: value for key, value in merged.items() if value not in ({}, None)}

    def _own_image(self, given: Mapping[str, Any]) -> str | None:
        """The image that the catalog names for this action alone, as for TensorRT, where one for all would not do."""
        model, action = self._model(given), self._action(given)
        if model is None or action is None:
            return None
        own = action.container_image or action.image
        return own if own != (model.container_image or model.image) else None

    def _fitting(self, name: str, kept: Mapping[str, Any], given: Mapping[str, Any], shared: Mapping[str, Any]) -> Any:
        """The chain's spec values without those that this action does not know and another one does.

        What names this very step is for those after it.
        """
        values = kept.get("overrides") or {}
        if not isinstance(values, Mapping):
            return values
        others = [{**shared, **step} for step in self.said.values() if step.get("command") is None]
        mine = {**kept, **given}
        return {
            key: value
            for key, value in values.items()
            if (self._knows(mine, key) or not any(self._knows(other, key) for other in others))
            and name not in {other for _, other, _ in references({key: value})}
        }

    def _knows(self, given: Mapping[str, Any], key: str) -> bool:
        model, action = self._model(given), self._action(given)
        if model is None or action is None:
            return True
        return knows(action, model.shorthand.get(key, key))

    def _check_form(self, name: str) -> None:
        try:
            checked(ChainStepParameters, self.given[name])
        except InvalidInput as error:
            for found in error.findings:
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
        for where, text in unclear_references(self.given[name]):
            remedy = f"write {{steps.NAME.{RESULTS}}}, or one of {', '.join(KINDS)} in place of {RESULTS}"
            self.fail(name, f"{where}: {text} does not say what of which step is meant", remedy)
        told = [other for other in dict.fromkeys([*after, *(step for _, step, _ in referred)]) if other in self.said]
        takes: dict[str, tuple[str, ...]] = {}
        for where, other in [*((where, other) for where, other, _ in referred), *self._handed(name, told)]:
            takes[where] = tuple(dict.fromkeys([*takes.get(where, ()), other]))
        # Those that hand files over come last, where the resolution looks first.
        givers = [
            other for other in dict.fromkeys(name for names in takes.values() for name in names) if other in self.said
        ]
        order = [other for other in told if other not in givers] + givers
        notes = tuple(self.notes.get(name, ()))
        asked = self.said[name].get("kind") == SEARCH
        searches = asked or is_search(self.catalog, self.given[name])
        if asked and "command" not in self.given[name]:
            self.given[name]["yes"] = True  # it needs no other leave than that
        return Step(name, self.given[name], tuple(order), takes, tuple(self.makes(name)), notes, searches)

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
        """What a conversion has made goes where the catalog says, and into every input folder that is open."""
        given, action = self.given[name], self._action(self.given[name])
        converters = [other for other in after if self.given.get(other, {}).get("action") == CONVERT]
        # Who says where a conversion writes to says as well what is read from there.
        converters = [other for other in converters if not any(map(is_results, self._given_values(other)))]
        if not converters or action is None:
            return
        results = f"{{steps.{converters[-1]}.{RESULTS}}}"
        taken: dict[str, Any] = {}
        for pointer, rule in action.inputs.items():
            is_open = get_pointer(action.template, pointer) == MISSING and pointer not in action.datasets
            if is_open and rule.get("type") == "folder" and not self._is_given(name, pointer):
                taken[pointer] = results
        if self._model(self.given[converters[-1]]) is self._model(given):
            taken |= self._converted(name, action, results)
        if taken:
            given["overrides"] = {**(given.get("overrides") or {}), **taken}
        is_used = any(other in converters for _, other, _ in references(given))
        if given.get("action") in _TRAINERS and not is_used:
            self.note(name, _unused(name, converters[-1], action))

    def _converted(self, name: str, action: ActionEntry, results: str) -> dict[str, Any]:
        """By key the files of a conversion that the catalog knows; what cannot be known before has to be named."""
        taken: dict[str, Any] = {}
        for key in converted_keys(action):
            rule = action.datasets.get(key.pointer)
            if self._is_given(name, key.pointer):
                continue
            if key.is_known:
                location = f"{results}/{key.path}"
                taken[key.pointer] = [location] if rule and rule.many else location
                taken |= {other: None for other in key.empties if not self._is_given(name, other)}
            elif results not in str(self.given[name].get(f"{rule.source}{ROOT}" if rule else "")):
                message = f"{key.pointer} takes what the conversion makes, whose name is not known before: {key.path}"
                location = f"{results}/{key.path.replace('*', 'NAME')}"
                self.fail(name, message, f"name it: overrides: {{{key.pointer}: '{location}'}}")
        return taken

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
        words = (action.handoff if action else {}).items()
        made = {made for key, made in words if key.startswith(f"{word}.") and isinstance(made, str)}
        kinds = {"checkpoint": word in _TRAINERS or "create_pth_file" in made}
        kinds["onnx"] = word == "export" or any(one.startswith("create_onnx") for one in made)
        kinds["engine"] = "create_engine_file" in made
        return [kind for kind, is_made in kinds.items() if is_made]

    def _makes_any(self, name: str, endings: Sequence[str]) -> bool:
        return any(set(KINDS[kind]) & set(endings) for kind in self.makes(name))

    def _is_given(self, name: str, pointer: str) -> bool:
        return any(covers(key, pointer) for key in self._given_values(name))

    def _given_values(self, name: str) -> dict[str, Any]:
        """By pointer what a step was given for its spec or its arguments."""
        given, model = self.given[name], self._model(self.given[name])
        words = model.shorthand if model else {}
        overrides = {words.get(key, key): value for key, value in (given.get("overrides") or {}).items()}
        return dict(walk(given.get("specs") or {})) | (given.get("args") or {}) | overrides

    def carry_structure(self, step: Step) -> None:
        """Give the step the structure of the model whose weights it takes over, as far as it does not say its own.

        Those it takes from come first, so that what they were given reaches the end of the chain.
        """
        model, action = self._model(step.given), self._action(step.given)
        self.steps[step.name] = step
        if model is None or action is None:
            return
        word = str(step.given.get("action"))
        givers = [other for key, others in step.takes.items() if takes_weights(word, action, key) for other in others]
        for name in givers:
            given, other = self.given[name], self._action(self.given[name])
            if other is None or self._model(given) is not model:
                continue
            self._carry_graph(step.name, action, name, other)
            kept = {
                key: value
                for key, value in structure(given, model, other).items()
                if knows(action, key) and not self._is_given(step.name, key)
            }
            if kept:
                self.given[step.name]["overrides"] = {**kept, **(step.given.get("overrides") or {})}

    def _carry_graph(self, name: str, action: ActionEntry, giver: str, other: ActionEntry) -> None:
        """Weights that were trained on a pruned graph fit no other, so it goes with them where the key is known."""
        step, handed = self.steps[name], self.steps[giver].takes.get(GRAPH)
        graph = self._given_values(giver).get(GRAPH) or (f"{{steps.{handed[0]}.checkpoint}}" if handed else None)
        if graph is None or GRAPH not in action.inputs or self._is_given(name, GRAPH):
            return
        carried: dict[str, Any] = {GRAPH: graph}
        if get_pointer(other.template, LOADS_GRAPH) and not self._is_given(name, LOADS_GRAPH):
            carried[LOADS_GRAPH] = True
        self.given[name]["overrides"] = {**carried, **(self.given[name].get("overrides") or {})}
        makers = tuple(maker for _, maker, _ in references(carried))
        # The makers of the graph come first: the resolution looks for the weights in those that come last.
        after = (*(maker for maker in makers if maker not in step.after), *step.after)
        self.steps[name] = replace(step, after=after, takes={**step.takes, **({GRAPH: makers} if makers else {})})

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
        places = [place(step.name, step.target, text) for step in steps for _, text in self._places(step.name)]
        for clash in clashes([*places, *self._beside(steps)]):
            remedy = "leave it out, so that each step has a folder of its own, or name two places beside each other"
            self.fail(clash.inner.owner, clash.told("step"), remedy)
        for step in steps:
            for key, givers in step.takes.items():
                for giver in set(givers) & self.given.keys():
                    if elsewhere := dict(self._places(giver)).get(RESULTS_DIR):
                        remedy = f"leave {RESULTS_DIR} of {giver} out, or name the file that {key} is to be"
                        message = f"{key}: what {giver} writes to {elsewhere} is not looked for there"
                        self.fail(step.name, message, remedy)

    def _places(self, name: str) -> Iterator[tuple[str, str]]:
        """By key the locations outside of its own folder that a step is asked to write to."""
        given, action = self.given[name], self._action(self.given[name])
        outputs = given.get("outputs") or {}
        # With an image, the paths of a command are those of its container, and are carried into the folder of its job.
        has_own = bool(given.get("image"))
        values: dict[str, Any] = {path: path for path in outputs if isinstance(path, str) and not has_own}
        if isinstance(outputs, Mapping):
            keys = {*outputs, *(action.outputs if action else ())}
            values = self._given_values(name)
            values = {key: value for key, value in values.items() if key in keys or is_results(key)}
        for key, value in values.items():
            if is_fixed(value):
                yield key, value

    def _beside(self, steps: Sequence[Step]) -> Iterator[Place]:
        """The relative outputs of commands that all begin in one folder; a container begins in its own."""
        for step in steps:
            outputs, workdir = step.given.get("outputs") or (), step.given.get("workdir") or ""
            platform = find_platform(self.catalog, step.target.partition("/")[0])
            if isinstance(outputs, Mapping) or platform is None or self.catalog.platforms[platform].containers:
                continue
            for path in outputs:
                if not is_fixed(path):
                    yield place(step.name, step.target, posixpath.join(workdir, path))


def _is_names(after: Any) -> bool:
    if after is None or isinstance(after, str):
        return True
    return isinstance(after, (list, tuple)) and all(isinstance(other, str) for other in after)


def _other_image(action: str, own: str, shared: str) -> Finding:
    return warn(
        "image",
        f"image: {action} has an image of its own in the catalog ({own}), so {shared} is not used for it",
        "--confirm-image (confirm_image=True) confirms the catalog's; for another one give the step its image: ...",
    )


def _unused(name: str, converter: str, action: ActionEntry) -> Finding:
    """A training that waits for a conversion and takes nothing of it reads what was there before."""
    key = next((key for key, rule in action.datasets.items() if rule.source == "train"), "KEY")
    return warn(
        f"input {key}",
        f"{name} waits for {converter} and takes nothing that it makes: the catalog does not say where that goes",
        f"name what it is to read, for example overrides: {{{key}: '{{steps.{converter}.{RESULTS}}}/FILE'}}",
    )


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
