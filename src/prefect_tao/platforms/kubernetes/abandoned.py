"""Jobs that were made and never let start, because their launcher died: they wait for the next one without secrets."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from contextlib import suppress

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.kubernetes.client import MERGE, ApiRefused, ClusterApi, Manifest
from prefect_tao.platforms.kubernetes.render import CREATED, RESUMED, SECRETS, no_logins, pull_secret_name

# After so long a launcher that has made a Job and not let it start must be gone.
ABANDONED_SECONDS = 3600.0
SWEPT = "prefect-tao/swept"
NOTHING = {SECRETS: base64.b64encode(b"{}").decode()}


async def sweep(api: ClusterApi, jobs: Sequence[Manifest]) -> None:
    """Take the secrets out of such Jobs among these; what cannot be done now is done by the next list."""
    for job in jobs:
        notes = job["metadata"].get("annotations") or {}
        age = time.time() - int(notes.get(CREATED) or time.time_ns()) / 1e9
        if RESUMED not in notes and age > ABANDONED_SECONDS:
            name = job["metadata"]["name"]
            for secret, data in ((name, NOTHING), (pull_secret_name(name), no_logins())):
                with suppress(ApiRefused, Unreachable):  # a launcher may have died before it made this one
                    await _patch(api, secret, data, "true")


def is_swept(secret: Manifest) -> bool:
    """Whether the values were taken out of a Secret whose Job never started."""
    return SWEPT in (secret["metadata"].get("annotations") or {})


async def refill(api: ClusterApi, secret: Manifest) -> None:
    """Put the values of the next launcher into such a Secret. Raises ApiRefused, Unreachable."""
    await _patch(api, secret["metadata"]["name"], secret["data"], None)


async def _patch(api: ClusterApi, name: str, data: Manifest, swept: str | None) -> None:
    patch = {"metadata": {"annotations": {SWEPT: swept}}, "data": data}
    await api.ask("PATCH", api.path("secrets", name), patch, kind=MERGE)
