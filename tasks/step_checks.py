"""The checks of a chain: the gates about all steps before the first launch, and one node for a step's second check."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.utilities.annotations import quote

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.checked_launch import Proofs
from prefect_tao.preflight.gates import run_gates
from prefect_tao.preflight.plans.movement import Kept, crossings, kept_by, movement_findings
from prefect_tao.preflight.plans.step import Step
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.tasks.gate_tasks import Gating, Passed, admit, prepare_launch
from prefect_tao.tasks.targets.opening import canonical, supplied_credentials


@task(name="check", task_run_name="check: {step}", cache_policy=NO_CACHE, persist_result=False)
async def check(step: str, gating: Gating) -> None:
    """Ask all gates at once. Raises InvalidInput when they forbid the launch."""
    gating.findings |= await run_gates(gating.launch)
    if gating.failed:
        raise InvalidInput.of(gating.failed)


async def check_again(
    step: str, resolved: Resolved, target: str, key: str, proofs: Proofs, after: Sequence[State[Any]]
) -> Passed:
    """Pass the gates once more, now that what the step takes from others is there. Raises `refusal`."""
    gating = Gating(await prepare_launch(resolved, target, proofs, key))
    # Quoted, so that Prefect neither copies nor records it: it holds credentials.
    state: Any = await check(step, quote(gating), wait_for=after, return_state=True)  # type: ignore[misc]
    return await admit(gating, target, key, [state])


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
