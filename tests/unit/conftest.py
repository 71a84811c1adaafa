"""What most tests of the runner begin with."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_tools import Bucket, Runner, make_bucket


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def bucket() -> Bucket:
    return make_bucket()
