"""Resume: a job that was started before goes on at its newest checkpoint."""

from __future__ import annotations

import os

from .checkpoints import CHECKPOINTS, NOT_OURS, checkpoint_rank, newest_checkpoint, valid_checkpoint
from .failures import Missing
from .log import say
from .paths import is_below, safe_name
from .pointers import UNSET, leaf, set_pointer, walk
from .schemes import is_local
from .store import fetch, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .where import Where

RESUME_LEAF = "resume_training_checkpoint_path"


def restore_checkpoint(destinations: Sequence[str], work: str) -> str | None:
    """Fetch the newest whole checkpoint of an earlier attempt from storage, where this container's disk is new."""
    found = []
    for destination in destinations:
        try:
            items = find(destination.rstrip("/") + "/")
        except Missing:
            continue
        for below, item in items.items():
            if below.endswith(CHECKPOINTS) and not set(below.split("/")) & set(NOT_OURS):
                uri = "%s/%s" % (destination.rstrip("/"), below)
                found.append((checkpoint_rank(os.path.basename(below), item.modified), uri))
    for _, uri in sorted(found, reverse=True)[:5]:
        target = os.path.join(work, "resume", safe_name(os.path.dirname(uri)), os.path.basename(uri))
        fetch(uri, target)
        if valid_checkpoint(target):
            return target
        say("checkpoint %s is incomplete; trying the one before" % uri)
    return None


def resume(tree: Any, kept: Mapping[str, str], where: Where, again: bool) -> None:
    """Point empty resume keys at the newest checkpoint of this job's earlier attempts; never at a pretrained one."""
    if os.environ.get("TAO_AUTO_RESUME", "1") == "0":
        return
    # What lies in a folder that others may use too is ours only when we have been there; never in all jobs' root.
    places = [
        place for place in kept.values() if is_below(place, where.base) or (again and not is_below(where.base, place))
    ]
    found = newest_checkpoint([place for place in places if os.path.isdir(place)])
    if not found and again:
        found = restore_checkpoint([place for place in places if not is_local(place)], where.work)
    if found:
        say("resuming from %s" % found)
        os.environ["TAO_RESUME_CHECKPOINT"] = found
        for pointer, value in list(walk(tree)):
            if leaf(pointer) == RESUME_LEAF and value in UNSET:
                set_pointer(tree, pointer, found)
