"""Reads prefect.yaml, and says what is wrong with it before anything is deployed, all of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prefect import Flow
from prefect.flows import load_flow_from_entrypoint

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.resolve.problems import fail

OURS = "prefect_tao."
FILE = "prefect.yaml"
TEMPLATE = "{{"  # what Prefect's own command fills in
MAPS = {"schedules": "slug", "triggers": "name"}  # what each of them is known by


@dataclass(frozen=True)
class Described:
    """One deployment as prefect.yaml describes it, and its flow."""

    entry: Mapping[str, Any]
    flow: Flow[..., Any]

    @property
    def name(self) -> str:
        """As Prefect names it: `flow/deployment`."""
        return f"{self.flow.name}/{self.entry['name']}"

    @property
    def ours(self) -> bool:
        """Whether the flow comes with this package; what others write is theirs to judge."""
        return str(self.entry["entrypoint"]).startswith(OURS)

    @property
    def schedules(self) -> Sequence[Mapping[str, Any]]:
        return self.entry.get("schedules") or ()


def described_deployments(folder: Path) -> list[Described]:
    """What prefect.yaml says of each deployment. Raises InvalidInput with all that is wrong with it."""
    entries = _entries(folder / FILE)
    found = [finding for number, entry in enumerate(entries, 1) for finding in _shape(number, entry)]
    if found:
        raise InvalidInput.of(found)
    described = []
    with chdir(folder):  # files of flows are named from there
        for entry in entries:
            try:
                described.append(Described(entry, load_flow_from_entrypoint(entry["entrypoint"])))
            except Exception as error:  # a file of others can fail in every way
                message = f"{entry['name']}: the flow {entry['entrypoint']} cannot be loaded: {error}"
                found.append(fail("entrypoint", message, f"correct the entrypoint in {FILE}, or the file it names"))
    names = [one.name for one in described]
    for name in sorted({name for name in names if names.count(name) > 1}):
        found.append(fail("name", f"{FILE} describes {name} twice", "give one of them another name"))
    if found:
        raise InvalidInput.of(found)
    return described


def _entries(file: Path) -> list[Any]:
    if not file.is_file():
        raise InvalidInput(f"there is no {FILE} in {file.parent}", "run this where it is")
    try:
        read = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{FILE} is not YAML: {error}", "correct it there") from None
    entries = read.get("deployments") if isinstance(read, dict) else None
    if not isinstance(entries, list) or not entries:
        raise InvalidInput(f"{FILE} describes no deployments", "give a list of them under the key deployments")
    return entries


def _shape(number: int, entry: Any) -> Iterator[Finding]:
    """What Prefect's own command would stumble over, or pass over without a word."""
    if not isinstance(entry, dict):
        yield fail("deployments", f"deployment {number} is not a map", "give at least its name and its entrypoint")
        return
    name = entry.get("name") or f"deployment {number}"
    for key in ("name", "entrypoint"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            yield fail(key, f"{name} has no {key}", "give it as text")
    if not isinstance(entry.get("parameters") or {}, dict):
        yield fail("parameters", f"{name}: its parameters are not a map", "write them as name: value")
    if "schedule" in entry:
        yield fail("schedule", f"{name}: schedule is an old key", "give a list of schedules, under schedules")
    for key, known_by in MAPS.items():
        given = entry.get(key) or []
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            yield fail(key, f"{name}: {key} is not a list of maps", "write each of them after a dash")
        elif len({one.get(known_by) or None for one in given} - {None}) < len(given):
            yield fail(
                key,
                f"{name}: not each of its {key} has a {known_by} of its own",
                f"give each a {known_by}, so that the next deploy recognizes it",
            )
