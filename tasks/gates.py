"""The seven gates as tasks: each a node in the run graph that must succeed, all findings collected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.utilities.annotations import quote

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.finding import Finding, blocking
from prefect_tao.preflight.ask import Resolved
from prefect_tao.preflight.gates import GATES, run_gate
from prefect_tao.preflight.launch import Launch
from prefect_tao.tasks.review import publish_findings, publish_review
from prefect_tao.tasks.secrets import load_secrets, supplied_credentials
from prefect_tao.tasks.targets import has_driver, open_target


@dataclass
class Gating:
    """One launch at its gates, and what they have found so far."""

    launch: Launch
    findings: dict[str, list[Finding]] = field(default_factory=dict)


@task(name="gate", task_run_name="gate: {name}", cache_policy=NO_CACHE, persist_result=False)
async def gate(name: str, gating: Gating) -> list[Finding]:
    """The findings of one gate. Raises InvalidInput when they forbid the launch."""
    found = await run_gate(name, gating.launch)
    gating.findings[name] = found
    if failed := blocking(found):
        raise InvalidInput.of(failed)
    return found


@dataclass(frozen=True)
class Proofs:
    """What a person adds for the gates besides the launch itself."""

    image_confirmed: bool = False
    mount_proof: Mapping[str, str] = field(default_factory=dict)
    json_required_fields: Mapping[str, Sequence[str]] = field(default_factory=dict)


async def pass_gates(
    resolved: Resolved, target: str, key: str, proofs: Proofs, after: Sequence[State[Any]] = ()
) -> list[State[Any]]:
    """The states of all seven gates, and the launch review. Raises InvalidInput with all that stands in the way."""
    platform = (await open_target(target)).platform if has_driver(target) else None
    entry = load_catalog().platforms.get(resolved.platform)
    needs = [*entry.required, *(name for group in entry.groups for name in group.one_of)] if entry else []
    names = dict.fromkeys((*needs, *resolved.credentials, *(resolved.request.secrets if resolved.request else ())))
    credentials = {**await supplied_credentials(target), **await load_secrets(names, target)}
    launch = Launch(
        load_catalog(),
        resolved,
        platform,
        credentials,
        proofs.image_confirmed,
        proofs.mount_proof,
        proofs.json_required_fields,
    )
    gating = Gating(launch)
    # Quoted, so that Prefect neither copies nor records it: the gates share one probe, and it holds credentials.
    states = await asyncio.gather(
        *(gate(name, quote(gating), wait_for=after, return_state=True) for name in GATES)  # type: ignore[call-overload]
    )
    found = {name: gating.findings.get(name, []) for name in GATES}
    failed = [finding for findings in found.values() for finding in blocking(findings)]
    if failed:
        await publish_findings(key, found)
        raise InvalidInput.of(failed)
    for state in states:
        await state.aresult()  # a gate that broke instead of answering
    if platform is not None:
        await publish_review(platform, resolved, key, found)
    return list(states)
