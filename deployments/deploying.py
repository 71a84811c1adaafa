"""Brings everything of prefect.yaml to a server: blocks, work pool, deployments with usable forms, automations.

Doing it twice changes nothing, except that forms learn of blocks that were saved meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

from prefect_tao import blocks
from prefect_tao.deployments.automations import ALERTS, create_automations
from prefect_tao.deployments.choices import choices
from prefect_tao.deployments.described import described_deployments
from prefect_tao.deployments.forms import form
from prefect_tao.deployments.keeping import present_schedules, restore_schedules
from prefect_tao.deployments.schedules import schedule_findings
from prefect_tao.deployments.yaml_parameters import parameter_findings
from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.request import masked
from prefect_tao.platforms.registry import registered
from prefect_tao.tasks.targets.servers import check_server, server_url

POOLS = Path(__file__).parent / "work_pools"
POOL = "tao"
# Runs at once, each a process of 150 MB that waits for its job: what a small machine bears.
AT_ONCE = 10
SAY_SECONDS = 3.0
Say = Callable[[str], None]


async def deploy(folder: Path, kind: str | None = None, say: Say = print) -> None:
    """Deploy all that `folder`/prefect.yaml describes. Raises InvalidInput, Unreachable."""
    described = described_deployments(folder)
    if findings := schedule_findings(described) + parameter_findings(described):
        raise InvalidInput.of(findings)
    if server_url() is None:
        raise Unreachable(
            "PREFECT_API_URL names no server", "start one with `prefect-tao ui`, and export the address it prints"
        )
    await check_server()
    say(f"server        {server_url()}")
    say(f"blocks        {', '.join(await register_blocks())}")
    say(f"work pool     {await create_pool(kind)}")
    before = {one.name: await present_schedules(one.name) for one in described}
    await _prefect_deploy(folder, say)
    offered = await choices()
    otherwise = []
    for one in described:
        otherwise += [f"{one.name} {slug}" for slug in await restore_schedules(one.name, before[one.name])]
        if one.ours:
            await refine_form(one.name, offered)
    say(f"deployments   {', '.join(one.name for one in described)}")
    if otherwise:
        say(f"schedules     left on or off as they were, unlike prefect.yaml: {', '.join(otherwise)}")
    say(f"targets       {', '.join(offered['target'])}")
    triggers = [trigger["name"] for one in described for trigger in one.entry.get("triggers") or ()]
    say(f"automations   {', '.join([*triggers, *await create_automations()])}")


async def register_blocks() -> list[str]:
    """Make the types of all platforms' blocks and ours known to the server, so that the UI has forms for them."""
    kinds = [*(getattr(blocks, name) for name in blocks.__all__), *(one.load_block() for one in registered().values())]
    for kind in (unique := dict.fromkeys(kinds)):
        await kind.register_type_and_schema()
    return [kind.__name__ for kind in unique]


async def create_pool(kind: str | None) -> str:
    """The work pool, made from our template of that type unless it is there; what it is, in words.

    Raises InvalidInput when it is there and was wanted as another type.
    """
    async with get_client() as client:
        try:
            there = await client.read_work_pool(POOL)
        except ObjectNotFound:
            made = kind or "process"
            template = json.loads((POOLS / f"{made}.json").read_text())
            there = await client.create_work_pool(
                WorkPoolCreate(name=POOL, type=made, base_job_template=template, concurrency_limit=AT_ONCE)
            )
    if kind and there.type != kind:
        raise InvalidInput(
            f"the work pool {POOL} is there already, of type {there.type}, not {kind}",
            f"stop its workers and run `prefect work-pool delete {POOL}` first, or deploy without POOL to keep it",
        )
    most = f"at most {there.concurrency_limit} runs at once" if there.concurrency_limit else "no limit of runs at once"
    return f"{there.name} ({there.type}, {most})"


async def _prefect_deploy(folder: Path, say: Say) -> None:
    """Prefect's own command: it knows all that may stand in a prefect.yaml. Raises InvalidInput with what it says."""
    words = ("-m", "prefect", "--no-prompt", "deploy", "--all")
    env = {**os.environ, "PREFECT_API_URL": str(server_url())}
    seconds = 0.0
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=folder,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    working = asyncio.create_task(process.communicate())
    while not (await asyncio.wait([working], timeout=SAY_SECONDS))[0]:
        seconds = seconds + SAY_SECONDS
        say(f"deployments   Prefect is still at work ({seconds:.0f} s)")
    told, _ = working.result()
    if process.returncode:
        raise InvalidInput(f"prefect deploy failed:\n{told.decode(errors='replace')}", "correct prefect.yaml")


async def refine_form(name: str, offered: dict[str, list[str]]) -> None:
    """Give the deployment's parameters a form that a person can fill in.

    Raises InvalidInput when its own parameters do not pass: one that Prefect filled in could not be judged before.
    """
    async with get_client() as client:
        deployment: DeploymentResponse = await client.read_deployment_by_name(name)
        made = form(dict(deployment.parameter_openapi_schema or {}), offered)
        # Not by update_deployment: with it go the defaults of all that is not given.
        body = {"parameter_openapi_schema": made}
        try:
            await client.request("PATCH", "/deployments/{id}", path_params={"id": deployment.id}, json=body)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != HTTPStatus.CONFLICT:
                raise
            told = masked(str(error.response.json().get("detail")))
            raise InvalidInput(f"{name}: {told}", "correct its parameters in prefect.yaml") from None


def next_steps(program: str) -> str:
    """What a person does now."""
    url = str(server_url())
    return "\n".join(
        (
            "",
            "Start a worker, which runs what you start in the UI, and leave it running:",
            f"    export PREFECT_API_URL={url}",
            f"    nice {program} worker start --pool {POOL}",  # the server, on this machine too, answers first
            f"Then open {url.removesuffix('/api')}/deployments",
            f"To be told of failures, save a notification block named {ALERTS} in the UI and deploy again.",
        )
    )
