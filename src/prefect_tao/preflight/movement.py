"""Whether what one step makes can be read by the next: steps of a chain may run on different platforms. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prefect_tao.catalog.nouns import Catalog
from prefect_tao.jobs.finding import Finding
from prefect_tao.preflight.asking import open_catalog
from prefect_tao.preflight.problems import fail
from prefect_tao.preflight.step import Step

BUCKET = "S3_BUCKET_NAME"


def movement_findings(
    steps: Sequence[Step],
    platform_of: Callable[[str], str],
    buckets: Mapping[str, bool] | None = None,
    catalog: Catalog | None = None,
) -> list[Finding]:
    """One finding per step that takes files from a place which its own platform does not see.

    `buckets` tells by target whether results go to object storage, which every platform reads.
    """
    catalog = catalog or open_catalog()
    by_name = {step.name: step for step in steps}
    found = []
    for step in steps:
        for other in (by_name[name] for name in step.givers):
            if step.target == other.target or (buckets or {}).get(other.target):
                continue
            here, there = platform_of(step.target), platform_of(other.target)
            if _is_local(catalog, here) and _is_local(catalog, there):
                continue  # both read the files of this machine
            found.append(
                fail(
                    f"step {step.name}",
                    f"{step.name} on {step.target} takes files from {other.name}, whose results stay on {other.target}",
                    f"run both on one target, or keep the results of {other.name} in S3: give the block of "
                    f"{other.target} a bucket ({BUCKET}) and no results folder",
                )
            )
    return found


def _is_local(catalog: Catalog, platform: str) -> bool:
    entry = catalog.platforms.get(platform)
    return entry is not None and not entry.remote
