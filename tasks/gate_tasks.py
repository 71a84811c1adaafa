"""The seven gates as tasks: each a node in the run graph that must succeed, all findings collected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.utilities.annotations import quote

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.jobs.errors import InvalidInput, MissingDependency, TaoError, refusal
from prefect_tao.jobs.finding import IMAGE, Finding, GateName, blocking
from prefect_tao.jobs.platform import Platform
from prefect_tao.launch.job_secrets import launch_credentials
from prefect_tao.launch.session import surrounding_credentials
from prefect_tao.preflight.checked_launch import NO_KEY, Launch, Proofs
from prefect_tao.preflight.gates import GATES, run_gate
from prefect_tao.preflight.plans.step import named_findings
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.tasks.artifacts.review import publish_findings, publish_review
from prefect_tao.tasks.targets.opening import has_driver, open_target, supplied_credentials
from prefect_tao.tasks.targets.secret_values import load_secrets


@dataclass
class Gating:
    """One launch at its gates, and what they have found so far."""

    launch: Launch
    findings: dict[str, list[Finding]] = field(default_factory=dict)

    @property
    def failed(self) -> list[Finding]:
        """All that forbids the launch, in the order of the gates."""
        return [finding for name in GATES for finding in blocking(self.findings.get(name, []))]


@task(name="gate", task_run_name="gate: {name}", cache_policy=NO_CACHE, persist_result=False)
async def gate(name: GateName, steps: Mapping[str, Gating]) -> None:
    """Ask one gate about one launch, or about all steps of a chain. Raises InvalidInput when it forbids any."""
    found = await asyncio.gather(*(run_gate(name, gating.launch) for gating in steps.values()))
    failed = []
    for (step, gating), findings in zip(steps.items(), found, strict=True):
        gating.findings[name] = findings
        failed += named_findings(step, blocking(findings))
    if failed:
        raise InvalidInput.of(failed)


class Passed(NamedTuple):
    """A launch that may go on, as a person may have changed it, and the states of the gates it passed."""

    resolved: Resolved
    states: list[State[Any]]


# Asks a person about the image, and returns the launch with the one that was chosen. Raises JobCanceled.
Confirm = Callable[[Resolved], Awaitable[Resolved]]


async def pass_gates(
    resolved: Resolved,
    target: str,
    key: str,
    proofs: Proofs,
    after: Sequence[State[Any]] = (),
    confirm: Confirm | None = None,
) -> Passed:
    """Pass all seven gates and leave the launch review. Raises `refusal`, with all that stands in the way.

    With `confirm` the image is the last gate: a person is asked about it only when all else is good.
    """
    gating = Gating(await prepare_launch(resolved, target, proofs, key))
    others = [name for name in GATES if confirm is None or name != IMAGE]
    states = await ask_gates(others, {"": gating}, after)
    if confirm is not None:
        if not gating.failed:
            chosen = await confirm(resolved)
            if chosen != resolved:  # what the platform said of the old image does not hold for another
                gating.launch = await prepare_launch(chosen, target, proofs, key)
                changed = [name for name in GATES if GATES[name].names_image]
                states |= await ask_gates(changed, {"": gating}, after)
            gating.launch.image_confirmed = True
        gating.launch.will_be_asked = True
        states |= await ask_gates([IMAGE], {"": gating}, after)
    return await admit(gating, target, key, list(states.values()))


async def admit(gating: Gating, target: str, key: str, states: list[State[Any]]) -> Passed:
    """The launch that has passed, with its review left for people. Raises `refusal` when it has not."""
    resolved = gating.launch.resolved
    found: dict[str, list[Finding]] = {name: gating.findings.get(name, []) for name in GATES}
    what = f"{resolved.model} {resolved.action}".strip() or "command"
    if gating.failed:
        await publish_findings(f"{what} on {target}", key, found)
        raise refusal(gating.failed)
    for state in states:
        await state.aresult()  # a gate that broke instead of answering
    get_run_logger().info("%s on %s: all %d gates pass", what, target, len(GATES))
    if gating.launch.platform is not None:
        rendered = gating.launch.rendered()
        (await open_target(target)).keep(rendered)
        await publish_review(gating.launch.platform.target, resolved, rendered, found)
    return Passed(resolved, states)


async def prepare_launch(resolved: Resolved, target: str, proofs: Proofs, key: str = NO_KEY) -> Launch:
    """A launch with all that its gates need: the driver, and what is supplied for it.

    Where the target's block cannot be loaded, the gates report that, with all else that is wrong.
    """
    platform: Platform | None = None
    refusal: TaoError | None = None
    if has_driver(target):
        try:
            platform = (await open_target(target)).platform
        except (InvalidInput, MissingDependency) as error:
            refusal = error
    entry = load_catalog().platforms.get(resolved.platform)
    try:
        supplied = await supplied_credentials(target)
    except InvalidInput as error:
        supplied, refusal = surrounding_credentials(), refusal or error
    credentials = await launch_credentials(resolved, entry, supplied, load_secrets)
    return Launch(load_catalog(), resolved, platform, credentials, **vars(proofs), refusal=refusal, key=key)


async def ask_gates(
    names: Iterable[GateName], steps: Mapping[str, Gating], after: Sequence[State[Any]] = ()
) -> dict[GateName, State[Any]]:
    """The states of these gates, asked side by side."""
    names = list(names)
    # Quoted, so that Prefect neither copies nor records it: the gates share one probe, and it holds credentials.
    states = await asyncio.gather(
        *(gate(name, quote(steps), wait_for=after, return_state=True) for name in names)  # type: ignore[call-overload]
    )
    return dict(zip(names, states, strict=True))
