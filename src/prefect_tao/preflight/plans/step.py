"""A step of a chain: the parameters of a launch, the steps it waits for, and what it takes from them. Pure.

What an earlier step will make has no location yet; until then it is called `step://NAME/FILE`, which the gates defer.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prefect_tao.catalog.lookup import find_model
from prefect_tao.catalog.nouns import Catalog, ModelEntry
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.state import JobState
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.command_launch import plain_launch
from prefect_tao.preflight.resolve.handoffs import ENGINES, STEP_SCHEME, best_file
from prefect_tao.preflight.resolve.places import RESULTS_DIR
from prefect_tao.preflight.resolve.problems import fail
from prefect_tao.preflight.resolve.resolving import open_catalog, resolve_ask
from prefect_tao.preflight.resolve.structure import knows, structure
from prefect_tao.preflight.resolve.translating import ask_from, request_from
from prefect_tao.runner.inside.checkpoints import CHECKPOINTS

RESULTS = "results"
# The kinds of file that one step makes for another, and their endings.
KINDS: Mapping[str, tuple[str, ...]] = {"checkpoint": CHECKPOINTS, "onnx": (".onnx",), "engine": ENGINES}
_PROMISED = {"checkpoint": "model.pth", "onnx": "model.onnx", "engine": "model.engine"}
_REFERENCE = re.compile(r"\{steps\.([A-Za-z0-9_-]+)\.([A-Za-z_]+)\}")
_LIKE_REFERENCE = re.compile(r"\{steps\b[^{}]*\}")


@dataclass(frozen=True)
class Step:
    """One step of a chain that fits together.

    `after` are the steps it waits for, those it takes files from last. `takes` says by spec key or parameter from
    which steps that comes, `makes` which kinds of file it leaves for others. `notes` are what a person should know
    about the step that follows from the chain alone. One that `searches` is an AutoML search, whose winner it leaves.
    """

    name: str
    given: Mapping[str, Any]
    after: tuple[str, ...] = ()
    takes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    makes: tuple[str, ...] = ()
    notes: tuple[Finding, ...] = ()
    searches: bool = False

    @property
    def target(self) -> str:
        """Where it runs."""
        return str(self.given.get("target") or "process")

    @property
    def givers(self) -> tuple[str, ...]:
        """The steps that it takes something from, each once."""
        return tuple(dict.fromkeys(other for others in self.takes.values() for other in others))

    @property
    def title(self) -> str:
        """What it runs, for people: the model and its action, or its own name for a command."""
        words = (self.given.get("model"), self.given.get("action"))
        title = " ".join(str(word) for word in words if word) if self.given.get("command") is None else self.name
        return f"AutoML search over {title}" if self.searches else title


def named_findings(step: str, said: InvalidInput | Sequence[Finding]) -> list[Finding]:
    """What was found about a step, with the step's name before each finding, where it has one."""
    if isinstance(said, InvalidInput):
        said = said.findings or [fail(f"step {step}", said.cause, said.remedy)]
    before = f"{step}: " if step else ""
    return [found.model_copy(update={"message": before + found.message}) for found in said]


def references(given: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Every `{steps.NAME.WHAT}`: the parameter or spec key it stands in, the step's name, and what is meant of it."""
    return ((where, match[1], match[2]) for where, text in _named(given) if (match := _REFERENCE.fullmatch(text)))


def unclear_references(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What looks like a reference and is none, such as `{steps.NAME}`, with the parameter or spec key it stands in."""
    return ((where, text) for where, text in _named(given) if not _REFERENCE.fullmatch(text))


def _named(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every `{steps...}`, and the parameter or spec key it stands in."""
    for key, value in given.items():
        inner = (
            value.items() if isinstance(value, Mapping) and key in ("overrides", "specs", "inputs") else [(key, value)]
        )
        for where, text in inner:
            yield from ((str(where), found) for found in _matches(text))


def _matches(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from _LIKE_REFERENCE.findall(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _matches(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _matches(inner)


def promised(step: Step) -> Outcome:
    """The outcome of a step that has not run yet: every file it may leave, under a name that the gates defer."""
    base = f"{STEP_SCHEME}://{step.name}"
    files = tuple(f"{base}/{_PROMISED[kind]}" for kind in step.makes)
    handle = JobHandle(target=step.target, key="0" * 16, attempt=1, results=base)
    return Outcome(handle=handle, state=JobState.COMPLETE, results=base, files=files, file_count=len(files))


def resolve_step(
    step: Step, outcomes: Mapping[str, Outcome], platform_of: Callable[[str], str], catalog: Catalog | None = None
) -> Resolved:
    """What the step means, given the outcomes of the steps before it. Raises InvalidInput."""
    given = filled(step, outcomes)
    if given.get("command") is not None:
        return plain_launch(request_from(given), platform_of(step.target), catalog or open_catalog())
    ask = replace(ask_from(given), parents=tuple(outcomes[name] for name in step.after))
    resolved = resolve_ask(ask, catalog)
    return resolved.model_copy(update={"findings": (*step.notes, *resolved.findings)})


def with_winners(step: Step, found: Mapping[str, Mapping[str, Any]], catalog: Catalog | None = None) -> Step:
    """The step with the structure of the models that searches before it have found: weights fit no other one."""
    model = _model(step.given, catalog or open_catalog()) if found else None
    action = model.actions.get(str(step.given.get("action"))) if model else None
    if model is None or action is None:
        return step
    values = {key: value for others in found.values() for key, value in others.items()}
    shape = structure({"overrides": values}, model, action)
    own = {model.shorthand.get(key, key) for key in step.given.get("overrides") or {}}
    kept = {key: value for key, value in shape.items() if key not in own and knows(action, key)}
    overrides = {**kept, **(step.given.get("overrides") or {})}
    return replace(step, given={**step.given, "overrides": overrides}) if kept else step


def _model(given: Mapping[str, Any], catalog: Catalog) -> ModelEntry | None:
    names = find_model(catalog, str(given["model"])) if given.get("model") else []
    return catalog.models[names[0]] if len(names) == 1 else None


def filled(step: Step, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """The parameters with every reference to another step replaced by where its results are."""

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return _REFERENCE.sub(lambda match: _location(match[1], match[2], outcomes, step), value)
        if isinstance(value, Mapping):
            return {key: fill(inner) for key, inner in value.items()}
        return [fill(inner) for inner in value] if isinstance(value, (list, tuple)) else copy.deepcopy(value)

    return {key: fill(value) for key, value in step.given.items()}


def _location(other: str, what: str, outcomes: Mapping[str, Outcome], step: Step) -> str:
    outcome = outcomes[other]
    if what == RESULTS:  # what the step itself knows as TAO_RESULTS_DIR
        return f"{outcome.results.rstrip('/')}/{RESULTS_DIR}"
    found = best_file(str(step.given.get("action")), outcome, KINDS[what])
    if found is None:
        raise InvalidInput(
            f"step {step.name}: the step {other} has left no {what}",
            f"look at its results in {outcome.results}, and name the file that is meant",
        )
    return found
