"""The compute shape: what was asked for, else what the platform gives by default, else what the model needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from prefect_tao.catalog.nouns import ModelEntry, PlatformEntry
from prefect_tao.jobs.finding import COMPUTE, Finding, Level
from prefect_tao.jobs.quantities import format_seconds, parse_bytes, parse_seconds
from prefect_tao.jobs.request import ALL_GPUS, Resources
from prefect_tao.preflight.resolve.ask import Ask
from prefect_tao.preflight.resolve.problems import fail, setting, shown, warn

# Actions that only rearrange files.
ON_CPU = ("dataset_convert", "convert")


class Shape(NamedTuple):
    """The resources of a job, and what is wrong with them."""

    resources: Resources
    findings: tuple[Finding, ...]


def choose_compute(
    platform: tuple[str, PlatformEntry],
    model: tuple[str, ModelEntry],
    ask: Ask,
    spec_gpus: int | None = None,
    spec_nodes: int | None = None,
) -> Shape:
    """The shape for a launch; `spec_gpus` and `spec_nodes` are what a person wrote into the spec's own keys."""
    findings: list[Finding] = []
    given, defaults = ask.given, platform[1].defaults
    least = least_gpus(model[1], ask.action)
    # A default of none says only that the platform need not have any; one of all is not a number for a spec.
    usual = defaults.get("num_gpus") or None
    usual = None if usual == ALL_GPUS and model[1].gpu_key else usual
    gpus = _first(given.get("gpus"), spec_gpus, usual)
    spread = _spread(platform, given.get("gpus"), _first(given.get("nodes"), spec_nodes))
    if spread and spec_gpus is None:
        given = {**given, "gpus": spread[0], "nodes": spread[1]}
        gpus = spread[0]
        findings.append(_spread_finding(*spread))
    fields: dict[str, Any] = {name: value for name, value in given.items() if name in Resources.model_fields}
    fields |= {
        "gpus": _first(gpus, least),
        "nodes": _first(given.get("nodes"), spec_nodes, defaults.get("num_nodes"), 1),
        "cpus": _first(given.get("cpus"), defaults.get("cpus_per_task"), defaults.get("cpus")),
        "memory": _parsed("memory", _first(given.get("memory"), defaults.get("memory")), parse_bytes, findings),
        "shm": _parsed("shm", _first(given.get("shm"), defaults.get("shm")), parse_bytes, findings),
        "time_limit": _parsed("time_limit", _first(given.get("time_limit"), _hours(defaults)), parse_seconds, findings),
    }
    findings += _agreement(ask, spec_gpus, spec_nodes)
    findings += _limits(platform, fields)
    if gpus is None and least:
        findings.append(_own_wish(model[0], least))
    if usual is not None and given.get("gpus") is None and spec_gpus is None:
        findings.append(_usual(platform[0], usual))
    findings += _wishes(model, fields, least)
    return Shape(Resources(**fields), tuple(findings))


def command_shape(platform: tuple[str, PlatformEntry], asked: Resources) -> Shape:
    """The shape of a plain command: what it asks for, and for the rest what the platform gives by default."""
    name, defaults = platform[0], platform[1].defaults
    usual = {
        "gpus": defaults.get("num_gpus") or None,
        "nodes": defaults.get("num_nodes"),
        "cpus": _first(defaults.get("cpus_per_task"), defaults.get("cpus")),
        "memory": defaults.get("memory"),
        "shm": defaults.get("shm"),
        "time_limit": _hours(defaults),
    }
    given = {field: getattr(asked, field) for field in asked.model_fields_set}
    spread = _spread(platform, given.get("gpus"), given.get("nodes"))
    if spread:
        given |= {"gpus": spread[0], "nodes": spread[1]}
    filled = {field: value for field, value in usual.items() if value is not None and field not in given}
    findings = [_usual(name, filled["gpus"])] if "gpus" in filled else []
    findings += [_spread_finding(*spread)] if spread else []
    return Shape(Resources(**given, **filled), tuple(findings))


def _spread(platform: tuple[str, PlatformEntry], gpus: int | None, nodes: int | None) -> tuple[int, int] | None:
    """GPUs per node and nodes, where more GPUs were asked for than a node has, no nodes, and they fill whole ones."""
    most = platform[1].defaults.get("max_num_gpus_per_node")
    if not platform[1].multi_node or not most or nodes is not None or gpus is None or gpus <= most or gpus % most:
        return None
    return most, gpus // most


def _spread_finding(gpus: int, nodes: int) -> Finding:
    message = f"gpus: {gpus * nodes} are {nodes} nodes with {gpus} each, because a node has {gpus}"
    remedy = f"say --nodes {nodes} --gpus {gpus} to ask for just that"
    return warn("nodes", message, remedy, COMPUTE)


def _usual(platform: str, gpus: int) -> Finding:
    many = "all of a node" if gpus == ALL_GPUS else str(gpus)
    message = f"gpus: {many}, the default of {platform} for a job that does not say; --gpus 0 asks for none"
    return Finding(level=Level.OK, subject="default gpus", message=message, gate=COMPUTE)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def least_gpus(model: ModelEntry, action: str) -> int:
    """What an action of the model needs: what the catalog says, else one where the spec has a key for their number."""
    if action in ON_CPU:
        return 0
    return model.hardware.min_gpus if model.hardware.min_gpus is not None else int(model.gpu_key is not None)


def _own_wish(name: str, least: int) -> Finding:
    message = f"gpus: {least}, because {name} is meant for {least} or more and no number was given"
    return Finding(level=Level.OK, subject="default gpus", message=message, gate=COMPUTE)


def _hours(defaults: dict[str, Any]) -> str | None:
    hours = defaults.get("time_hours")
    return None if hours is None else f"{hours}h"


def _parsed(name: str, value: Any, parse: Callable[[Any], float], findings: list[Finding]) -> float | None:
    if value is None:
        return None
    try:
        return parse(value)
    except ValueError as error:
        findings.append(fail(name, f"{name}: {error}", f"correct --{name.replace('_', '-')}", COMPUTE))
        return None


def _agreement(ask: Ask, spec_gpus: int | None, spec_nodes: int | None) -> list[Finding]:
    """The spec must not count on more than the job gets: a training with too few GPUs hangs when it connects them."""
    found = []
    counts = (("gpus", ask.given.get("gpus"), spec_gpus), ("nodes", ask.given.get("nodes"), spec_nodes))
    for name, asked, written in counts:
        if asked is None or written is None or asked in (ALL_GPUS, written):
            continue
        say = fail if written > asked else warn
        message = f"{name}: {asked} asked for, but the spec says {written}"
        found.append(say(name, message, f"give --{name} alone; it sets the spec's key too", COMPUTE))
    return found


def _limits(platform: tuple[str, PlatformEntry], fields: dict[str, Any]) -> list[Finding]:
    name, entry = platform
    found = []
    if fields["nodes"] > 1 and not entry.multi_node:
        message = f"nodes: {fields['nodes']}; {name} runs a job on one node"
        found.append(fail("nodes", message, "ask for --nodes 1, or choose a platform with several nodes", COMPUTE))
    most = entry.defaults.get("max_num_gpus_per_node")
    if most is not None and fields["gpus"] > most:
        message = f"gpus: {fields['gpus']}; {name} has at most {most} per node"
        found.append(fail("gpus", message, f"ask for --gpus {most} and more --nodes", COMPUTE))
    longest = entry.defaults.get("max_time_hours")
    if longest is not None and (fields["time_limit"] or 0) > longest * 3600:
        message = f"time_limit: {format_seconds(fields['time_limit'])}; {name} allows at most {longest} h"
        found.append(
            fail("time_limit", message, f"ask for --time-limit {longest}h; a training resumes in its next job", COMPUTE)
        )
    return found


def _wishes(model: tuple[str, ModelEntry], fields: dict[str, Any], least: int) -> list[Finding]:
    name, entry = model
    found = []
    total = fields["gpus"] * fields["nodes"]
    if total < least and fields["gpus"] != ALL_GPUS:
        message = f"gpus: {total} in all; {name} is meant for {least} or more"
        found.append(warn("gpus", message, f"ask for --gpus {least} unless you know that it fits", COMPUTE))
    if fields["nodes"] > 1 and not entry.node_key:
        message = f"nodes: {fields['nodes']}; the catalog knows no spec key for the nodes of {name}"
        found.append(warn("nodes", message, "set that key yourself with --set, or ask for --nodes 1", COMPUTE))
    return found


def uncounted(resources: Resources, key: str | None) -> list[Finding]:
    """What is wrong where all GPUs are wanted, their number is not known, and the spec has a key for it."""
    if resources.gpus != ALL_GPUS or key is None:
        return []
    message = f"gpus: all were asked for, {key} takes a number, and how many there are is not known"
    return [fail("gpus", message, "give the number, for example --gpus 8", COMPUTE)]


def spec_count(subject: str, key: str | None, value: Any, findings: list[Finding]) -> int | None:
    """A count of GPUs or nodes that a person wrote into the spec at `key`."""
    if key is None or value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    findings.append(
        fail(
            subject,
            f"{key}: {shown(value)}; expected a whole number of 1 or more",
            f"{setting(key, 1)}, for example",
            COMPUTE,
        )
    )
    return None
