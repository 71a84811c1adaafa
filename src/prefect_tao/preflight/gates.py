"""The launch gate in seven parts. Each returns all its findings; nothing is written anywhere until none of them blocks.

They run side by side. Those that need the connection await the one probe that all of them share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from prefect_tao.catalog.lookup import find_platform, nearest_platforms
from prefect_tao.jobs.errors import InvalidInput, TaoError
from prefect_tao.jobs.finding import (
    COMPUTE,
    IMAGE,
    MODEL_CREDENTIALS,
    NO_GATE,
    PLATFORM,
    REACHABLE,
    Finding,
    GateName,
    Level,
    worst_first,
)
from prefect_tao.jobs.request import ALL_GPUS, JobRequest
from prefect_tao.preflight.checked_launch import SKIPPED, Launch, error_findings
from prefect_tao.preflight.checks.credentials import (
    SSH_REMEDY,
    conditional_findings,
    hide_values,
    model_needs,
    need_findings,
    platform_needs,
)
from prefect_tao.preflight.checks.host_versions import disk_finding, host_findings, host_minimum
from prefect_tao.preflight.checks.visibility import check_visibility, names_nothing, uses_bucket
from prefect_tao.preflight.resolve.datasets import is_training
from prefect_tao.preflight.resolve.problems import did_you_mean, fail
from prefect_tao.runner.inside.schemes import bucket_uri

DATASETS = GateName("datasets")
Check = Callable[[Launch], Awaitable[list[Finding]]]


@dataclass(frozen=True)
class Gate:
    """One part of the launch gate."""

    check: Check
    # Sends the request to the platform, and with it the name of the image.
    names_image: bool = False
    # May find missing what Prefect holds, so that it cannot refuse a launch before Prefect is asked.
    needs_prefect: bool = False


# All gates by name, in the order they are shown; a gate is declared by the decorator of its function, and nowhere else.
GATES: dict[GateName, Gate] = {}


def _gate(name: GateName, *, names_image: bool = False, needs_prefect: bool = False) -> Callable[[Check], Check]:
    def declared(check: Check) -> Check:
        GATES[name] = Gate(check, names_image, needs_prefect)
        return check

    return declared


def _own(launch: Launch, *gates: GateName) -> list[Finding]:
    """What the resolution found for these gates."""
    return [finding for finding in launch.resolved.findings if finding.gate in gates]


# -- the gates ---------------------------------------------------------------------------------------------------------


@_gate(PLATFORM)
async def check_platform(launch: Launch) -> list[Finding]:
    """The platform is one that the catalog knows."""
    own, said = _own(launch, PLATFORM), launch.resolved.platform
    if found := find_platform(launch.catalog, said):
        return [*own, _ok("platform", f"platform: {launch.catalog.platforms[found].title}")]
    if any(finding.blocks for finding in own):
        return own
    known = f"choose one of {', '.join(launch.catalog.platforms)}"
    remedy = did_you_mean(nearest_platforms(launch.catalog, said), known)
    return [*own, fail("platform", f"there is no platform {said!r}", remedy)]


@_gate(GateName("platform_credentials"))
async def check_platform_credentials(launch: Launch) -> list[Finding]:
    """What the platform and the locations need is supplied."""
    entry = launch.entry
    if entry is None:
        return [_unchecked("credentials", "not checked: the platform is not known", "choose the platform first")]
    refusal = launch.refusal
    if isinstance(refusal, InvalidInput) and not any(finding.follows for finding in refusal.findings):
        return [_unchecked("credentials", f"not checked: {launch.platform_name} cannot be opened", "")]
    named = [uri for uri in launch.uris() if not names_nothing(uri)]
    uris = [*named, *([bucket_uri("")] if uses_bucket(entry, launch.credentials) else [])]
    needs, own = platform_needs(launch.catalog, launch.platform_name, uris), list[Finding]()
    lacks_key = any(need.is_ssh and not need.met(launch.credentials) for need in needs)
    if lacks_key and launch.platform is not None and (key := await launch.platform.own_login()):
        needs = [need for need in needs if not need.is_ssh]
        own = [_ok("credential SSH_KEY_PATH", f"the login goes by {key}, as ssh's own configuration says")]
    findings = own + await asyncio.to_thread(need_findings, needs, launch.credentials)
    return findings or [_ok("credentials", f"{launch.platform_name} needs no credentials for this launch")]


@_gate(MODEL_CREDENTIALS, needs_prefect=True)
async def check_model_credentials(launch: Launch) -> list[Finding]:
    """What the model needs on any platform, and what the job names besides, is supplied."""
    resolved, request = launch.resolved, launch.resolved.request
    named = dict.fromkeys((*resolved.credentials, *(request.secrets if request else ())))
    findings = _own(launch, MODEL_CREDENTIALS)
    findings += need_findings(model_needs(launch.catalog, resolved.model, named), launch.credentials)
    findings += conditional_findings(launch.catalog, resolved.model, launch.credentials)
    return findings or [_ok("credentials", f"{resolved.model} needs no credentials")]


@_gate(IMAGE)
async def check_image(launch: Launch) -> list[Finding]:
    """The image is known, and a person has said yes to it."""
    findings, image = _own(launch, IMAGE), launch.resolved.image
    if launch.entry and not launch.entry.containers:
        return [*findings, _ok("image", f"image: none is used, because {launch.platform_name} runs no containers")]
    if image is None and launch.platform is not None and launch.platform.runs_bare:
        return [*findings, _ok("image", "image: none; the command runs on the node itself, as the block allows")]
    if image is None:
        if not any(finding.blocks for finding in findings):
            findings.append(fail("image", "image: none is resolved", "name one with --image (image=...)"))
        return findings
    shown = f"image: {image} (from {launch.resolved.image_source})"
    if launch.image_confirmed:
        return [*findings, _ok("image", shown)]
    if launch.will_be_asked:
        message = f"{shown}: a person is asked to confirm it when everything else is good"
        return [*findings, Finding(level=Level.DEFERRED, subject="image", message=message)]
    remedy = "add --confirm-image (confirm_image=True) to use it, or --image <reference> (image=...) for another one"
    return [*findings, fail("image", f"{shown} was not confirmed", remedy)]


@_gate(REACHABLE, names_image=True)
async def check_reachable(launch: Launch) -> list[Finding]:
    """The platform answers here, and can be used."""
    probe = await launch.probe()
    own = [finding for finding in probe.findings if finding.gate != COMPUTE]
    if not probe.reached and _opens_by_ssh(launch):
        own = [_with_ssh_remedy(finding) for finding in own]
    return own or [_ok("reachable", f"{launch.checked_from} answers", launch.checked_from)]


@_gate(DATASETS)
async def check_datasets(launch: Launch) -> list[Finding]:
    """Every dataset has its place in the spec, and can be seen from where the job will run."""
    # What names no gate concerns the spec, and with it the datasets.
    findings = _own(launch, DATASETS, NO_GATE) + await check_visibility(launch)
    return findings or [_ok("datasets", "this launch declares no data")]


@_gate(COMPUTE, names_image=True)
async def check_compute(launch: Launch) -> list[Finding]:
    """The compute shape is known, allowed, and there."""
    findings, request = _own(launch, COMPUTE), launch.resolved.request
    if request is None:
        return [
            *findings,
            _unchecked("compute", "not checked: the launch is not resolved", "fix the other problems"),
        ]
    findings += _too_few_gpus(launch, request, findings) + _unfit(launch)
    findings += await _there(launch)
    return [_ok("compute", _shape(request)), *findings]


async def run_gate(name: GateName, launch: Launch) -> list[Finding]:
    """The findings of one gate, worst first, without any secret value. Gates of one launch may run side by side."""
    try:
        findings = await GATES[name].check(launch)
    except TaoError as error:
        findings = error_findings(error, name, launch.checked_from)
    named = [finding.model_copy(update={"gate": name}) for finding in worst_first(findings)]
    return hide_values(launch.catalog, launch.credentials, named)


async def run_gates(launch: Launch) -> dict[str, list[Finding]]:
    """The findings of all gates by name, in order; asked for side by side."""
    return dict(zip(GATES, await asyncio.gather(*(run_gate(name, launch) for name in GATES)), strict=True))


# -- reachable ---------------------------------------------------------------------------------------------------------


def _opens_by_ssh(launch: Launch) -> bool:
    known = launch.entry is not None and launch.platform is not None and not launch.skip_access
    return known and any(need.is_ssh for need in platform_needs(launch.catalog, launch.platform_name))


def _with_ssh_remedy(finding: Finding) -> Finding:
    """One remedy for a login that fails: all the steps there are, then what the driver advises."""
    # No key helps with a second factor, nor where no keys are taken or no commands run.
    if not finding.blocks or any(word in finding.message for word in ("two-factor", "takes no keys", "no commands")):
        return finding
    steps = f"{SSH_REMEDY}\nFor what was seen here: {finding.remedy}" if finding.remedy else SSH_REMEDY
    return finding.model_copy(update={"remedy": steps})


# -- compute -----------------------------------------------------------------------------------------------------------


def _too_few_gpus(launch: Launch, request: JobRequest, known: Sequence[Finding]) -> list[Finding]:
    least = launch.model.hardware.min_gpus if launch.model else None
    have = request.resources.total_gpus
    if request.resources.gpus == ALL_GPUS:
        return []
    if not least or have >= least or any(finding.subject == "gpus" for finding in known):
        return []
    return [
        Finding(
            level=Level.WARN,
            subject="gpus",
            message=f"gpus: {have} in all, and {launch.resolved.model} wants at least {least}",
            remedy=f"ask for --gpus {least}, or continue if you know that it fits",
        )
    ]


def _unfit(launch: Launch) -> list[Finding]:
    """What the driver cannot even write down; drawing it up sends nothing."""
    if launch.platform is None:
        return []
    try:
        launch.rendered()
    except InvalidInput as error:
        return error_findings(error, "compute", launch.checked_from)
    return []


async def _there(launch: Launch) -> list[Finding]:
    """What the platform says about the shape and about its hosts."""
    if launch.skip_access:
        return [Finding(level=Level.WARN, subject="compute", message=f"compute: {SKIPPED}")]
    probe = await launch.probe()
    if not probe.reached:
        return [probe.unchecked("compute", "compute", launch.checked_from)]
    findings = [finding for finding in probe.findings if finding.gate == COMPUTE]
    versions, space = await asyncio.gather(_versions(launch), _space(launch))
    return [*findings, *versions, *space]


async def _versions(launch: Launch) -> list[Finding]:
    """Whether the host is new enough for the GPUs that were asked for; without any, its driver does not matter."""
    request = launch.resolved.request
    if launch.platform is None or request is None or not request.resources.gpus:
        return []
    versions = await launch.platform.host_versions()
    if versions is None:
        return []
    minimum = host_minimum(launch.catalog, launch.resolved.model)
    if launch.entry and not launch.entry.containers:
        minimum.pop("container_toolkit", None)
    return host_findings(versions, minimum, launch.checked_from)


async def _space(launch: Launch) -> list[Finding]:
    """Whether the results will have room; what the catalog says of that is about trainings."""
    if launch.platform is None:
        return []
    wanted = launch.model.hardware.disk_gb if launch.model and is_training(launch.resolved.action) else None
    free = await launch.platform.disk_free()
    return [disk_finding(amount, wanted or 0, where, launch.checked_from) for where, amount in free.items()]


def _shape(request: JobRequest) -> str:
    wanted = request.resources
    return f"compute: {wanted.nodes} x ({wanted.gpus_shown} GPUs, {wanted.cpus or 'any number of'} CPUs)"


# -- findings ----------------------------------------------------------------------------------------------------------


def _ok(subject: str, message: str, checked_from: str = "here") -> Finding:
    return Finding(level=Level.OK, subject=subject, message=message, checked_from=checked_from)


def _unchecked(subject: str, message: str, remedy: str) -> Finding:
    return Finding(level=Level.UNKNOWN, subject=subject, message=message, remedy=remedy, follows=True)
