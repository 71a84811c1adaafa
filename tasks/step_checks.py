"""All gates of one step at once, before the first job of a chain is launched: one node in the run graph per step."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import quote

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding, blocking
from prefect_tao.preflight.checked_launch import Launch, Proofs
from prefect_tao.preflight.gates import run_gates
from prefect_tao.preflight.plans.movement import Kept, crossings, kept_by, movement_findings
from prefect_tao.preflight.plans.step import Step, named_findings
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.tasks.gate_tasks import prepare_launch
from prefect_tao.tasks.targets.opening import canonical, supplied_credentials


@task(name="check", task_run_name="check: {step}", cache_policy=NO_CACHE, persist_result=False)
async def check(step: str, launch: Launch) -> dict[str, list[Finding]]:
    """The findings of all gates. Raises InvalidInput when they forbid the launch."""
    found = await run_gates(launch)
    if failed := [finding for findings in found.values() for finding in blocking(findings)]:
        raise InvalidInput.of(failed)
    return found


async def check_step(step: str, resolved: Resolved, target: str, proofs: Proofs) -> list[Finding]:
    """What stands in the way of a step, with its name before each finding; empty when nothing does."""
    launch = await prepare_launch(resolved, target, proofs)
    try:
        # Quoted, so that Prefect neither copies nor records it: it holds credentials.
        await check(step, quote(launch))  # type: ignore[call-overload]
    except InvalidInput as error:
        return named_findings(step, error)
    return []


async def check_movement(steps: Sequence[Step], catalog: Catalog | None = None) -> list[Finding]:
    """What cannot be handed on between targets. The checks of its own steps report a target that does not open."""
    kept = {}
    with suppress(InvalidInput):
        for _, other in crossings(steps):
            with suppress(InvalidInput):
                kept[other.target] = await _kept_at(other.target)
        return movement_findings(steps, lambda target: canonical(target).platform, kept, catalog)
    return []


async def _kept_at(target: str) -> Kept:
    """Where the results of jobs at `target` go."""
    entry = load_catalog().platforms.get(canonical(target).platform)
    return kept_by(entry, await supplied_credentials(target)) if entry else "folder"
