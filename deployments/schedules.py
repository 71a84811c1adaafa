"""Schedules that can never make a run, found before anything is deployed: Prefect takes them without a word."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule, RRuleSchedule

from prefect_tao.deployments.described import TEMPLATE, Described
from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.resolve.problems import fail


def schedule_findings(deployments: Sequence[Described]) -> list[Finding]:
    """One finding per schedule of these deployments that means nothing, or whose last date has passed."""
    found = []
    for one in deployments:
        for given in one.schedules:
            if problem := _problem(given):
                message = f"{one.entry['name']}: {problem}"
                found.append(
                    fail(f"schedule {given['slug']}", message, "correct it in prefect.yaml, or remove it there")
                )
    return found


def _problem(given: Mapping[str, Any]) -> str | None:
    if TEMPLATE in str(given):  # Prefect fills it in
        return None
    try:
        schedule = _schedule(given)
    except (ValueError, TypeError) as error:
        return f"its schedule {given['slug']} is none: {error}"
    if isinstance(schedule, RRuleSchedule) and schedule.to_rrule().after(datetime.now(UTC)) is None:
        return f"the last date of its schedule {given['slug']} has passed"
    return None


def _schedule(given: Mapping[str, Any]) -> CronSchedule | IntervalSchedule | RRuleSchedule:
    """What Prefect's own command makes of it. Raises ValueError, TypeError."""
    zone = given.get("timezone")
    if given.get("cron"):
        return CronSchedule(cron=given["cron"], timezone=zone)
    if interval := given.get("interval"):
        seconds = timedelta(seconds=interval) if isinstance(interval, (int, float)) else interval
        return IntervalSchedule(interval=seconds, timezone=zone)
    rule = given.get("rrule")
    if not rule:
        raise ValueError("it has no cron, interval or rrule")
    if str(rule).startswith("{"):
        return RRuleSchedule(**json.loads(rule))
    return RRuleSchedule(rrule=rule, timezone=zone or "UTC")
