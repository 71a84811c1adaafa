"""Exit markers, attempt records and kept ends, as they are read."""

from __future__ import annotations

import json

import pytest

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.platforms.markers import UNNAMED, end_state, ended, is_of, kept_end, left_by, moment, read_record

MARKER = {"native_id": "7", "started": 1700000000.0, "ended": 1700000009.5, "exit_code": 0, "ended_by": "none"}


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[1]",
        json.dumps(MARKER)[:-9],
        json.dumps({**MARKER, "ended_by": "aliens"}),
        json.dumps({**MARKER, "exit_code": None}),
    ],
)
def test_a_record_that_is_cut_short_or_of_another_version_counts_as_absent(text: str | None) -> None:
    assert read_record(text) is None


def test_a_record_of_a_start_is_a_record() -> None:
    assert read_record(b'{"started": 1.5}') == {"started": 1.5}


@pytest.mark.parametrize(
    ("code", "ended_by", "state"),
    [
        (0, "none", JobState.COMPLETE),
        (3, "none", JobState.ERROR),
        (0, "time_limit", JobState.ERROR),
        (143, "cancel", JobState.CANCELED),
        (143, "preempt", JobState.ERROR),
    ],
)
def test_why_a_command_was_stopped_outranks_its_exit_code(code: int, ended_by: str, state: JobState) -> None:
    seen = ended({**MARKER, "exit_code": code, "ended_by": ended_by}, "exited")
    assert (seen.state, seen.exit_code, seen.ended_by) == (state, code, EndedBy(ended_by))
    assert (seen.native_state, seen.evidence) == ("exited", "exit marker")
    assert (seen.started_at, seen.ended_at) == (moment(1700000000.0), moment(1700000009.5))


def test_a_platform_may_call_other_endings_canceled_too() -> None:
    assert end_state(EndedBy.PREEMPT, 143, canceled=(EndedBy.CANCEL, EndedBy.PREEMPT)) is JobState.CANCELED


def test_the_times_of_the_platform_are_preferred() -> None:
    seen = ended(MARKER, "exited", moment(1.0), moment(2.0))
    assert (seen.started_at, seen.ended_at) == (moment(1.0), moment(2.0))


def test_a_record_is_of_another_job_only_when_both_ids_are_known() -> None:
    assert is_of(MARKER, "7", "machine a")
    assert is_of(MARKER, "")
    assert is_of({}, "7", "machine a")
    assert not is_of(MARKER, "8")
    assert is_of({**MARKER, "site": "machine a"}, "7", "machine a")
    assert is_of({**MARKER, "site": "machine b"}, "7")
    assert not is_of({**MARKER, "site": "machine b"}, "7", "machine a")


@pytest.mark.parametrize(
    ("told", "site", "target"),
    [
        ({"site": "machine a", "target": "process/x"}, "machine a", "process"),
        ({"site": "Docker engine b", "target": "local-docker/here"}, "Docker engine b", "local-docker/here"),
        ({"site": "Docker engine b", "target": "../../etc\x1b[2J"}, "Docker engine b", "process"),
        ({"site": "bell\x07", "target": "local-docker"}, UNNAMED, "local-docker"),
        ({"site": "x" * 300}, UNNAMED, "process"),
        ({}, UNNAMED, "process"),
        (None, UNNAMED, "process"),
    ],
)
def test_a_job_of_which_only_its_record_tells_is_where_that_says(
    told: dict[str, str] | None, site: str, target: str
) -> None:
    handle = JobHandle(target="process", key="0" * 16, attempt=1)
    found = left_by(handle, told, "machine a")
    assert (found.site, found.target) == (site, target)


def test_moments_carry_their_zone() -> None:
    found = moment(1700000000.0)
    assert found
    assert found.utcoffset() is not None
    assert moment(None) is None


def test_a_kept_end_is_read_back_and_a_damaged_one_is_none() -> None:
    seen = Observation(state=JobState.ERROR, exit_code=3)
    assert kept_end(seen.model_dump_json()) == seen
    assert kept_end('{"state": "?"}') is None
    assert kept_end(None) is None
