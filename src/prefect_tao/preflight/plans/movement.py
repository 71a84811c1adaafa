"""Whether what one step makes can be read by the next: steps of a chain may run on different platforms. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from prefect_tao.catalog.nouns import Catalog, PlatformEntry
from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.checks.credentials import is_set
from prefect_tao.preflight.checks.visibility import BUCKET, RESULTS_ROOT, uses_bucket
from prefect_tao.preflight.plans.step import Step
from prefect_tao.preflight.resolve.problems import fail
from prefect_tao.preflight.resolve.resolving import open_catalog

# Where a target keeps results: in object storage, in a folder of its file system, or inside of its container engine.
Kept = Literal["bucket", "folder", "inside"]


def kept_by(entry: PlatformEntry, credentials: Mapping[str, str]) -> Kept:
    """Where results go on a platform with these settings."""
    if uses_bucket(entry, credentials):
        return "bucket"
    return "inside" if entry.containers and not is_set(credentials, RESULTS_ROOT) else "folder"


def crossings(steps: Sequence[Step]) -> list[tuple[Step, Step]]:
    """Every step that takes files from another target, with the step that makes them."""
    by_name = {step.name: step for step in steps}
    pairs = [(step, by_name[name]) for step in steps for name in step.givers]
    return [(step, other) for step, other in pairs if step.target != other.target]


def movement_findings(
    steps: Sequence[Step],
    platform_of: Callable[[str], str],
    kept: Mapping[str, Kept],
    catalog: Catalog | None = None,
) -> list[Finding]:
    """One finding per step that takes files from a place which its own platform does not see.

    `kept` says by target where results go, as far as that is known; a bucket is read from everywhere, a folder of this
    machine by all that run on it.
    """
    catalog = catalog or open_catalog()
    found = []
    for step, other in crossings(steps):
        here, there = platform_of(step.target), platform_of(other.target)
        keeps = kept.get(other.target)
        local = _is_local(catalog, here) and _is_local(catalog, there)
        if keeps in (None, "bucket") or (local and keeps == "folder"):
            continue
        message = f"{step.name} on {step.target} takes files from {other.name}, whose results stay on {other.target}"
        found.append(fail(f"step {step.name}", message, _remedy(other, local)))
    return found


def _remedy(other: Step, local: bool) -> str:
    if local:
        return f"give the block of {other.target} a results folder ({RESULTS_ROOT}), which both can read"
    return (
        f"run both on one target, or keep the results of {other.name} in S3: give the block of {other.target} a bucket "
        f"({BUCKET}) and no results folder"
    )


def _is_local(catalog: Catalog, platform: str) -> bool:
    entry = catalog.platforms.get(platform)
    return entry is not None and not entry.remote
