"""The points of a sweep: which values of which keys are tried together, and what each of them means. Pure."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import posixpath
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from prefect_tao.catalog.nouns import ActionEntry, Catalog, ModelEntry
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding, Level, blocking
from prefect_tao.jobs.quantities import Direction
from prefect_tao.jobs.request import JobRequest
from prefect_tao.launch.parameters.declared import Mode, SweepParameters
from prefect_tao.launch.parameters.derived import completed
from prefect_tao.preflight.checked_launch import texts
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.command_launch import plain_launch
from prefect_tao.preflight.resolve.places import clashes, is_fixed, is_results, place
from prefect_tao.preflight.resolve.policy import is_search
from prefect_tao.preflight.resolve.problems import did_you_mean, fail, nearest
from prefect_tao.preflight.resolve.resolving import open_catalog, resolve_ask
from prefect_tao.preflight.resolve.translating import ask_from, request_from
from prefect_tao.runner.entrypoint import input_locations
from prefect_tao.runner.inside.pointers import get_pointer, walk

MODES = get_args(Mode)
MOST = 10_000
CONFIG_PATH = "{config_path}"


@dataclass(frozen=True)
class Point:
    """One combination of values. Its name follows from the values, so that it is the same in every run of the sweep."""

    overrides: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The step that runs it."""
        text = json.dumps(dict(self.overrides), sort_keys=True, default=str)
        return f"point-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    @property
    def label(self) -> str:
        """The values, for people: lr=0.1, batch_size=8."""
        return ", ".join(f"{key.rpartition('.')[2]}={_short(value)}" for key, value in self.overrides.items())


def plan_points(
    over: Mapping[str, Any] | None = None,
    mode: Mode = "grid",
    points: Sequence[Mapping[str, Any]] | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> list[Point]:
    """Every point once, in order. Raises InvalidInput for a sweep over nothing, or over too much."""
    if mode not in MODES:
        raise InvalidInput(f"there is no mode {mode!r}", f"choose one of {', '.join(MODES)}")
    if points is not None and over:
        raise InvalidInput("a sweep takes either points or keys to vary", "give points, or over, not both")
    if points is not None:
        if not all(isinstance(point, Mapping) for point in points):
            raise InvalidInput(
                "points is not a list of maps", "write one map of values per point: [{lr: 0.1}, {lr: 0.01}]"
            )
        found = [dict(point) for point in points]
    elif mode == "random":
        found = _random(_checked(over, ranges=True), samples, seed)
    else:
        found = _combined(_checked(over, ranges=False), mode)
    if not found or not all(found):
        raise InvalidInput(
            "the sweep has no points", "name at least one key with its values, for example --over lr=0.1,0.01"
        )
    unique: dict[str, Point] = {}
    for point in map(Point, found):
        unique.setdefault(point.name, point)
    _refuse_more(len(unique))
    return list(unique.values())


def _refuse_more(count: int) -> None:
    if count > MOST:
        raise InvalidInput(
            f"the sweep has {count} points; at most {MOST} are run at once",
            "vary fewer keys, or draw some of them: mode random with samples",
        )


def _checked(over: Mapping[str, Any] | None, ranges: bool) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for key, values in (over or {}).items():
        if isinstance(values, Mapping):
            if not ranges:
                raise InvalidInput(f"{key}: a range needs mode random", "list the values, or choose mode random")
            checked[key] = _range(key, values)
        elif isinstance(values, (list, tuple)):
            if not values:
                raise InvalidInput(f"{key}: the list of values is empty", "name at least one value")
            checked[key] = list(values)
        else:
            checked[key] = [values]
    return checked


def _range(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    low, high = values.get("min"), values.get("max")
    numbers = isinstance(low, (int, float)) and isinstance(high, (int, float))
    if not numbers or set(values) - {"min", "max", "log"} or not low < high:  # type: ignore[operator]
        raise InvalidInput(f"{key}: {dict(values)} is not a range", "write {min: 0.0001, max: 0.1, log: true}")
    if values.get("log") and not low > 0:  # type: ignore[operator]
        raise InvalidInput(f"{key}: a range on a log scale begins above 0, not at {low}", "raise min")
    return dict(values)


def _combined(over: Mapping[str, list[Any]], mode: Mode) -> list[dict[str, Any]]:
    if mode == "grid":
        _refuse_twice(over)
        _refuse_more(math.prod(len(values) for values in over.values()))  # before all of them are made
        return [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())] if over else []
    lengths = {key: len(values) for key, values in over.items()}
    if len(set(lengths.values())) > 1:
        words = ", ".join(f"{key} has {length}" for key, length in lengths.items())
        raise InvalidInput(f"mode zip needs lists of equal length: {words}", "make them equally long, or use mode grid")
    return [dict(zip(over, values, strict=True)) for values in zip(*over.values(), strict=True)]


def _refuse_twice(over: Mapping[str, list[Any]]) -> None:
    for key, values in over.items():
        counts = Counter(json.dumps(value, sort_keys=True, default=str) for value in values)
        if twice := [text for text, count in counts.items() if count > 1]:
            raise InvalidInput(
                f"{key}: {', '.join(twice)} is there more than once, and would be one point",
                "name each value once; to repeat a point, vary a seed as well",
            )


def _random(over: Mapping[str, Any], samples: int | None, seed: int) -> list[dict[str, Any]]:
    if not samples or samples < 1:
        raise InvalidInput("mode random needs the number of points to draw", "give samples, for example 20")
    _refuse_more(samples)  # before all of them are drawn
    dice = random.Random(seed)  # noqa: S311 - chooses values, guards nothing
    return [{key: _drawn(dice, values) for key, values in over.items()} for _ in range(samples)] if over else []


def _drawn(dice: random.Random, values: Any) -> Any:
    if isinstance(values, list):
        return dice.choice(values)
    low, high = values["min"], values["max"]
    if values.get("log"):
        drawn = math.exp(dice.uniform(math.log(low), math.log(high)))
    elif isinstance(low, int) and isinstance(high, int):
        return dice.randint(low, high)
    else:
        drawn = dice.uniform(low, high)
    drawn = float(f"{drawn:.6g}")
    return round(drawn) if isinstance(low, int) and isinstance(high, int) else drawn


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:21] + "..."


# -- from points to launches -------------------------------------------------------------------------------------------


def resolve_points(
    given: Mapping[str, Any], points: Sequence[Point], platform: str, catalog: Catalog | None = None
) -> list[Resolved]:
    """What each point means. Raises InvalidInput with what is wrong with any of them, each thing once."""
    catalog, given = catalog or open_catalog(), completed(SweepParameters, given)
    if is_search(catalog, given):
        remedy = "leave automl_policy out, or search with automl: --range takes the place of --over"
        raise InvalidInput("a sweep is a search of its own, and each of its points is one plain run", remedy)
    if given["command"] is not None:
        _refuse_unused(given, points)
        resolved = [plain_launch(request_from(_varied(given, point)), platform, catalog) for point in points]
    else:
        resolved = [resolve_ask(ask_from(_varied(given, point)), catalog) for point in points]
    # What one run may be warned of, a likely typo, would make all points of a sweep the same.
    varied = {key for point in points for key in point.overrides}
    found: dict[str, Finding] = {}
    for one in resolved:
        doubtful = [finding for finding in one.findings if finding.level is Level.WARN and finding.subject in varied]
        for finding in (*blocking(one.findings), *doubtful):
            found.setdefault(finding.subject, finding)
    if overwritten := _overwritten(points, resolved, catalog):
        found.setdefault(overwritten.subject, overwritten)
    if found:
        raise InvalidInput.of(list(found.values()))
    return resolved


def _overwritten(points: Sequence[Point], resolved: Sequence[Resolved], catalog: Catalog) -> Finding | None:
    """A place that several points write to: the last of them would be all that is left."""
    places = [
        place(f"{point.name} ({point.label})", one.platform, text)
        for point, one in zip(points, resolved, strict=True)
        for text in fixed_outputs(one, catalog)
    ]
    clash = next(clashes(places), None)
    if clash is None:
        return None
    return fail(
        "output",
        f"output: {clash.told('point')}; one would overwrite the other",
        "leave it out, so that each point has a folder of its own ($TAO_RESULTS_DIR in a command), or vary it with the "
        "points",
    )


def fixed_outputs(one: Resolved, catalog: Catalog) -> list[str]:
    """The locations outside of its own folder that a launch writes to."""
    is_bare = not catalog.platforms[one.platform].containers
    return list(_outputs(one.request, is_bare)) if one.request is not None else []


def _outputs(request: JobRequest, is_bare: bool) -> Iterator[str]:
    if isinstance(request.outputs, Mapping):
        tree = request.specs if request.specs is not None else request.args or {}
        keys = [*request.outputs, *(key for key, _ in walk(tree) if is_results(key))]
        yield from (value for key in keys if is_fixed(value := get_pointer(tree, key)))
    elif request.image is None:
        # In a container these are paths of its own, which are carried into the folder of its job.
        paths = [posixpath.join(request.workdir or "", path) for path in request.outputs]
        yield from (path for path in paths if is_bare or is_fixed(path))


def _varied(given: Mapping[str, Any], point: Point) -> dict[str, Any]:
    """The parameters of one point; a command with arguments has those varied, everything else its spec."""
    if given.get("command") is not None and given.get("args") is not None:
        return {**given, "args": {**given["args"], **point.overrides}}
    return {**given, "overrides": {**(given.get("overrides") or {}), **point.overrides}}


def _refuse_unused(given: Mapping[str, Any], points: Sequence[Point]) -> None:
    """A command that cannot see its point would run the same thing again and again. Raises InvalidInput."""
    if given.get("args") is None and CONFIG_PATH not in str(given["command"]):
        raise InvalidInput(
            f"the command never reads what is varied: there is no {CONFIG_PATH} in it",
            f"write for example -- python train.py --config {CONFIG_PATH}, or share an argument with --arg KEY=VALUE",
        )
    if given.get("args") is not None or not given.get("specs"):
        return
    known = {**given["specs"]}
    shared = given.get("overrides") or {}
    for key in dict.fromkeys(key for point in points for key in point.overrides):
        if key not in shared and get_pointer(known, key) is None:
            keys = [pointer for pointer, _ in walk(known)]
            remedy = did_you_mean(
                nearest(key, keys, 1), f"the spec has {', '.join(keys[:8])}; add it with --set {key}=..."
            )
            raise InvalidInput(f"{key}: the spec has no such key to vary", remedy)


def same_to_gates(resolved: Resolved) -> str:
    """What the gates look at: two launches that agree in it pass or fail together."""
    request, named = resolved.request, (resolved.image, sorted(resolved.datasets.items()))
    if request is None:
        return repr(named)
    inputs = sorted((key, uri) for key, (uri, _) in input_locations(request).items())
    remote = sorted(text for text in texts(request.specs or request.args or {}) if "://" in text)
    return repr((*named, inputs, remote, sorted(request.secrets), request.resources.model_dump_json()))


def ranked_by(metric: str | None, direction: Direction | None, resolved: Resolved) -> tuple[str | None, Direction]:
    """What points are ranked by, and which way is better: as a person says, else as the catalog does."""
    model = open_catalog().models.get(resolved.model)
    action = model.actions.get(resolved.action) if model else None
    known = known_directions(model, action)
    metric = metric or (action.metric if action else None) or (model.automl.metric if model else None)
    lower = metric is not None and any(word in metric.lower() for word in ("loss", "error"))
    return metric, direction or known.get(metric) or ("minimize" if lower else "maximize")


def known_directions(model: ModelEntry | None, action: ActionEntry | None) -> dict[str | None, Direction | None]:
    """Which way metrics are better, as the catalog says; the action's own word counts most."""
    entries = [*(model.actions.values() if model else ()), *([action] if action else ())]
    found: dict[str | None, Direction | None] = {model.automl.metric: model.automl.direction} if model else {}
    return found | {entry.metric: entry.direction for entry in entries if entry.metric}
