"""Schedules that can never make a run, found before anything is deployed: Prefect takes them without a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from prefect.client.schemas.schedules import RRuleSchedule

from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.problems import fail


def schedule_findings(deployments: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """One finding per schedule of these entries of prefect.yaml whose last date has passed."""
    found = []
    for deployment in deployments:
        for number, schedule in enumerate(deployment.get("schedules") or (), 1):
            if _is_over(schedule):
                name = schedule.get("slug") or number
                message = f"{deployment['name']}: the last date of its schedule {name} has passed"
                found.append(fail(f"schedule {name}", message, "give it dates to come, or remove it from prefect.yaml"))
    return found


def _is_over(schedule: Mapping[str, Any]) -> bool:
    """Only a rule can end; one that is none is for Prefect's own command to tell."""
    if "rrule" not in schedule:
        return False
    try:
        rule = RRuleSchedule(rrule=schedule["rrule"], timezone=schedule.get("timezone") or "UTC").to_rrule()
        return rule.after(datetime.now(UTC)) is None
    except (ValueError, TypeError):
        return False
