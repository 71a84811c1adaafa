"""Data in storage for sites that end jobs whose GPUs idle: how much they would wait for, and whether they may."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from prefect_tao.jobs.errors import TaoError
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.jobs.request import InputRule
from prefect_tao.preflight.checked_launch import SKIPPED, Launch
from prefect_tao.preflight.checks import object_storage
from prefect_tao.runner.entrypoint import input_locations
from prefect_tao.runner.inside.sizes import human
from prefect_tao.storage.known_schemes import is_seen
from prefect_tao.storage.objects import Measured, NotThere

SUBJECT = "datasets s3"
LARGEST = 10**9
IDLE = "many sites end jobs whose GPUs idle"
REMEDY = "put the data on the cluster's shared file system and give lustre:///path; allow_s3_inputs accepts it"


async def download_findings(launch: Launch, store: object_storage.StorageLooks) -> list[Finding]:
    """At most one finding: a warning, and a failure above 1 GB; unknown where the size is not known."""
    if launch.platform is None or not launch.platform.ends_idle_jobs:
        return []
    inputs = _inputs(launch)
    if not inputs:
        return []
    if launch.skip_access:
        return [_said(Level.WARN, inputs, f"the GPUs wait while this is downloaded, and {IDLE}; size {SKIPPED}")]
    for uri in inputs:
        if names := object_storage.lacking(uri, launch.credentials):
            return [_said(Level.UNKNOWN, inputs, f"size not known: {names} missing", "supply them first")]
    try:
        found = await asyncio.gather(*(_measured(store, uri) for uri in inputs))
    except TaoError as error:
        return [_said(Level.UNKNOWN, inputs, f"size not known: {error.cause}", error.remedy)]
    return [_judged(inputs, found)]


def _inputs(launch: Launch) -> dict[str, InputRule]:
    """What the job itself downloads from storage."""
    request = launch.resolved.request
    found = input_locations(request).values() if request else ()
    return {uri: rule for uri, rule in found if is_seen(uri)}


async def _measured(store: object_storage.StorageLooks, uri: str) -> Measured:
    try:
        return await store.measure(uri, LARGEST)
    except NotThere:  # which has a finding of its own
        return Measured(0, 0, True)


def _judged(inputs: Mapping[str, InputRule], found: list[Measured]) -> Finding:
    total = sum(one.size for one in found)
    if total <= LARGEST and all(one.whole for one in found):
        return _said(Level.WARN, inputs, f"the GPUs wait while {human(total)} are downloaded, and {IDLE}")
    if any(rule.selective for rule in inputs.values()):
        return _said(Level.UNKNOWN, inputs, f"size not known: only a part of it is fetched; the GPUs wait, and {IDLE}")
    much = (
        f"more than {human(LARGEST)}" if total > LARGEST else f"more than {sum(one.objects for one in found)} objects"
    )
    return _said(Level.FAIL, inputs, f"the GPUs would wait while {much} are downloaded, and {IDLE}")


def _said(level: Level, inputs: Mapping[str, InputRule], message: str, remedy: str = REMEDY) -> Finding:
    shown = ", ".join(sorted(inputs)[:3]) + (f" and {len(inputs) - 3} more" if len(inputs) > 3 else "")
    return Finding(level=level, subject=SUBJECT, message=f"{shown}: {message}", remedy=remedy)
