"""Logs of a job's Pods, each rank's lines with its number, in pieces that neither lose nor double a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from prefect_tao.jobs.platform import LogChunk
from prefect_tao.platforms import stamped_logs
from prefect_tao.platforms.kubernetes.client import ApiRefused, ClusterApi, Manifest
from prefect_tao.platforms.kubernetes.observe import rank_of
from prefect_tao.platforms.kubernetes.render import MAIN
from prefect_tao.platforms.stamped_logs import Cursor, LogEntry


def entries(data: bytes) -> Iterator[LogEntry]:
    """The lines of an answer; what does not begin with a moment, such as an error of the node's, is left out."""
    for line in data.splitlines(keepends=True):
        moment, _, text = line.partition(b" ")
        try:
            yield LogEntry(stamped_logs.nanoseconds(moment.decode()), text)
        except ValueError:
            continue


async def read(api: ClusterApi, pods: Sequence[Manifest], tail: int | None, since: str | None) -> LogChunk:
    """The log of all Pods. One Pod's lines stand as they are."""
    known = _cursors(since)
    texts = []
    for pod in sorted(pods, key=rank_of):
        name = pod["metadata"]["name"]
        chunk = await _of_one(api, name, tail, Cursor.parse(known.get(name)))
        known[name] = chunk.cursor
        text = chunk.text
        if len(pods) > 1:
            text = "".join(f"[{rank_of(pod)}] {line}" for line in text.splitlines(keepends=True))
        texts.append(text)
    return LogChunk("".join(texts), json.dumps(known) if known else since or "")


def _cursors(since: str | None) -> dict[str, str]:
    try:
        found = json.loads(since or "{}")
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


async def _of_one(api: ClusterApi, name: str, tail: int | None, cursor: Cursor) -> LogChunk:
    query = {"container": MAIN, "timestamps": "true"}
    if tail is not None:
        query["tailLines"] = str(max(tail, 1))
    elif cursor.anchor:
        moment = datetime.fromtimestamp(cursor.anchor // 1_000_000_000, UTC)
        query["sinceTime"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")  # the API drops fractions
    try:
        data = await api.text("GET", api.path("pods", name, "log"), query=query)
    except ApiRefused:
        return LogChunk("", str(cursor))  # it has not started, or is gone
    found = entries(data)
    if tail is not None:
        return stamped_logs.ending(list(found), tail)
    return stamped_logs.after((one for one in found if one.moment >= cursor.anchor), cursor)
