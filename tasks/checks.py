"""All gates of one step at once, before the first job of a chain is launched: one node in the run graph per step."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import quote

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding, Level, blocking
from prefect_tao.preflight.ask import Resolved
from prefect_tao.preflight.gates import run_gates
from prefect_tao.preflight.launch import Launch, Proofs
from prefect_tao.preflight.movement import Kept, kept_by
from prefect_tao.tasks.gates import prepare_launch
from prefect_tao.tasks.targets import canonical, supplied_credentials


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


def named_findings(step: str, error: InvalidInput) -> list[Finding]:
    """What an error means for a step, with the step's name before each finding."""
    said = error.findings or [Finding(level=Level.FAIL, check=step, message=error.cause, remedy=error.remedy)]
    return [found.model_copy(update={"message": f"{step}: {found.message}"}) for found in said]


async def kept_at(target: str) -> Kept:
    """Where the results of jobs at `target` go."""
    entry = load_catalog().platforms.get(canonical(target).platform)
    return kept_by(entry, await supplied_credentials(target)) if entry else "folder"
