"""Looks at a launch without launching it: the gates, from the command line, before or instead of a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.jobs.finding import Finding
    from prefect_tao.jobs.platform import Platform
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.checked_launch import Proofs
    from prefect_tao.preflight.resolve.ask import Resolved

INDENT = " " * 10
LOUD = {"fail": "FAIL", "unknown": "UNKNOWN"}


# -- from parameters to a launch ---------------------------------------------------------------------------------------


async def catalog_for(catalog: Catalog, target: str) -> Catalog:
    """The catalog as the flow reads it: with what a saved block says of its platform. Raises InvalidInput."""
    from prefect_tao.jobs.target import Target

    if Target.parse(target).block is None:
        return catalog
    from prefect_tao.cli.running import use_prefect

    use_prefect()
    from prefect_tao.tasks.targets.opening import catalog_of

    return await catalog_of(target)


async def with_count(given: dict[str, Any], skip_access: bool = False) -> dict[str, Any]:
    """The parameters with the number of GPUs in place of all of them, where the target answers and knows it."""
    from prefect_tao.cli.jobs import open_any
    from prefect_tao.jobs.errors import TaoError
    from prefect_tao.preflight.resolve.all_gpus import counted, wants_all

    if skip_access or not wants_all(given):
        return given
    with suppress(TaoError):  # the gates tell what is wrong with the target
        platform = await open_any(given["target"])
        try:
            return dict(await counted(given, platform))
        finally:
            await platform.close()
    return given


def resolved_from(catalog: Catalog, given: Mapping[str, Any]) -> Resolved:
    """What the parameters of an action resolve to. Raises InvalidInput."""
    from prefect_tao.preflight.resolve.resolving import resolve_ask
    from prefect_tao.preflight.resolve.translating import ask_from

    return resolve_ask(ask_from(given), catalog)


# -- a look ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What the gates found, and what would be sent."""

    resolved: Resolved
    gates: dict[str, list[Finding]]
    rendered: str

    @property
    def failed(self) -> list[Finding]:
        """All that forbids the launch."""
        from prefect_tao.jobs.finding import blocking

        return [finding for findings in self.gates.values() for finding in blocking(findings)]

    @property
    def failed_here(self) -> list[Finding]:
        """What forbids the launch whatever Prefect holds: a missing secret may be in one of its blocks."""
        from prefect_tao.preflight.gates import GATES

        return [finding for finding in self.failed if not GATES[finding.gate].needs_prefect]

    def as_json(self) -> dict[str, Any]:
        """Everything, for programs."""
        told = self.resolved.model_dump(mode="json")
        return {**told, "gates": as_json(self.gates), "rendered": self.rendered, "passed": not self.failed}


async def examine(catalog: Catalog, resolved: Resolved, target: str, proofs: Proofs, skip_access: bool = False) -> Look:
    """The findings of all gates. Prefect is needed only for a saved block and for secrets that are nowhere else."""
    from prefect_tao.cli.jobs import open_any
    from prefect_tao.jobs.errors import InvalidInput, MissingDependency
    from prefect_tao.jobs.target import Target
    from prefect_tao.platforms import has_driver
    from prefect_tao.preflight.checked_launch import Launch
    from prefect_tao.preflight.gates import run_gates

    parsed, platform, refusal = Target.parse(target), None, None
    if has_driver(resolved.platform):
        try:
            platform = await open_any(str(parsed._replace(platform=resolved.platform)))
        except (InvalidInput, MissingDependency) as error:
            refusal = error
    try:
        credentials = await _credentials(catalog, resolved, parsed)
        launch = Launch(catalog, resolved, platform, credentials, **vars(proofs), refusal=refusal)
        launch.skip_access = skip_access
        return Look(resolved, await run_gates(launch), _rendered(platform, resolved))
    finally:
        if platform is not None:
            await platform.close()


def _rendered(platform: Platform | None, resolved: Resolved) -> str:
    """What would be sent; nothing where the driver cannot write it down, which the compute gate tells."""
    from prefect_tao.jobs.errors import InvalidInput

    if platform is None or resolved.request is None:
        return ""
    try:
        return platform.render(resolved.request, "0" * 16, 1).text
    except InvalidInput:
        return ""


async def _credentials(catalog: Catalog, resolved: Resolved, target: Target) -> dict[str, str]:
    from prefect_tao.environment import variables

    named = [*resolved.credentials, *(resolved.request.secrets if resolved.request else ())]
    found = {name: value for name, value in variables(None).items() if name in (*catalog.credentials, *named)}
    if target.block is not None:
        from prefect_tao.cli.running import use_prefect

        use_prefect()
        from prefect_tao.tasks.targets.opening import supplied_credentials

        found |= await supplied_credentials(str(target))
    lacking = [name for name in named if not found.get(name, "").strip()]
    return {**found, **await _from_secret_blocks(lacking)} if lacking else found


async def _from_secret_blocks(names: Sequence[str]) -> dict[str, str]:
    """What Prefect's Secret blocks hold, where a server runs; one that is only started for a flow is not asked."""
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    from prefect_tao.jobs.errors import Unreachable
    from prefect_tao.tasks.targets.secret_values import load_secrets
    from prefect_tao.tasks.targets.servers import check_server, server_url

    if server_url() is None:
        return {}
    with suppress(Unreachable):
        await check_server()
        return await load_secrets(names, {})
    return {}


def print_findings(gates: Mapping[str, Sequence[Finding]]) -> None:
    """All findings, gate by gate; what failed comes first."""
    from prefect_tao.jobs.finding import gates_worst_first, worst_first

    for gate, findings in gates_worst_first(gates):
        typer.echo(f"{gate.replace('_', ' ')}:")
        for finding in worst_first(findings):
            level = finding.level.value
            typer.echo(f"  {LOUD.get(level, level):8}{finding.message}")
            if finding.remedy and level != "ok":
                typer.echo(f"{INDENT}what to do: " + finding.remedy.replace("\n", f"\n{INDENT}"))


def print_passed(gates: Mapping[str, Sequence[Finding]]) -> None:
    """The end of a dry run, beside what would be sent: its warnings, and that nothing was launched."""
    from prefect_tao.jobs.finding import Level

    for finding in (one for findings in gates.values() for one in findings if one.level is Level.WARN):
        typer.echo(f"warn: {finding.message}" + (f"; {finding.remedy}" if finding.remedy else ""), err=True)
    typer.echo("all gates pass; nothing was launched", err=True)


def as_json(gates: Mapping[str, Sequence[Finding]]) -> dict[str, list[dict[str, Any]]]:
    """All findings for programs."""
    return {gate: [finding.model_dump(mode="json") for finding in findings] for gate, findings in gates.items()}
