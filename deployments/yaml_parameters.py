"""Parameters in prefect.yaml that the form would refuse, and secrets anywhere in it, found before anything is deployed.

Prefect's own command stores what the file says under a schema that knows nothing of secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import validate

from prefect_tao.deployments.described import TEMPLATE, Described
from prefect_tao.deployments.forms import CALLED, TOLD, form
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.request import CREDENTIAL_NAME, CREDENTIAL_PATTERN, masked
from prefect_tao.preflight.resolve.problems import did_you_mean, fail, nearest

KEPT_AS_WRITTEN = ("build", "push", "pull")
REFERENCE = re.compile(r"{{\s*(?:prefect\.blocks\.[^}]*|\$(\w+)\s*)}}")
REMEDY = "give its name under secrets, and its value in a block or in the environment of the worker"


def parameter_findings(deployments: Sequence[Described]) -> list[Finding]:
    """One finding per secret in these deployments, and per parameter of them and of their schedules that is wrong."""
    found = []
    for one in deployments:
        stored = {key: value for key, value in one.entry.items() if key not in KEPT_AS_WRITTEN}
        for where, what in _secrets(stored, ""):
            found.append(fail("secrets", masked(f"{one.entry['name']}: {where} {what}"), REMEDY))
        if one.ours:
            found += _refused(one)
    return found


def _secrets(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Where one is, and what it looks like. A key is a text like any other."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            here = f"{where}.{key}" if where else str(key)
            if where.rpartition(".")[2] == "env" and re.search(CREDENTIAL_NAME, str(key), re.IGNORECASE):
                yield here, "is called like a secret"
            yield from _secrets(str(key), here)
            yield from _secrets(inner, here)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _secrets(inner, f"{where}[{number}]")
    elif isinstance(value, str):
        if re.search(CREDENTIAL_PATTERN, value):
            yield where, "holds a key or token"
        for reference in REFERENCE.finditer(value):
            if reference[1] is None or re.search(CREDENTIAL_NAME, reference[1], re.IGNORECASE):
                yield where, "refers to a secret, which would be stored in clear"


def _refused(described: Described) -> Iterator[Finding]:
    """What the form of the flow refuses; a value that Prefect fills in is judged by the server."""
    name, flow = described.entry["name"], described.flow
    schema = form(dict(parameter_schema(flow)), {})
    known = list(schema["properties"])
    for given in (
        described.entry.get("parameters") or {},
        *(one.get("parameters") or {} for one in described.schedules),
    ):
        for key in given:
            if key not in known:
                message = f"{name}: the flow {flow.name} has no parameter {key}"
                remedy = did_you_mean(nearest(str(key), known), f"it has {', '.join(known)}")
                yield fail(f"parameter {key}", message, remedy)
        for error in validate(given, schema, ignore_required=True):
            where = error.json_path.removeprefix("$.")
            if where == "$" or TEMPLATE in str(error.instance) or any(told in error.message for told in (TOLD, CALLED)):
                continue
            yield fail(
                f"parameter {where}", masked(f"{name}: {where}: {error.message}"), f"it is: {_meant(schema, where)}"
            )


def _meant(schema: Mapping[str, Any], where: str) -> str:
    """What a parameter is, in the words of its form."""
    parameter = re.split(r"[.\[]", where)[0]
    return str(schema["properties"].get(parameter, {}).get("description", "described on the page of the deployment"))
