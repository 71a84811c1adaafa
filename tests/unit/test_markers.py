"""Exit markers, attempt records and kept ends, as they are read."""

from __future__ import annotations

import json

import pytest

from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.platforms.markers import end_state, ended, is_of, kept_end, moment, read_record

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
    assert is_of(MARKER, "7")
    assert is_of(MARKER, "")
    assert is_of({}, "7")
    assert not is_of(MARKER, "8")


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
