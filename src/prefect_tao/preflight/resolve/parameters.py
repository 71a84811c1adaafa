"""A launch as named parameters: what the form of a deployment, a script and the command line all give alike."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.checked_launch import Proofs
from prefect_tao.preflight.resolve.ask import Ask
from prefect_tao.preflight.resolve.resolving import build_ask
from prefect_tao.runner.inside.pointers import set_pointer

Parameters = Mapping[str, Any]

ROOT = "_root"
SHAPE = ("gpus", "nodes", "cpus", "memory", "time_limit", "shm")
# What an action of the catalog has from its entry, so a person gives it for a command only; by the name of its option.
OF_COMMANDS = {
    "args": "--arg",
    "flags": "--flag",
    "inputs": "--input",
    "outputs": "--output",
    "upload_excludes": "--exclude",
    "workdir": "--workdir",
}


def request_from(given: Parameters) -> JobRequest:
    """The request of a plain command. Raises InvalidInput."""
    extra = [name for name in given if name.endswith(ROOT) or name == "data_format"]
    _refuse(
        given,
        {name: f"--{name.replace('_', '-')}" for name in extra},
        "is for an action of the catalog, and a command was given",
        "declare the data of a command with inputs (--input PATH=LOCATION)",
    )
    names = set(JobRequest.model_fields) - {"specs", "resources"}
    return JobRequest.build(
        **{name: given[name] for name in names if given.get(name) is not None},
        specs=with_overrides(given.get("specs"), given.get("overrides")),
        resources={name: given[name] for name in SHAPE if given.get(name) is not None},
    )


def ask_from(given: Parameters) -> Ask:
    """The ask for an action of the catalog. Raises InvalidInput."""
    _refuse(
        given,
        OF_COMMANDS,
        "is for a command, and an action of the catalog was named",
        "leave it out; data comes from dataset roots, and spec values from overrides (--set KEY=VALUE)",
    )
    names = set(Ask.model_fields) - {"model", "action", "roots", "spec", "parents"}
    return build_ask(
        given.get("model"),
        given.get("action"),
        {name.removesuffix(ROOT): root for name, root in given.items() if name.endswith(ROOT)},
        spec=given.get("specs") or {},
        **{name: given[name] for name in names if given.get(name) is not None},
    )


def proofs_from(given: Parameters) -> Proofs:
    """What a person adds for the gates; who names an image has confirmed it."""
    return Proofs(
        image_confirmed=bool(given.get("image") or given.get("confirm_image")),
        mount_proof=given.get("mount_proof") or {},
        json_required_fields=given.get("json_required_fields") or {},
        extra_paths=given.get("paths") or {},
    )


def _refuse(given: Parameters, misplaced: Mapping[str, str], reason: str, remedy: str) -> None:
    found = [f"{name} ({option})" for name, option in misplaced.items() if given.get(name)]
    if found:
        raise InvalidInput(f"{', '.join(found)} {reason}", remedy)


def with_overrides(specs: Mapping[str, Any] | None, overrides: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A command's own spec with single values put in by dotted key. Raises InvalidInput for a bad key."""
    if specs is None and not overrides:
        return None
    spec = copy.deepcopy(dict(specs or {}))
    for key, value in (overrides or {}).items():
        try:
            set_pointer(spec, key, value)
        except ValueError as error:
            raise InvalidInput(str(error), "keys are pointers into the spec, such as train.optim.lr") from None
    return spec
