"""kill -9 of the process that leads a search, at any moment: no trial is lost, repeated or run twice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from doomed import Doomed

from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.search_board import SearchFolder

pytestmark = [pytest.mark.xdist_group("prefect-server"), pytest.mark.long]
PARTS, KILLS, TRIALS = 4, 50, 40
NEVER = 1_000_000
WRITES = 120  # until when a life is killed at the latest: it launches and follows a few trials in that time


@pytest.mark.parametrize("part", range(PARTS))
def test_a_search_that_is_killed_again_and_again_runs_every_trial_once(
    server: Any, home: Path, tmp_path: Path, part: int
) -> None:
    marks, key, dice = tmp_path / "marks", uuid4().hex, random.Random(part)
    marks.mkdir()
    command = (
        f"x=$(tr -dc '0-9.' < {{config_path}}); echo ran >> {marks}/$TAO_JOB_ID; "
        'mkdir -p $TAO_RESULTS_DIR; echo "{\\"loss\\": $x}" > $TAO_RESULTS_DIR/metrics.json'
    )
    given: dict[str, Any] = {
        "command": command,
        "specs": {"x": 0.5},
        "custom_param_ranges": {"x": {"valid_min": 0.1, "valid_max": 1.0}},
        "metric": "loss",
        "direction": "minimize",
        "metric_file": "metrics.json",
        "algorithm": "random",
        "max_trials": TRIALS,
        "max_concurrent": 3,
        "run_key": key,
    }
    with Doomed(server, home) as doomed:
        for number in range(KILLS):
            assert doomed.live("automl", dice.randint(1, WRITES), **given), "the search was over too soon"
            if number % 5 == 4:  # another worker has no storage of it
                SearchFolder(key).database.unlink(missing_ok=True)
        assert not doomed.live("automl", NEVER, **given)
    found = SearchFolder(key).read()
    assert found is not None
    assert [point.number for point in found.points] == list(range(TRIALS))
    assert all(point.state is StepState.COMPLETE for point in found.points)
    assert sorted(mark.read_text() for mark in marks.iterdir()) == ["ran\n"] * TRIALS
