"""Brings everything of prefect.yaml to a server: blocks, work pool, deployments with usable forms, automations.

Doing it twice changes nothing, except that forms learn of blocks that were saved meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import yaml
from prefect import get_client
from prefect.blocks.core import Block
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound

from prefect_tao import blocks
from prefect_tao.deployments.automations import ALERTS, create_automations
from prefect_tao.deployments.choices import choices
from prefect_tao.deployments.forms import form
from prefect_tao.deployments.parameters import parameter_findings
from prefect_tao.deployments.schedules import schedule_findings
from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.tasks.servers import check_server, server_url

POOLS = Path(__file__).parent / "work_pools"
POOL = "tao"
Say = Callable[[str], None]


async def deploy(folder: Path, kind: str | None = None, say: Say = print) -> None:
    """Deploy all that `folder`/prefect.yaml describes. Raises InvalidInput, Unreachable."""
    described = described_deployments(folder)
    if findings := schedule_findings(described) + parameter_findings(described):
        raise InvalidInput.of(findings)
    names = deployment_names(folder)
    if server_url() is None:
        raise Unreachable(
            "PREFECT_API_URL names no server", "start one with `prefect-tao ui`, and export the address it prints"
        )
    await check_server()
    say(f"server        {server_url()}")
    await register_blocks()
    say(f"blocks        {', '.join(blocks.__all__)}")
    say(f"work pool     {await create_pool(kind)}")
    active = [await active_schedules(name) for name in names]
    await _prefect_deploy(folder)
    offered = await choices()
    for name, slugs in zip(names, active, strict=True):
        await activate(name, slugs)
        await refine_form(name, offered)
    say(f"deployments   {', '.join(names)}")
    say(f"targets       {', '.join(offered['target'])}")
    triggers = [trigger["name"] for one in described_deployments(folder) for trigger in one.get("triggers") or ()]
    say(f"automations   {', '.join([*triggers, *await create_automations()])}")


def described_deployments(folder: Path) -> list[dict[str, Any]]:
    """What prefect.yaml says of each deployment. Raises InvalidInput when the file is missing."""
    file = folder / "prefect.yaml"
    if not file.is_file():
        raise InvalidInput(f"there is no prefect.yaml in {folder}", "run this where it is")
    return list(yaml.safe_load(file.read_text())["deployments"])


def deployment_names(folder: Path) -> list[str]:
    """The deployments of prefect.yaml as `flow/deployment`. Raises InvalidInput when the file is missing."""
    return [f"{one['entrypoint'].rpartition('.')[2]}/{one['name']}" for one in described_deployments(folder)]


async def register_blocks() -> None:
    """Make our types of blocks known to the server, so that the UI has forms for them."""
    for name in blocks.__all__:
        block: type[Block] = getattr(blocks, name)
        await cast(Any, block.register_type_and_schema)()


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
            there = await client.create_work_pool(WorkPoolCreate(name=POOL, type=made, base_job_template=template))
    if kind and there.type != kind:
        raise InvalidInput(
            f"the work pool {POOL} is there already, of type {there.type}, not {kind}",
            f"stop its workers and run `prefect work-pool delete {POOL}` first, or deploy without POOL to keep it",
        )
    return f"{there.name} ({there.type})"


async def _prefect_deploy(folder: Path) -> None:
    """Prefect's own command: it knows all that may stand in a prefect.yaml. Raises InvalidInput with what it says."""
    words = ("-m", "prefect", "--no-prompt", "deploy", "--all")
    env = {**os.environ, "PREFECT_API_URL": str(server_url())}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *words,
        cwd=folder,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    if process.returncode:
        raise InvalidInput(f"prefect deploy failed:\n{told.decode(errors='replace')}", "correct prefect.yaml")


async def active_schedules(name: str) -> set[str]:
    """The schedules of a deployment that a person has switched on; deploying would switch them off."""
    async with get_client() as client:
        try:
            there = await client.read_deployment_by_name(name)
        except ObjectNotFound:
            return set()
    return {schedule.slug for schedule in there.schedules if schedule.active and schedule.slug}


async def activate(name: str, slugs: set[str]) -> None:
    """Switch these schedules on, as far as the deployment still has them."""
    async with get_client() as client:
        deployment = await client.read_deployment_by_name(name)
        for schedule in deployment.schedules:
            if schedule.slug in slugs and not schedule.active:
                await client.update_deployment_schedule(deployment.id, schedule.id, active=True)


async def refine_form(name: str, offered: dict[str, list[str]]) -> None:
    """Give the deployment's parameters a form that a person can fill in."""
    async with get_client() as client:
        deployment: DeploymentResponse = await client.read_deployment_by_name(name)
        made = form(dict(deployment.parameter_openapi_schema or {}), offered)
        # Not by update_deployment: with it go the defaults of all that is not given.
        await client.request(
            "PATCH", "/deployments/{id}", path_params={"id": deployment.id}, json={"parameter_openapi_schema": made}
        )


def next_steps(program: str) -> str:
    """What a person does now."""
    url = str(server_url())
    return "\n".join(
        (
            "",
            "Start a worker, which runs what you start in the UI, and leave it running:",
            f"    export PREFECT_API_URL={url}",
            f"    {program} worker start --pool {POOL}",
            f"Then open {url.removesuffix('/api')}/deployments",
            f"To be told of failures, save a notification block named {ALERTS} in the UI and deploy again.",
        )
    )
