"""Looks at a launch without launching it: the gates, from the command line, before or instead of a flow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.jobs.errors import TaoError
    from prefect_tao.jobs.finding import Finding
    from prefect_tao.jobs.target import Target
    from prefect_tao.launch.session import Saved, Session
    from prefect_tao.preflight.checked_launch import Launch, Proofs
    from prefect_tao.preflight.plans.searches import PlannedSearch
    from prefect_tao.preflight.resolve.ask import Resolved

INDENT = " " * 10
LOUD = {"fail": "FAIL", "unknown": "UNKNOWN"}


# -- from parameters to a launch ---------------------------------------------------------------------------------------


@dataclass
class There:
    """A target as a look sees it: what is saved about it, and a session of the look's own, if one can be had."""

    target: Target
    saved: Saved
    session: Session | None = None
    refusal: TaoError | None = None

    def catalog(self, catalog: Catalog) -> Catalog:
        """The catalog as the flow reads it: with what a saved block says of its platform."""
        return self.saved.catalog(catalog, self.target.platform)

    async def with_count(self, given: dict[str, Any]) -> dict[str, Any]:
        """The parameters with the number of GPUs in place of all of them, where the target answers and knows it."""
        from prefect_tao.jobs.errors import TaoError
        from prefect_tao.preflight.resolve.all_gpus import counted

        with suppress(TaoError):  # the gates say what is wrong with the target
            return dict(await counted(given, self.session.platform)) if self.session else given
        return given

    async def with_price(self, search: PlannedSearch) -> PlannedSearch:
        """The search with what a GPU costs here, where somebody knows. Raises InvalidInput where a budget needs it."""
        from prefect_tao.jobs.errors import Unreachable

        price = search.budget.price
        if self.session and not price:
            with suppress(Unreachable):  # the gates say so
                price = await self.saved.price(self.session.platform, search.base.request)
        return search.at_price(price)


@asynccontextmanager
async def looking_at(catalog: Catalog, target: str) -> AsyncIterator[There]:
    """The target, its saved block loaded once; Prefect is needed only for that. Raises InvalidInput for no target."""
    from prefect_tao.catalog.lookup import find_platform
    from prefect_tao.jobs.errors import InvalidInput, MissingDependency
    from prefect_tao.jobs.target import Target
    from prefect_tao.launch.session import open_session, unsaved
    from prefect_tao.platforms import has_driver

    parsed = Target.parse(target)
    parsed = parsed._replace(platform=find_platform(catalog, parsed.platform) or parsed.platform)
    there = There(parsed, unsaved(parsed.platform))
    try:
        if parsed.block is not None:
            there.saved = await _saved(target)
        if has_driver(parsed.platform):
            there.session = open_session(parsed, there.saved)
    except (InvalidInput, MissingDependency) as error:
        there.refusal = error
    try:
        yield there
    finally:
        if there.session:
            await there.session.platform.close()


async def _saved(target: str) -> Saved:
    from prefect_tao.cli.running import use_prefect

    use_prefect()
    from prefect_tao.tasks.targets.opening import saved_for

    return await saved_for(target)


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


async def examine(
    catalog: Catalog, resolved: Resolved, there: There, proofs: Proofs, skip_access: bool = False
) -> Look:
    """The findings of all gates. Prefect is needed only for a saved block and for secrets that are nowhere else."""
    from prefect_tao.preflight.checked_launch import Launch
    from prefect_tao.preflight.gates import run_gates

    platform = there.session.platform if there.session else None
    credentials = await _credentials(catalog, resolved, there)
    launch = Launch(catalog, resolved, platform, credentials, **vars(proofs), refusal=there.refusal)
    launch.skip_access = skip_access
    return Look(resolved, await run_gates(launch), _rendered(launch))


def _rendered(launch: Launch) -> str:
    """What would be sent; nothing where the driver cannot write it down, which the compute gate says."""
    from prefect_tao.jobs.errors import InvalidInput

    if launch.platform is None or launch.resolved.request is None:
        return ""
    try:
        return launch.rendered().text
    except InvalidInput:
        return ""


async def _credentials(catalog: Catalog, resolved: Resolved, there: There) -> dict[str, str]:
    from prefect_tao.environment import variables

    named = [*resolved.credentials, *(resolved.request.secrets if resolved.request else ())]
    found = {name: value for name, value in variables(None).items() if name in (*catalog.credentials, *named)}
    found |= there.saved.credentials
    lacking = [name for name in named if not found.get(name, "").strip()]
    return {**found, **await _from_secret_blocks(lacking)} if lacking else found


async def _from_secret_blocks(names: Sequence[str]) -> dict[str, str]:
    from prefect_tao.cli.running import import_prefect
    from prefect_tao.cli.screen import Screen, console

    screen = Screen(console())
    import_prefect(screen)
    screen.quiet()
    from prefect_tao.tasks.targets.secret_values import from_running_server

    return await from_running_server(names)


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
