"""What a real cluster answered, as the driver would have read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from prefect_tao.platforms.kubernetes.observe import JobFacts

FOLDER = Path(__file__).parents[1] / "recordings" / "kubernetes"


@cache
def situation(name: str) -> dict[str, Any]:
    """All that was recorded of a situation; its name may be cut short."""
    [path] = FOLDER.glob(f"{name}-*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def facts(name: str, moment: str = "final", job: str = "", record: Mapping[str, Any] | None = None) -> JobFacts:
    """One Job at a moment, with its Pods and what happened to them."""
    there = situation(name)[moment]
    [found] = [one for one in there["jobs"] if job in ("", one["metadata"]["name"])]
    uid, own = found["metadata"]["uid"], f"{found['metadata']['name']}-"
    pods = [one for one in there["pods"] if one["metadata"]["ownerReferences"][0]["uid"] == uid]
    events = [
        one
        for one in there["events"]
        if one["involvedObject"].get("uid") == uid or one["involvedObject"]["name"].startswith(own)
    ]
    return JobFacts(found, pods, events, {**record, "native_id": uid} if record else None)
