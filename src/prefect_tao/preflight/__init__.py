"""Checks before a launch, as plain functions that return findings and leave nothing behind."""

from __future__ import annotations

from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.preflight.inputs import check_inputs


async def check_launch(platform: Platform, request: JobRequest, missing_secrets: list[str]) -> list[Finding]:
    """Everything that can be known before `request` is launched on `platform`; all of it, not just the first.

    Raises InvalidInput for a request that the platform cannot even render.
    """
    platform.render(request, key="0" * 16, attempt=1)
    findings = [
        Finding(
            level=Level.FAIL,
            check="secrets",
            message=f"secrets: {name} is set neither in the environment nor as a Prefect Secret block",
            remedy=f"export {name}=... where the flow runs, or save a Secret block named {secret_block(name)}",
        )
        for name in missing_secrets
    ]
    findings += await platform.probe(request)
    findings += await check_inputs(platform, request)
    return findings


def secret_block(name: str) -> str:
    """The name under which a secret is looked for among Prefect's Secret blocks: NGC_KEY as ngc-key."""
    return name.lower().replace("_", "-")
