"""From a launch's parameters, which a form, a script and the command line give alike, to request, ask and proofs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import JobRequest, Resources
from prefect_tao.launch.parameters.declared import StepParameters
from prefect_tao.launch.parameters.derived import parameters
from prefect_tao.launch.parameters.storable import check_storable
from prefect_tao.preflight.checked_launch import Proofs
from prefect_tao.preflight.resolve.ask import Ask
from prefect_tao.runner.inside.pointers import set_pointer

Parameters = Mapping[str, Any]


def request_from(given: Parameters) -> JobRequest:
    """The request of a plain command. Raises InvalidInput."""
    check_storable(given)
    _refuse(
        given,
        "action",
        "is for an action of the catalog, and a command was given",
        "declare the data of a command with inputs (--input PATH=LOCATION)",
    )
    if given.get("model") is not None:
        raise InvalidInput(
            f"both a command and the model {given['model']} were given, and only one of them can run",
            "leave the command out to run the model's action, or leave --model (model=...) out to run the command",
        )
    names = set(JobRequest.model_fields) - {"specs", "resources"}
    return JobRequest.build(
        **{name: given[name] for name in names if given.get(name) is not None},
        specs=with_overrides(given.get("specs"), given.get("overrides")),
        resources={name: given[name] for name in Resources.model_fields if given.get(name) is not None},
    )


def ask_from(given: Parameters) -> Ask:
    """The ask for an action of the catalog. Raises InvalidInput."""
    _refuse(
        given,
        "command",
        "is for a command, and an action of the catalog was named",
        "leave it out; data comes from dataset roots, and spec values from overrides (--set KEY=VALUE)",
    )
    known = parameters(StepParameters)
    return Ask.of(**{name: value for name, value in given.items() if name in known and value is not None})


def proofs_from(given: Parameters) -> Proofs:
    """What a person adds for the gates; who names an image has confirmed it. Raises InvalidInput."""
    for path, how in (given.get("mount_proof") or {}).items():
        if not path.startswith("/") or not how.strip():
            raise InvalidInput(
                f"--mount-proof {path}={how} (mount_proof) does not say of a path how it is mounted",
                "write the path from the root on, and what mounts it, for example /data=nfs",
            )
    return Proofs(
        image_confirmed=bool(given.get("image") or given.get("confirm_image")),
        mount_proof=given.get("mount_proof") or {},
        json_required_fields=given.get("json_required_fields") or {},
        extra_paths=given.get("paths") or {},
    )


def _refuse(given: Parameters, only: str, reason: str, remedy: str) -> None:
    """Raises InvalidInput where something was given that is for the other kind of launch."""
    misplaced = (one for one in parameters(StepParameters).values() if one.only == only)
    if found := [
        f"{one.name} ({one.spelling})" for one in misplaced if given.get(one.name) not in (None, one.default, [], {})
    ]:
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
