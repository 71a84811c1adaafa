"""The stand-in of Brev for tests: its command is first on the PATH, and a login is in the home folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import debian
import pytest
from brev_cloud import BrevCloud, brev_cloud


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[BrevCloud]:
    """Instances without Docker; nothing is left of them afterwards."""
    with tempfile.TemporaryDirectory(prefix="tao-brev-") as folder, brev_cloud(Path(folder)) as running:
        monkeypatch.setenv("PATH", f"{folder}/bin:{debian.PATH}")
        monkeypatch.setenv("HOME", f"{folder}/home")
        yield running
