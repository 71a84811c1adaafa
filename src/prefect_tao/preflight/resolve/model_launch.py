"""From what a person asks for to what will run. Pure: nothing is read or reached, and all problems are findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prefect_tao.catalog.lookup import find_model, find_platform, nearest_models, nearest_platforms
from prefect_tao.catalog.nouns import ActionEntry, Catalog, ModelEntry, PlatformEntry
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import IMAGE, PLATFORM, Finding, Level
from prefect_tao.jobs.request import JobRequest, Resources
from prefect_tao.jobs.target import Target
from prefect_tao.preflight.resolve.ask import Ask, Resolved
from prefect_tao.preflight.resolve.compute import choose_compute, spec_count, uncounted
from prefect_tao.preflight.resolve.datasets import (
    NEEDS_DATA,
    Mapped,
    dataset_inputs,
    dataset_values,
    is_extracted,
    is_training,
    map_datasets,
    missing_findings,
    missing_keys,
    no_data_findings,
    no_model_findings,
)
from prefect_tao.preflight.resolve.given import Given, read_given
from prefect_tao.preflight.resolve.handoffs import HandedOver, file_name, hand_over
from prefect_tao.preflight.resolve.image_choice import choose_image
from prefect_tao.preflight.resolve.problems import did_you_mean, fail, nearest, warn
from prefect_tao.preflight.resolve.specs import (
    base_spec,
    check_given,
    clear_optional,
    count_key,
    count_values,
    lay_datasets,
    lay_given,
    lay_values,
    leftovers,
    let_through,
    open_resume,
)
from prefect_tao.preflight.resolve.trees import Tree, covers, expand, is_blank, put, without_nulls
from prefect_tao.runner.entrypoint import entrypoint_for, input_locations
from prefect_tao.runner.inside.pointers import get_pointer


@dataclass(frozen=True)
class Chosen:
    """The entries that an ask names."""

    model: tuple[str, ModelEntry]
    action: tuple[str, ActionEntry]
    platform: tuple[str, PlatformEntry]


def resolve(catalog: Catalog, ask: Ask) -> Resolved:
    """What `ask` means. Raises InvalidInput when model, action or platform is unknown; all else becomes findings."""
    chosen = choose(catalog, ask)
    model, action, platform = chosen.model[1], chosen.action[1], chosen.platform[1]
    given = read_given(ask, model, action)
    findings = list(given.findings)
    image = choose_image(catalog, chosen.model, chosen.action, ask.given.get("image"), platform.containers)
    resources = _compute(chosen, ask, given, findings)
    mapped = map_datasets(action, model, ask, given.is_direct)
    handed = hand_over(chosen.action[0], action, ask.parents, given.is_direct)
    spec, problems = _spec(chosen, ask, given, mapped, handed, resources)
    request, refused = _request(chosen, ask, image.image, spec, handed, resources)
    findings += [*image.findings, *mapped.findings, *handed.findings, *problems]
    findings += [one for one in refused if one.subject not in {said.subject for said in findings}]
    return Resolved(
        model=chosen.model[0],
        action=chosen.action[0],
        platform=chosen.platform[0],
        image=image.image,
        image_source=image.source,
        request=request,
        spec=spec,
        datasets=dataset_values(action, spec),
        alternatives=_in_use(mapped, spec),
        optional_datasets=mapped.optional,
        roots=mapped.roots,
        direct=tuple(key for key in input_locations(request) if given.is_direct(key)) if request else (),
        credentials=model.credentials,
        findings=tuple(findings),
    )


# -- names -------------------------------------------------------------------------------------------------------------


def choose(catalog: Catalog, ask: Ask) -> Chosen:
    """The entries for an ask's names; raises InvalidInput with the nearest names, for all names that are wrong."""
    problems: list[Finding] = []
    model = _model(catalog, ask.model, problems)
    action = _action(catalog, model, ask.action, problems)
    platform = _platform(catalog, ask.target, problems)
    if model is None or action is None or platform is None:
        raise InvalidInput.of(problems)
    entry = catalog.models[model]
    return Chosen((model, entry), (action, entry.actions[action]), (platform, catalog.platforms[platform]))


def _model(catalog: Catalog, text: str, problems: list[Finding]) -> str | None:
    names = find_model(catalog, text)
    if len(names) == 1:
        return names[0]
    if names:
        message = f"model: {text!r} may mean {', '.join(names)}"
        problems.append(fail("model", message, f"name one of them, for example {names[0]}", IMAGE))
    else:
        remedy = did_you_mean(nearest_models(catalog, text), "`prefect-tao models` lists all models")
        problems.append(fail("model", f"model: there is no {text!r} in the catalog", remedy, IMAGE))
    return None


def _action(catalog: Catalog, model: str | None, text: str, problems: list[Finding]) -> str | None:
    if model is None:
        return None
    actions = catalog.models[model].actions
    if text in actions:
        return text
    message = f"action: {model} has no {text!r}; it has {', '.join(actions)}"
    problems.append(fail("action", message, did_you_mean(nearest(text, actions), "choose one of these"), IMAGE))
    return None


def _platform(catalog: Catalog, text: str, problems: list[Finding]) -> str | None:
    try:
        name = Target.parse(text).platform
    except InvalidInput as error:
        problems.append(fail("platform", f"target: {error.cause}", error.remedy, PLATFORM))
        return None
    found = find_platform(catalog, name)
    if found is None:
        otherwise = f"choose one of {', '.join(catalog.platforms)}"
        message = f"platform: there is no {name!r} in the catalog"
        problems.append(fail("platform", message, did_you_mean(nearest_platforms(catalog, name), otherwise), PLATFORM))
    return found


# -- compute and spec --------------------------------------------------------------------------------------------------


def _count_keys(chosen: Chosen) -> tuple[str | None, str | None]:
    (_, model), (name, action) = chosen.model, chosen.action
    return count_key(name, model.gpu_key, action), count_key(name, model.node_key, action)


def _compute(chosen: Chosen, ask: Ask, given: Given, findings: list[Finding]) -> Resources:
    gpu_key, node_key = _count_keys(chosen)
    spec_gpus = spec_count("gpus", gpu_key, given.get(gpu_key), findings)
    spec_nodes = spec_count("nodes", node_key, given.get(node_key), findings)
    shape = choose_compute(chosen.platform, chosen.model, ask, spec_gpus, spec_nodes)
    findings += [*shape.findings, *uncounted(shape.resources, gpu_key)]
    return shape.resources


def _spec(
    chosen: Chosen, ask: Ask, given: Given, mapped: Mapped, handed: HandedOver, resources: Resources
) -> tuple[Tree, list[Finding]]:
    """All layers in their order, then the checks of the outcome."""
    (_, model), (name, action), (_, platform) = chosen.model, chosen.action, chosen.platform
    if action.mode == "passthrough":
        return {}, []
    tree = base_spec(name, model, action)
    try:
        lay_datasets(tree, mapped.values)
        lay_values(tree, count_values(*_count_keys(chosen), resources))
        lay_values(tree, handed.values)
    except ValueError as error:
        return tree, [fail("spec", f"spec: the catalog's layers do not fit: {error}", "correct the catalog's template")]
    findings = lay_given(tree, given, mapped.values, action.mode == "args")
    _name_outputs(tree, action)
    open_resume(tree, action)
    clear_optional(tree, action)
    findings += let_through(check_given(given, model, action), ask.given.get("allow_keys") or ())
    missing, declined = missing_keys(action, tree, given.is_declined)
    explained = {one.subject for one in mapped.findings}
    findings += missing_findings(action, chosen.model, platform, ask, missing, explained)
    if (is_training(name) or name in NEEDS_DATA) and not any(given.is_declined(key) for key in action.datasets):
        findings += no_data_findings(action, chosen.model, platform, ask, tree, explained)
    bare = [] if is_training(name) else no_model_findings(action, chosen.model[0], ask, tree, given.is_declined)
    findings += [_declined(key) for key in declined]
    findings += bare
    told_already = {one.subject for one in bare}
    waiting = {
        key: one for key, one in handed.waiting.items() if is_blank(get_pointer(tree, key)) and key not in told_already
    }
    findings += [_as_needed(action, key, one) for key, one in waiting.items() if not _has_other(tree, action, key)]
    told = [*(key for keys in missing.values() for key in keys), *declined, *waiting]
    findings += leftovers(tree, chosen.model[0], action, platform, told)
    if action.config_format == "toml" and action.mode == "config":
        tree = without_nulls(tree, frozenset(action.outputs))
    return tree, findings


def _declined(key: str) -> Finding:
    message = f"{key}: set to nothing, although the catalog takes it for required"
    return warn(key, message, "check that the action runs without it")


def _as_needed(action: ActionEntry, key: str, waiting: Finding) -> Finding:
    """What to say about a key that waits for an earlier step; without an optional one the action may run."""
    optional = action.inputs.get(key, {}).get("optional")
    return waiting.model_copy(update={"level": Level.WARN}) if optional else waiting


def _has_other(tree: Tree, action: ActionEntry, key: str) -> bool:
    """Whether an optional input has its value by another name, as an engine in the place of a checkpoint."""
    if not action.inputs.get(key, {}).get("optional"):
        return False
    section = key.rpartition(".")[0]
    beside = (other for other in action.inputs if other.rpartition(".")[0] == section)
    return any(not is_blank(get_pointer(tree, other)) for other in beside)


def _name_outputs(tree: Tree, action: ActionEntry) -> None:
    for key, rule in action.outputs.items():
        name = file_name(key)
        if rule.get("type") == "file" and name and is_blank(get_pointer(tree, key)):
            put(tree, key, name)


def _in_use(mapped: Mapped, spec: Tree) -> dict[str, tuple[str, ...]]:
    """The alternatives of those keys that still hold what the root gave them."""
    return {key: other for key, other in mapped.alternatives.items() if get_pointer(spec, key) == mapped.values[key]}


# -- the request -------------------------------------------------------------------------------------------------------


def _request(
    chosen: Chosen, ask: Ask, image: str | None, spec: Tree, handed: HandedOver, resources: Resources
) -> tuple[JobRequest | None, Iterable[Finding]]:
    (model_name, model), (name, action) = chosen.model, chosen.action
    fields: dict[str, Any] = {
        "command": action.command,
        "image": image,
        "config_format": action.config_format,
        "upload_excludes": action.upload_excludes,
        "resources": resources,
        "env": ask.given.get("env") or {},
        "secrets": tuple(dict.fromkeys((*model.credentials, *(ask.given.get("secrets") or ())))),
        "model": model_name,
        "action": name,
        "labels": {"model": model_name, "action": name},
        "release_elsewhere": bool(ask.given.get("release_elsewhere")),
    }
    if action.mode == "passthrough":
        fields["outputs"] = tuple(action.outputs)
    else:
        fields["specs" if action.mode == "config" else "args"] = spec
        fields["inputs"] = _inputs(action, spec)
        fields["outputs"] = action.outputs | _created(handed, action, spec)
    try:
        request = JobRequest.build(**fields)
    except InvalidInput as error:
        return None, error.findings
    try:
        entrypoint_for(request)
    except InvalidInput as error:
        return request, error.findings or [fail("request", error.cause, error.remedy)]
    return request, ()


def _inputs(action: ActionEntry, spec: Tree) -> dict[str, dict[str, Any]]:
    """The rules of all inputs that have a value, for each element of a list, and for datasets without one."""
    rules: dict[str, dict[str, Any]] = {}
    for key, rule in action.inputs.items():
        for spot in expand(spec, key):
            if not is_blank(get_pointer(spec, spot)):
                rules[spot] = rule | {"type": "folder"} if is_extracted(action, spot) else dict(rule)
    for spot, kind in dataset_inputs(action, spec):
        if not any(covers(key, spot) or covers(spot, key) for key in rules):
            rules[spot] = {"type": kind}
    return rules


def _created(handed: HandedOver, action: ActionEntry, spec: Tree) -> dict[str, dict[str, Any]]:
    """Files that the step makes at keys which are not declared outputs: they are kept like one."""
    made = (key for key in handed.created if key not in action.outputs)
    return {key: {"type": "file"} for key in made if get_pointer(spec, key) == handed.values[key]}
