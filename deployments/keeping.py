"""Keeps what people chose on the server: which schedules are on, and those that they added there.

Prefect's own command sets each schedule as prefect.yaml has it, and drops all others as soon as one has no slug.
"""

from __future__ import annotations

from prefect import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import DeploymentSchedule
from prefect.exceptions import ObjectNotFound


async def present_schedules(name: str) -> list[DeploymentSchedule]:
    """The schedules that a deployment has now; none when it is not there yet."""
    async with get_client() as client:
        try:
            return (await client.read_deployment_by_name(name)).schedules
        except ObjectNotFound:
            return []


async def restore_schedules(name: str, before: list[DeploymentSchedule]) -> list[str]:
    """Switch schedules as they were, and bring back what is gone; the slugs of those that the file wants otherwise."""
    otherwise = []
    async with get_client() as client:
        deployment = await client.read_deployment_by_name(name)
        for old in before:
            now = next((one for one in deployment.schedules if _same(old, one)), None)
            if now is None:
                again = DeploymentScheduleCreate(**old.model_dump(include=set(DeploymentScheduleCreate.model_fields)))
                await client.create_deployment_schedules(deployment.id, [again])
            elif now.active != old.active:
                await client.update_deployment_schedule(deployment.id, now.id, active=old.active)
                otherwise.append(str(now.slug))
    return otherwise


def _same(old: DeploymentSchedule, new: DeploymentSchedule) -> bool:
    """Whether one became the other: by slug, or by what it says where it was made without one."""
    return old.slug == new.slug if old.slug else old.schedule == new.schedule and old.parameters == new.parameters
