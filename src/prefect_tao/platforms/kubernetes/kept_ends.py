"""How jobs ended, kept in small ConfigMaps that outlive them: what the cluster forgets must not be run again.

A Job whose results cannot be read from here has no time to live until its end is kept. A cancellation is kept before
the Job is deleted, so that it is one for all launchers whatever happens to the one that asks. What is kept also holds
the place of the job's Secret: a launcher that comes late cannot fill a Job of that name, and asks for nothing more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import Observation
from prefect_tao.platforms import markers
from prefect_tao.platforms.kubernetes.client import CONFLICT, MERGE, NOT_FOUND, ApiRefused, ClusterApi, Manifest
from prefect_tao.platforms.kubernetes.render import (
    ATTEMPT,
    DIGEST,
    GIVEN,
    KEY,
    MANAGED,
    OWNER_UID,
    RESULTS,
    handle_of,
    no_logins,
    owned_by,
    pull_secret_name,
)

KEPT = "prefect-tao/kept-end"
END = "end"
# Of a cancellation: whether the job's own record has been looked for since, which may tell of an end before it.
CHECKED = "prefect-tao/checked"


async def keep(api: ClusterApi, handle: JobHandle, end: Observation) -> None:
    """Write down how a job ended, or will have; what was written first stays."""
    labels = {**MANAGED, KEY: handle.key, ATTEMPT: str(handle.attempt), DIGEST: handle.digest, KEPT: "true"}
    notes = {RESULTS: handle.results, GIVEN: json.dumps(handle.labels, sort_keys=True), OWNER_UID: handle.native_id}
    note = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": handle.name, "namespace": api.namespace, "labels": labels, "annotations": notes},
        "data": {END: end.model_dump_json()},
    }
    there: Manifest | None
    try:
        there = await api.ask("POST", api.path("configmaps"), note)
    except ApiRefused as error:
        if error.status != CONFLICT:
            raise
        there = await api.find("configmaps", handle.name)
    if there is None:  # two writers met at a quota; or somebody removed the note as it was written
        raise Unreachable(f"the end of {handle.name} could not be put down", "ask again")
    await _hold_place(api, handle, there)


async def _hold_place(api: ClusterApi, handle: JobHandle, note: Manifest) -> None:
    """Leave an empty Secret in the place of the job's own; it goes when the note does."""
    meta = {"labels": note["metadata"]["labels"], "ownerReferences": [owned_by(note)]}
    if await empty_secret(api, handle, meta):
        return
    try:
        empty = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": handle.name, **meta}}
        await api.ask("POST", api.path("secrets"), empty)
    except ApiRefused as error:
        if error.status != CONFLICT:
            raise
        await empty_secret(api, handle, meta)  # its launcher made it meanwhile


async def empty_secret(api: ClusterApi, handle: JobHandle, meta: Manifest | None = None) -> bool:
    """Take everything out of the job's Secret, which is of no use any more; false where there is none."""
    return await _patched(api, handle.name, {"data": None, **({"metadata": meta} if meta else {})})


async def empty_pull_secret(api: ClusterApi, handle: JobHandle) -> None:
    """Take the login out of the Secret that the job's image was pulled with."""
    await _patched(api, pull_secret_name(handle.name), {"data": no_logins()})


async def _patched(api: ClusterApi, name: str, patch: Manifest) -> bool:
    try:
        await api.ask("PATCH", api.path("secrets", name), patch, kind=MERGE)
    except ApiRefused as error:
        if error.status != NOT_FOUND:
            raise
        return False
    return True


async def correct(api: ClusterApi, handle: JobHandle, end: Observation) -> None:
    """Write down what a closer look at a kept end has shown."""
    patch = {"metadata": {"annotations": {CHECKED: "true"}}, "data": {END: end.model_dump_json()}}
    await api.ask("PATCH", api.path("configmaps", handle.name), patch, kind=MERGE)


async def let_go(api: ClusterApi, job: Manifest, seconds: int) -> None:
    """Note at the Job that its end is kept, and allow the cluster to forget it."""
    patch: dict[str, Any] = {"metadata": {"annotations": {KEPT: "true"}}}
    if "ttlSecondsAfterFinished" not in job["spec"]:
        patch["spec"] = {"ttlSecondsAfterFinished": seconds}
    try:
        await api.ask("PATCH", api.path("jobs", job["metadata"]["name"]), patch, kind=MERGE)
    except ApiRefused as error:
        if error.status != NOT_FOUND:
            raise


class KeptEnd(NamedTuple):
    """An end that was written down, and whether the job's own record was looked for since."""

    end: Observation
    is_checked: bool


async def kept(api: ClusterApi, target: str, keys: str = "") -> dict[JobHandle, KeptEnd]:
    """All ends that are kept, in one question; `keys` is a selector."""
    found = await api.listed("configmaps", ",".join(filter(None, (KEPT, keys))))
    return dict(_read(target, found))


def _read(target: str, notes: Iterable[Manifest]) -> Iterable[tuple[JobHandle, KeptEnd]]:
    for note in notes:
        handle, end = handle_of(target, note), markers.kept_end((note.get("data") or {}).get(END))
        if handle and end:
            yield handle, KeptEnd(end, CHECKED in (note["metadata"].get("annotations") or {}))
