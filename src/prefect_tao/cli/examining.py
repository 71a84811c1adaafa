"""Looks at a launch without launching it: the gates, from the command line, before or instead of a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.jobs.finding import Finding
    from prefect_tao.jobs.platform import Platform
    from prefect_tao.preflight.ask import Resolved

LOUD = {"fail": "FAIL", "unknown": "UNKNOWN"}


def resolved_from(
    catalog: Catalog,
    *,
    model: str | None,
    action: str | None,
    target: str,
    image: str | None,
    roots: Mapping[str, Sequence[str] | None],
    spec: Path | None,
    overrides: Sequence[str],
    secrets: Sequence[str],
    policy: str,
    **resources: Any,
) -> Resolved:
    """What a person's options resolve to. Raises InvalidInput."""
    from prefect_tao.cli.options import pairs, parse_value, read_spec
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.preflight.asking import build_ask, resolve_ask

    if policy not in ("on", "off"):
        raise InvalidInput(f"--automl-policy {policy!r} is not known", "use on or off")
    ask = build_ask(
        model,
        action,
        {source: tuple(root) for source, root in roots.items() if root},
        target=target,
        image=image,
        spec=read_spec(spec) if spec else {},
        overrides={key: parse_value(text) for key, text in pairs(overrides, "--set").items()},
        secrets=tuple(secrets),
        **resources,
    )
    return resolve_ask(ask, policy, catalog)  # type: ignore[arg-type]


async def examine(
    catalog: Catalog, resolved: Resolved, target: str, **proofs: Any
) -> tuple[Platform | None, dict[str, list[Finding]]]:
    """The driver, if there is one, and the findings of all gates. Prefect is needed only to load a saved block."""
    from prefect_tao.cli.jobs import open_any
    from prefect_tao.environment import variables
    from prefect_tao.jobs.target import Target
    from prefect_tao.platforms import DRIVERS
    from prefect_tao.preflight.gates import run_gates
    from prefect_tao.preflight.launch import Launch

    parsed = Target.parse(target)
    known = resolved.platform in DRIVERS
    platform = await open_any(str(parsed._replace(platform=resolved.platform))) if known else None
    asked = (*catalog.credentials, *(resolved.request.secrets if resolved.request else ()))
    credentials = {name: value for name, value in variables(None).items() if name in asked}
    if parsed.block is not None:
        from prefect_tao.settings import prepare_prefect

        prepare_prefect()
        from prefect_tao.tasks.secrets import supplied_credentials

        credentials |= await supplied_credentials(target)
    return platform, await run_gates(Launch(catalog, resolved, platform, credentials, **proofs))


def required_fields(words: Sequence[str]) -> dict[str, list[str]]:
    """`KEY=FIELD[,FIELD]` words as a map."""
    from prefect_tao.cli.options import pairs

    return {key: fields.split(",") for key, fields in pairs(words, "--json-required-field").items()}


def print_findings(gates: Mapping[str, Sequence[Finding]]) -> None:
    """All findings, gate by gate."""
    for gate, findings in gates.items():
        typer.echo(f"{gate.replace('_', ' ')}:")
        for finding in findings:
            level = finding.level.value
            typer.echo(f"  {LOUD.get(level, level):8}{finding.message}")
            if finding.remedy and level != "ok":
                typer.echo(f"          what to do: {finding.remedy}")


def as_json(gates: Mapping[str, Sequence[Finding]]) -> dict[str, list[dict[str, Any]]]:
    """All findings for programs."""
    return {gate: [finding.model_dump(mode="json") for finding in findings] for gate, findings in gates.items()}
