"""The checkpoint of the epoch that counts."""

from __future__ import annotations

import posixpath
import re

from prefect_tao.jobs.outcome import Outcome
from prefect_tao.runner.inside.checkpoints import CHECKPOINTS

_EPOCH = re.compile(r"epoch[_=-]?(\d+)")


def at_epoch(outcome: Outcome, epoch: int | None) -> Outcome:
    """The outcome with the checkpoint of one epoch only, where it is there: it is what later steps take up."""
    wanted = [path for path in outcome.checkpoints if epoch is not None and _epoch_of(path) == epoch]
    if not wanted:
        return outcome
    files = tuple(path for path in outcome.files if not path.endswith(CHECKPOINTS) or path in wanted)
    return outcome.model_copy(update={"files": files})


def _epoch_of(path: str) -> int | None:
    found = _EPOCH.search(posixpath.basename(path).lower())
    return int(found[1]) if found else None
