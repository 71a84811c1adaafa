"""`prefect-tao chain`: several actions, each with what those before it made."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefect_tao.cli.options import Given, Json, RunDir, SkillBank, Verbose, launches
from prefect_tao.launch.parameters.declared import ChainParameters
from prefect_tao.launch.parameters.derived import parameters

if TYPE_CHECKING:
    from prefect_tao.catalog.nouns import Catalog
    from prefect_tao.cli.examining import Look
    from prefect_tao.jobs.chain_outcome import ChainOutcome
    from prefect_tao.jobs.finding import Finding
    from prefect_tao.preflight.plans.step import Step

EPILOG = """\b
Examples:
  prefect-tao chain chain.yaml
  prefect-tao chain --recipe deploy --model dino --target slurm/polar --train-root /lustre/train \\
      --eval-root /lustre/eval --automl-policy off --confirm-image --dry-run
  prefect-tao chain chain.yaml --run-key nightly-7
"""


@launches(ChainParameters)
def chain(
    file: Annotated[Path | None, typer.Argument(help="YAML or JSON file: steps, model, target, ...")] = None,
    *,
    given: Given,
    skill_bank: SkillBank = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check all steps, show the plan, launch nothing.")] = False,
    verbose: Verbose = False,
    run_dir: RunDir = None,
    json_: Json = False,
) -> None:
    """Run steps that hand their results on, all of them checked before the first. Ctrl-C detaches; jobs go on."""
    from prefect_tao.cli.catalog import open_catalog
    from prefect_tao.preflight.plans.chain_plan import chosen_steps, plan_chain

    catalog = open_catalog(skill_bank)
    given = _with_file(file, given)
    planned = plan_chain(chosen_steps(given.get("steps"), given.get("recipe")), given, catalog)
    if dry_run:
        _show(asyncio.run(_view(catalog, planned)), json_)
        return
    if given.get("run_key") is None:
        _check_here(catalog, planned)
        given["run_key"] = f"chain-{token_hex(4)}"
    _run(given, planned, verbose, run_dir, json_)


def _with_file(file: Path | None, typed: Mapping[str, Any]) -> dict[str, Any]:
    """The flow's parameters: the file's, and over them what was typed. Raises InvalidInput."""
    from prefect_tao.cli.data_files import read_data
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.preflight.resolve.problems import did_you_mean, nearest

    if file is None and "recipe" not in typed:
        raise InvalidInput("neither a file nor a recipe was named", "write prefect-tao chain FILE, or --recipe deploy")
    found = read_data(file, "the chain") if file else {}
    if not isinstance(found, dict):
        raise InvalidInput(f"the chain {file} is not a map", "write steps: and below it a list of steps")
    known = parameters(ChainParameters)
    for key in found:
        if key not in known:
            remedy = did_you_mean(nearest(str(key), known, 1), f"a chain takes {', '.join(known)}")
            raise InvalidInput(f"the chain {file}: there is no parameter {key!r}", remedy)
    merged = {
        key: {**found[key], **typed[key]}
        for key in ("overrides", "env")
        if isinstance(found.get(key), dict) and key in typed
    }
    return {**found, **typed, **merged}


# -- a look ------------------------------------------------------------------------------------------------------------


@dataclass
class View:
    """A chain that is only looked at: by step what its gates found, and what was found about the chain itself."""

    steps: Sequence[Step]
    looks: dict[str, Look] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> list[Finding]:
        """All that forbids the chain, each with the name of its step."""
        return self.findings + [_of_step(name, one) for name, look in self.looks.items() for one in look.failed]

    @property
    def failed_here(self) -> list[Finding]:
        """The part of it that Prefect cannot change."""
        return self.findings + [_of_step(name, one) for name, look in self.looks.items() for one in look.failed_here]


def _of_step(name: str, finding: Finding) -> Finding:
    return finding.model_copy(update={"message": f"{name}: {finding.message}"})


async def _view(catalog: Catalog, planned: Sequence[Step], blocks: bool = True) -> View:
    """Every gate of every step; without `blocks` only of those whose target needs no saved one."""
    from prefect_tao.cli.examining import examine, looking_at
    from prefect_tao.jobs.errors import InvalidInput
    from prefect_tao.jobs.finding import blocking
    from prefect_tao.jobs.target import Target
    from prefect_tao.preflight.plans.searches import plan_search, search_given
    from prefect_tao.preflight.plans.step import named_findings, promised, resolve_step
    from prefect_tao.preflight.resolve.resolving import named_platform
    from prefect_tao.preflight.resolve.translating import proofs_from

    def platform_of(target: str) -> str:
        return named_platform(catalog, Target.parse(target).platform)

    view, promises = View(planned), {step.name: promised(step) for step in planned}
    if blocks:
        view.findings += await _movement(catalog, planned)
    for step in planned:  # one after another: they may share a connection
        try:
            if not blocks and Target.parse(step.target).block is not None:
                resolve_step(step, promises, platform_of, catalog)
                continue
            async with looking_at(catalog, step.target) as there:
                counted = replace(step, given=await there.with_count(dict(step.given)))
                known = there.catalog(catalog)
                resolved = resolve_step(counted, promises, platform_of, known)
                if step.searches and not blocking(resolved.findings):
                    search = plan_search(search_given(counted, promises, resolved), resolved.platform, known)
                    await there.with_price(search)
                view.looks[step.name] = await examine(known, resolved, there, proofs_from(step.given))
        except InvalidInput as error:
            view.findings += named_findings(step.name, error)
    return view


async def _movement(catalog: Catalog, planned: Sequence[Step]) -> list[Finding]:
    """What cannot be handed on between different targets; only then Prefect is needed for their blocks."""
    from prefect_tao.preflight.plans.movement import crossings

    if not crossings(planned):
        return []
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    from prefect_tao.tasks.step_checks import check_movement

    return await check_movement(planned, catalog)


def _check_here(catalog: Catalog, planned: Sequence[Step]) -> None:
    """Find what is wrong before Prefect is even started. What needs a saved block is checked by the flow."""
    from prefect_tao.jobs.errors import refusal

    view = asyncio.run(_view(catalog, planned, blocks=False))
    if failed := view.failed_here:
        raise refusal(failed)


def _show(view: View, as_json: bool) -> None:
    from prefect_tao.cli.catalog import emit
    from prefect_tao.jobs.errors import to_fix
    from prefect_tao.jobs.finding import causes, exit_code, worst_first

    if as_json:
        emit({"passed": not view.failed, "steps": _steps_json(view), "findings": _dumped(view.findings)})
    else:
        for number, step in enumerate(view.steps, 1):
            _show_step(number, step, view.looks.get(step.name))
        for finding in worst_first(view.findings):
            _show_finding(finding)
        typer.echo(f"the chain {f'cannot start: {to_fix(len(causes(view.failed)))}' if view.failed else 'can start'}")
    if view.failed:
        raise typer.Exit(exit_code(view.failed))


def _show_step(number: int, step: Step, look: Look | None) -> None:
    from prefect_tao.jobs.finding import worst_first

    after = f", after {', '.join(step.after)}" if step.after else ""
    typer.echo(f"{number}. {step.name}: {step.title} on {step.target}{after}")
    if look is not None and look.resolved.image:
        typer.echo(f"     image: {look.resolved.image}")
    for key, others in step.takes.items():
        typer.echo(f"     takes: {key} from {', '.join(others)}")
    if look is not None:
        found = [one for findings in look.gates.values() for one in findings if one.level.value != "ok"]
        for finding in worst_first(found):
            _show_finding(finding)


def _show_finding(finding: Finding) -> None:
    from prefect_tao.cli.examining import LOUD

    level = finding.level.value
    typer.echo(f"     {LOUD.get(level, level)}: {finding.message}")
    if finding.remedy:
        typer.echo(f"       what to do: {finding.remedy}")


def _steps_json(view: View) -> list[dict[str, Any]]:
    from prefect_tao.cli.examining import as_json

    rows = []
    for step in view.steps:
        look = view.looks.get(step.name)
        told = {"name": step.name, "title": step.title, "target": step.target, "after": list(step.after)}
        rows.append(
            {
                **told,
                "takes": {key: list(others) for key, others in step.takes.items()},
                "makes": list(step.makes),
                "image": look.resolved.image if look else None,
                "gates": as_json(look.gates) if look else {},
                "rendered": look.rendered if look else "",
            }
        )
    return rows


def _dumped(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    return [finding.model_dump(mode="json") for finding in findings]


# -- the run -----------------------------------------------------------------------------------------------------------


def _run(given: Mapping[str, Any], planned: Sequence[Step], verbose: bool, run_dir: Path | None, as_json: bool) -> None:
    from prefect_tao.cli.boards import ChainScreen
    from prefect_tao.cli.running import run_flow
    from prefect_tao.cli.screen import console
    from prefect_tao.jobs.errors import JobFailed

    screen = ChainScreen(console(), str(given["run_key"]), planned)
    try:
        outcome: ChainOutcome = run_flow("chain", screen, verbose, run_dir, **given)
    except JobFailed:
        screen.out.print("To go on at what failed, once it is fixed:")
        for command in screen.way_back():
            screen.out.print(f"  {command}", soft_wrap=True, markup=False)
        raise
    if as_json:
        sys.stdout.write(outcome.model_dump_json(indent=2) + "\n")
        return
    for step in outcome.steps:
        if step.outcome:
            screen.out.print(f"  {step.name}: results in {step.outcome.results}", soft_wrap=True, markup=False)
            for name, value in sorted(step.outcome.metrics.items()):
                screen.out.print(f"    {name} {value:.4g}", markup=False)
