"""How jobs ended, kept in small ConfigMaps that outlive them: what the cluster forgets must not be run again.

A Job whose results cannot be read from here has no time to live until its end is kept. A cancellation is kept before
the Job is deleted, so that it is one for all launchers whatever happens to the one that asks.
"""

from __future__ import annotations

from collections.abc import Iterable

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import Observation
from prefect_tao.platforms import markers
from prefect_tao.platforms.kubernetes.client import CONFLICT, MERGE, NOT_FOUND, ApiRefused, ClusterApi, Manifest
from prefect_tao.platforms.kubernetes.render import GIVEN, OWNER_UID, RESULTS, handle_of

KEPT = "prefect-tao/kept-end"
END = "end"


def kept_end(note: Manifest) -> Observation | None:
    """The end that a ConfigMap holds."""
    return markers.kept_end((note.get("data") or {}).get(END))


async def keep(api: ClusterApi, job: Manifest, end: Observation) -> None:
    """Write down how a Job ended, or will have; what was written first stays."""
    meta = job["metadata"]
    notes = {name: meta["annotations"].get(name, "") for name in (RESULTS, GIVEN)}
    note = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": meta["name"],
            "namespace": api.namespace,
            "labels": {**meta["labels"], KEPT: "true"},
            "annotations": {**notes, OWNER_UID: meta["uid"]},
        },
        "data": {END: end.model_dump_json()},
    }
    try:
        await api.ask("POST", api.path("configmaps"), note)
    except ApiRefused as error:
        if error.status != CONFLICT:
            raise


async def let_go(api: ClusterApi, job: Manifest, seconds: int) -> None:
    """Allow the cluster to forget a Job whose end is kept."""
    patch = {"spec": {"ttlSecondsAfterFinished": seconds}}
    try:
        await api.ask("PATCH", api.path("jobs", job["metadata"]["name"]), patch, kind=MERGE)
    except ApiRefused as error:
        if error.status != NOT_FOUND:
            raise


async def kept(api: ClusterApi, target: str, keys: str = "") -> dict[JobHandle, Observation]:
    """All ends that are kept, in one question; `keys` is a selector."""
    found = await api.listed("configmaps", ",".join(filter(None, (KEPT, keys))))
    return dict(_read(target, found))


def _read(target: str, notes: Iterable[Manifest]) -> Iterable[tuple[JobHandle, Observation]]:
    for note in notes:
        handle, end = handle_of(target, note), kept_end(note)
        if handle and end:
            yield handle, end
