"""Dataset roots become values of spec keys by the catalog's rules; keys that a person gave exactly are left alone."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prefect_tao.catalog.nouns import ActionEntry, DatasetRule, ModelEntry, PlatformEntry, Source
from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.resolve.ask import Ask
from prefect_tao.preflight.resolve.problems import did_you_mean, fail, nearest, setting, warn
from prefect_tao.preflight.resolve.trees import Tree, covers, expand, is_blank, is_unset
from prefect_tao.runner.inside.archives import is_archive
from prefect_tao.runner.inside.pointers import get_pointer, walk

IsDirect = Callable[[str], bool]
_NO_PLAIN_PATH = re.compile(r"[{}*?\[\]]|^/|(?:^|/)\.\.(?:/|$)")
# Actions that are of no use without data, and inputs that hold a model.
NEEDS_DATA = ("evaluate", "inference", "trt_evaluate", "trt_inference")
MODELS = (".checkpoint", ".trt_engine")
# The roots that a training learns from.
TEACHES: tuple[Source, ...] = ("train", "train_wds")
_SPLIT = re.compile(r"(?:train|eval|val|test)$")


def is_training(name: str) -> bool:
    """Whether an action trains: train, retrain, segment_train, distill."""
    return "train" in name or name == "distill"


@dataclass
class Mapped:
    """What the roots give: values by pointer, other files that may be meant, and files that may be there.

    `roots` are those that the action takes something from, by what a person calls them.
    """

    values: dict[str, Any] = field(default_factory=dict)
    alternatives: dict[str, tuple[str, ...]] = field(default_factory=dict)
    optional: dict[str, str] = field(default_factory=dict)
    roots: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def map_datasets(action: ActionEntry, model: ModelEntry, ask: Ask, is_direct: IsDirect) -> Mapped:
    """The values for all rules whose root was given; `is_direct` says which keys a person gave exactly."""
    mapped = Mapped()
    roots = _clean_roots(ask, mapped.findings)
    mapped.findings += _unused(ask, action) + _unknown_format(ask, model)
    mapped.roots = _named(roots, action)
    for key, rule in action.datasets.items():
        given = roots.get(rule.source, [])
        if not given or is_direct(key):
            continue
        if len(given) > 1 and not (rule.many or rule.fields or "[0]" in key):
            mapped.findings.append(_too_many(key, rule, given))
            continue
        _map_rule(mapped, key, rule, given, _format(ask, model), is_direct)
    return mapped


def _map_rule(
    mapped: Mapped,
    key: str,
    rule: DatasetRule,
    roots: list[str],
    data_format: str | None,
    is_direct: Callable[[str], bool],
) -> None:
    if rule.fields is not None:
        _map_fields(mapped, key, rule, roots, is_direct)
        return
    paths = candidates(rule, data_format)
    if not paths or any(_NO_PLAIN_PATH.search(path) for path in paths):
        mapped.findings.append(_bad_rule(key, rule, paths, data_format))
        return
    for index, root in enumerate(roots):
        spot = key.replace("[0]", f"[{index}]", 1) if "[0]" in key else f"{key}[{index}]" if rule.many else key
        if is_direct(spot):
            continue
        mapped.values[spot] = join(root, paths[0])
        if paths[1:]:
            mapped.alternatives[spot] = tuple(join(root, path) for path in paths[1:])


def _map_fields(mapped: Mapped, key: str, rule: DatasetRule, roots: list[str], is_direct: IsDirect) -> None:
    for index, root in enumerate(roots):
        for name, entry in (rule.fields or {}).items():
            spot = f"{key}[{index}].{name}"
            if is_direct(spot):
                continue
            if _NO_PLAIN_PATH.search(entry.path):
                mapped.findings.append(_bad_rule(spot, rule, [entry.path], None))
            elif entry.optional:
                mapped.optional[spot] = join(root, entry.path)
            else:
                mapped.values[spot] = join(root, entry.path)


def candidates(rule: DatasetRule, data_format: str | None) -> list[str]:
    """The paths below a root that a rule may mean, the preferred one first; none when the format has no path."""
    if rule.by_format is not None:
        chosen = rule.by_format.get(data_format or "*", rule.by_format.get("*"))
        return [] if chosen is None else [chosen] if isinstance(chosen, str) else list(chosen)
    return [] if rule.path is None else [rule.path]


def join(root: str, path: str) -> str:
    """`path` below `root`; the empty path is the root itself."""
    return root if not path else f"{root.rstrip('/')}/{path}"


def strip_slashes(root: str) -> str:
    """A root without the slashes at its end; the root of a file system or scheme stays what it is."""
    bare = root.rstrip("/")
    return root if not bare or bare.endswith(":") else bare


def _clean_roots(ask: Ask, findings: list[Finding]) -> dict[Source, list[str]]:
    roots: dict[Source, list[str]] = {}
    for source, given in ask.roots.items():
        kept = [strip_slashes(root.strip()) for root in given if root.strip()]
        if len(kept) < len(given):
            problem = f"{option(source)}: a root is empty; expected a path or URI"
            findings.append(fail(f"dataset {source}", problem, f"give {option(source)} a folder, or leave it out"))
        if kept:
            roots[source] = kept
    return roots


def _named(roots: dict[Source, list[str]], action: ActionEntry) -> dict[str, str]:
    used = {rule.source for rule in action.datasets.values()}
    return {
        f"{option(source)} {number}" if len(given) > 1 else option(source): root
        for source, given in roots.items()
        if source in used
        for number, root in enumerate(given, 1)
    }


def _unused(ask: Ask, action: ActionEntry) -> list[Finding]:
    used = {rule.source for rule in action.datasets.values()}
    return [
        warn(
            f"dataset {source}",
            f"{option(source)}: {', '.join(given)} is not used; {ask.model} {ask.action} maps {_listed(used)}",
            f"leave {option(source)} out, or set the keys it is meant for with --set KEY=path",
        )
        for source, given in ask.roots.items()
        if given and source not in used
    ]


def _listed(sources: set[Source]) -> str:
    return ", ".join(sorted(option(source) for source in sources)) or "no dataset roots"


def _format(ask: Ask, model: ModelEntry) -> str | None:
    return ask.given.get("data_format") or model.data_format


def _unknown_format(ask: Ask, model: ModelEntry) -> list[Finding]:
    known = {*model.formats, model.data_format} - {None}
    given = ask.given.get("data_format")
    if not given or not known or any(given in str(name).split() for name in known):
        return []
    names = [str(name) for name in known]
    message = f"data_format: {given!r} is not among the formats of {ask.model}: {', '.join(sorted(names))}"
    return [warn("dataset format", message, did_you_mean(nearest(given, names), "check data_format"))]


def _too_many(key: str, rule: DatasetRule, roots: list[str]) -> Finding:
    return fail(
        f"dataset {rule.source}",
        f"{key}: takes one {rule.source} root, and {len(roots)} were given: {', '.join(roots)}",
        f"give {option(rule.source)} once, or {setting(key, 'path')} for this key",
    )


def _bad_rule(key: str, rule: DatasetRule, paths: list[str], data_format: str | None) -> Finding:
    if paths:
        problem = f"the catalog maps it to {paths[0]!r}; expected one plain path below the root"
    elif rule.by_format:
        problem = f"the catalog has no path for the format {data_format!r}; it has {', '.join(rule.by_format)}"
    else:
        problem = "the catalog's rule names no path"
    return fail(
        f"dataset {rule.source}",
        f"{key}: {problem}",
        f"give the exact path with {setting(key, 'path')}, or correct the catalog's rule",
    )


# -- what is still missing ---------------------------------------------------------------------------------------------


def missing_keys(action: ActionEntry, tree: Tree, is_declined: IsDirect) -> tuple[dict[Source, list[str]], list[str]]:
    """The required dataset keys without a value, by the root that would fill them, and those left empty on purpose."""
    missing: dict[Source, list[str]] = {}
    declined = []
    for key, rule in action.datasets.items():
        if rule.optional or not all(is_blank(get_pointer(tree, spot)) for spot in expand(tree, key)):
            continue
        if is_declined(key):
            declined.append(key)
        else:
            missing.setdefault(rule.source, []).append(key)
    return missing, declined


def missing_findings(
    action: ActionEntry,
    model: tuple[str, ModelEntry],
    platform: PlatformEntry,
    ask: Ask,
    missing: dict[Source, list[str]],
    explained: set[str],
) -> list[Finding]:
    """One finding per root that was not given, with both ways to give it; `explained` are failed subjects."""
    found = []
    for source, keys in missing.items():
        if any(root.strip() for root in ask.roots.get(source, ())):
            if f"dataset {source}" not in explained:
                found.append(_emptied(source, keys))
            continue
        ways = _ways(action, model, platform, ask, source, keys)
        found.append(
            fail(
                f"dataset {source}",
                f"datasets: no {source} root was given, and {', '.join(keys)} {'has' if len(keys) == 1 else 'have'} "
                "no value",
                f"A) root mode: {ways.by_root}; B) exact keys: {ways.by_key}",
            )
        )
    return found


def no_data_findings(
    action: ActionEntry,
    model: tuple[str, ModelEntry],
    platform: PlatformEntry,
    ask: Ask,
    tree: Tree,
    explained: set[str],
) -> list[Finding]:
    """A finding for an action that got no data at all, although each single place for data may stay empty."""
    trains = is_training(ask.action)
    rules = {key: rule for key, rule in action.datasets.items() if rule.source in TEACHES or not trains}
    inputs = {
        key: bool(rule.get("optional")) for key, rule in action.inputs.items() if trains and covers("dataset", key)
    }
    places = {key: rule.optional for key, rule in rules.items()} or inputs
    told = any(f"dataset {rule.source}" in explained for rule in rules.values())
    if not places or not all(places.values()) or told or not action.needs_data:
        return []
    if not all(is_blank(get_pointer(tree, spot)) for key in places for spot in expand(tree, key)):
        return []
    what = "training data" if trains else "data"
    message = f"datasets: {model[0]} {ask.action} got no {what}: none of {', '.join(places)} has a value"
    if not rules:
        example = setting(next(iter(places)), f"{example_root(platform, model[0], 'train')}/FILE")
        return [fail("dataset keys", message, f"give what it needs of them, for example {example}")]
    sources = {rule.source: [key for key in rules if rules[key].source == rule.source] for rule in rules.values()}
    ways = [_ways(action, model, platform, ask, source, keys) for source, keys in sources.items()]
    remedy = f"A) root mode: {', or '.join(way.by_root for way in ways)}; B) exact keys: {ways[0].by_key}"
    return [fail(f"dataset {next(iter(sources))}", message, remedy)]


def no_model_findings(action: ActionEntry, model: str, ask: Ask, tree: Tree, is_declined: IsDirect) -> list[Finding]:
    """A finding for an action that works on a model and got none, although each single place for it may stay empty."""
    places = {key: bool(rule.get("optional")) for key, rule in action.inputs.items() if key.endswith(MODELS)}
    if not places or not all(places.values()) or any(is_declined(key) for key in places):
        return []
    if not all(is_blank(get_pointer(tree, spot)) for key in places for spot in expand(tree, key)):
        return []
    first = next(iter(places))
    message = f"{first}: {model} {ask.action} got no model: none of {', '.join(places)} has a value"
    remedy = (
        f"give one, for example {setting(first, 'MODEL.pth')}; {setting(first, 'null')} takes the pretrained weights"
    )
    return [fail(first, message, remedy)]


class _Ways(NamedTuple):
    """How missing data can be given, as a person would type it."""

    by_root: str
    by_key: str


def _ways(
    action: ActionEntry,
    model: tuple[str, ModelEntry],
    platform: PlatformEntry,
    ask: Ask,
    source: Source,
    keys: list[str],
) -> _Ways:
    root, data_format = example_root(platform, model[0], source), _format(ask, model[1])
    pairs = [pair for key in keys for pair in _examples(key, action.datasets[key], root, data_format)]
    come = ", ".join(f"{key}={value}" for key, value in pairs)
    return _Ways(
        f"{option(source)} {shlex.quote(root)}, from which come {come}",
        " ".join(setting(key, value) for key, value in pairs),
    )


def _emptied(source: Source, keys: list[str]) -> Finding:
    return fail(
        f"dataset {source}",
        f"{', '.join(keys)}: empty in the given spec, which wins over {option(source)}; expected a location",
        f"remove the empty value so that {option(source)} fills it, or give {setting(keys[0], 'path')}",
    )


def _examples(key: str, rule: DatasetRule, root: str, data_format: str | None) -> list[tuple[str, str]]:
    """A key with what the root would give it; of an object, each field that has to be there."""
    if rule.fields:
        fields = ((name, entry.path) for name, entry in rule.fields.items() if not entry.optional)
        return [(f"{key}[0].{name}", join(root, path)) for name, path in fields]
    value = join(root, next(iter(candidates(rule, data_format)), "path"))
    return [(f"{key}[0]" if rule.many and "[0]" not in key else key, value)]


def example_root(platform: PlatformEntry, model: str, source: str) -> str:
    """A root as it looks on the platform."""
    examples = [example.split()[0].replace("<model>", model).rstrip("/") for example in platform.path_examples]
    for example in examples:
        if example.endswith(source):
            return example
    return _SPLIT.sub(source, examples[0]) if examples else f"/data/{model}/{source}"


def option(source: Source) -> str:
    """The option that gives a root."""
    return f"--{source.replace('_', '-')}-root"


# -- what the datasets turned out to be --------------------------------------------------------------------------------


def dataset_values(action: ActionEntry, tree: Tree) -> dict[str, str]:
    """Every location at a dataset key of the finished spec, whichever way it came there."""
    found = {}
    for key in action.datasets:
        for spot in expand(tree, key):
            for leaf, value in walk(get_pointer(tree, spot), spot):
                if isinstance(value, str) and not is_unset(value):
                    found[leaf] = value
    return found


def dataset_inputs(action: ActionEntry, tree: Tree) -> Iterator[tuple[str, str]]:
    """(pointer, file or folder) of every dataset key that has a value, as the runner has to fetch it."""
    for key, rule in action.datasets.items():
        for spot in expand(tree, key):
            value = get_pointer(tree, spot)
            if is_blank(value):
                continue
            if rule.fields is None:
                yield spot, "folder" if rule.extracted or _is_folder(value) else "file"
                continue
            for index, entry in enumerate(value if isinstance(value, list) else ()):
                for name in rule.fields:
                    inner = get_pointer(entry, name) if isinstance(entry, dict) else None
                    if isinstance(inner, str) and not is_unset(inner):
                        yield f"{spot}[{index}].{name}", "folder" if _is_folder(inner) else "file"


def _is_folder(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    name = str(first).rstrip("/").rpartition("/")[2]
    return is_archive(name) or "." not in name


def is_extracted(action: ActionEntry, pointer: str) -> bool:
    """Whether the archive at `pointer` is to be unpacked, whatever its declared input says."""
    plain = re.sub(r"\[\d+\]", "[0]", pointer)
    return any(rule.extracted and covers(key, plain) for key, rule in action.datasets.items())
