"""The fixtures of the loopback SLURM cluster: one for the session, started by the first test that asks for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from slurm_cluster import Cluster

PREFIX = "tao-slurm-"
OWNER = "owner.json"


def own(base: Path, pid: int) -> None:
    """Note whose cluster this is."""
    from slurm_processes import birth

    (base / OWNER).write_text(json.dumps({"pid": pid, "birth": birth(pid)}))


def sweep(folder: Path) -> None:
    """Stop and remove clusters whose test session was killed before it could."""
    from slurm_cluster import Cluster
    from slurm_processes import birth

    for note in folder.glob(f"{PREFIX}*/{OWNER}"):
        owner = json.loads(note.read_text())
        if birth(owner["pid"]) is None or birth(owner["pid"]) != owner["birth"]:
            with contextlib.suppress(FileNotFoundError):
                Cluster.load(note.parent).stop()
            shutil.rmtree(note.parent, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster. Modules that use it carry `pytest.mark.xdist_group("slurm")`."""
    from debian import Missing
    from slurm_cluster import Cluster

    # Not pytest's own temporary folder: that is closed to the user whose jobs run here.
    sweep(Path(tempfile.gettempdir()))
    base = Path(tempfile.mkdtemp(prefix=PREFIX))
    base.chmod(0o755)
    own(base, os.getpid())
    running = Cluster(base)
    try:
        running.install()
    except Missing as missing:
        shutil.rmtree(base)
        pytest.skip(str(missing))
    try:
        running.start()
        yield running
    finally:
        running.stop()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def clean_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """The same cluster, for a test that breaks something: everything runs again afterwards, and no job is left."""
    yield cluster
    cluster.reset()
